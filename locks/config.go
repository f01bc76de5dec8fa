package locks

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// renewJitter is the share by which renewals are spread, so that processes
// started together do not renew together.
const renewJitter = 0.1

// Config configures a [Locker]. The zero Config is ready for use; a zero field
// has its default.
type Config struct {
	// TTL is how long a lease lives without renewal, and so how long a key stays
	// held after its holder died. Default 10s.
	TTL time.Duration `yaml:"ttl"`
	// RenewInterval is the time between renewals, spread by 10 %. Default TTL/3.
	RenewInterval time.Duration `yaml:"renew_interval"`
	// Margin is how long before the backend can end a lease its holder must be
	// told: it covers the drift of the two clocks and the time it takes to stop.
	// Default TTL/50 + 2ms.
	Margin time.Duration `yaml:"margin"`
	// RequestTimeout bounds one request to the backend. An acquire is given up
	// as unavailable after twice that. Default TTL/5, at most 1s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// ReleaseTimeout bounds a release as a whole, also where its context has
	// ended. Default 1s.
	ReleaseTimeout time.Duration `yaml:"release_timeout"`
	// Poll is the longest pause between two looks at a held key while waiting for
	// it. Default 250ms, or 1s where the backend pushes.
	Poll time.Duration `yaml:"poll"`
	// DrainTimeout is how long Do keeps the lease of a function whose context has
	// ended but which has not returned. Default 1m.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// Label tells people who holds a key. It need not be unique. Default
	// host:pid.
	Label string `yaml:"label"`
	// Observer is told what happens, for metrics and logs. It may be called from
	// several goroutines at once, must not block, and must not call the Locker.
	// Default none.
	Observer func(Event) `yaml:"-"`
}

// Validate reports the first setting that cannot work, by the name it has in a
// configuration file, with a remedy. Limits of a backend are checked by [New].
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"ttl", c.TTL},
		{"renew_interval", c.RenewInterval},
		{"margin", c.Margin},
		{"request_timeout", c.RequestTimeout},
		{"release_timeout", c.ReleaseTimeout},
		{"poll", c.Poll},
		{"drain_timeout", c.DrainTimeout},
	} {
		if f.value < 0 {
			return invalid("%s: %v is negative; leave it out for the default", f.name, f.value)
		}
	}
	if len(c.Label) > MaxLabelBytes {
		return invalid("label: %d bytes; shorten it to %d", len(c.Label), MaxLabelBytes)
	}
	c = c.withDefaults(false)
	return c.timing(c.TTL).check()
}

// MaxLabelBytes is the longest label.
const MaxLabelBytes = 200

func (c Config) withDefaults(pushed bool) Config {
	def := func(field *time.Duration, value time.Duration) {
		if *field == 0 {
			*field = value
		}
	}
	def(&c.TTL, 10*time.Second)
	def(&c.RenewInterval, c.TTL/3)
	def(&c.Margin, c.TTL/50+2*time.Millisecond)
	def(&c.RequestTimeout, min(c.TTL/5, time.Second))
	def(&c.ReleaseTimeout, time.Second)
	if pushed {
		def(&c.Poll, time.Second)
	}
	def(&c.Poll, 250*time.Millisecond)
	def(&c.DrainTimeout, time.Minute)
	if c.Label == "" {
		host, err := os.Hostname()
		if err != nil {
			host = filepath.Base(os.Args[0])
		}
		pid := fmt.Sprintf(":%d", os.Getpid())
		c.Label = host[:min(len(host), MaxLabelBytes-len(pid))] + pid
	}
	return c
}

// timing is the life of one lease: the configured one, or that scaled to the TTL
// which the caller asked for or the backend gave.
type timing struct {
	ttl, interval, margin, request time.Duration
}

func (c Config) timing(ttl time.Duration) timing {
	t := timing{c.TTL, c.RenewInterval, c.Margin, c.RequestTimeout}
	if ttl != c.TTL {
		scale := float64(ttl) / float64(c.TTL)
		t.ttl = ttl
		t.interval = time.Duration(float64(c.RenewInterval) * scale)
		t.margin = max(time.Duration(float64(c.Margin)*scale), min(c.Margin, 2*time.Millisecond))
		t.request = min(time.Duration(float64(c.RequestTimeout)*scale), c.RequestTimeout)
	}
	return t
}

// check refuses a life in which one failed renewal could cost the lease.
func (t timing) check() error {
	slowest := 2*time.Duration(float64(t.interval)*(1+renewJitter)) + t.request + t.margin
	if slowest >= t.ttl {
		return invalid("ttl: %v leaves no room for a second renewal: twice renew_interval (%v, spread by 10 %%) + request_timeout (%v) + margin (%v) = %v; raise ttl or lower the others",
			t.ttl, t.interval, t.request, t.margin, slowest)
	}
	return nil
}

func checkLimits(ttl time.Duration, lim driver.Limits) error {
	if ttl < lim.MinTTL {
		return invalid("ttl: %v is below what this backend honours; raise it to %v", ttl, lim.MinTTL)
	}
	if g := lim.Granularity; g > 0 && ttl%g != 0 {
		return invalid("ttl: %v is not a multiple of %v, which this backend counts in; make it %v", ttl, g, ttl.Truncate(g)+g)
	}
	return nil
}

// Option changes one acquire.
type Option func(*options)

type options struct {
	ttl     time.Duration
	label   string
	poll    time.Duration
	answers func(error) // nil if nobody wants to know
	onLoss  LossPolicy
	fresh   bool // no re-entry
}

// WithTTL sets the TTL of this lease. Renewal interval, margin and request
// timeout scale with it. Default Config.TTL.
func WithTTL(ttl time.Duration) Option { return func(o *options) { o.ttl = ttl } }

// WithLabel sets the label of this lease. Default Config.Label.
func WithLabel(label string) Option { return func(o *options) { o.label = label } }

// WithPoll sets how often Acquire looks again at a held key. Whoever can wait
// longer asks less. Default Config.Poll.
func WithPoll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// WithAnswers is told of every look of Acquire that does not win: nil when the
// backend said that the key is held, the error when it gave no clear answer. Where
// the backend keeps a line, looks are as rare as the line needs, but the first. Who
// waits for days learns from it whether the backend is there. It must return at once.
// It is never called after Acquire has returned.
func WithAnswers(f func(err error)) Option { return func(o *options) { o.answers = f } }

// LossPolicy is what a loss does to the contexts of a lease. Under every policy
// [Lease.Err], [Lease.Done] and [Lease.Valid] tell of it, the key is free for
// others, and the fence is refused where it is checked.
type LossPolicy int

// The policies for a loss.
const (
	// Abort cancels the contexts of the lease, with the loss as their cause.
	Abort LossPolicy = iota
	// Continue lets the contexts go on until the release: for work that is better
	// finished than broken off, and that stands a second holder.
	Continue
	// Checkpoint lets the contexts go on, as Continue does, for work that may only
	// be broken off at certain points, and there asks [Lease.Check].
	Checkpoint
)

// String names the policy.
func (p LossPolicy) String() string {
	switch p {
	case Abort:
		return "abort"
	case Continue:
		return "continue"
	case Checkpoint:
		return "checkpoint"
	}
	return fmt.Sprintf("LossPolicy(%d)", int(p))
}

// OnLoss sets what a loss does to the contexts of this lease. Default [Abort].
func OnLoss(p LossPolicy) Option { return func(o *options) { o.onLoss = p } }
