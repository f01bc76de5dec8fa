package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

// Config of a relay. The zero Config works.
type Config struct {
	// Interval is how often it looks for messages while there are none, and how often
	// one that stands by looks whether it is needed. Default 1s, at least 10ms.
	Interval time.Duration
	// Batch is the most messages that it reads, and gives to the publisher, at a time:
	// 1 to 500. Default 100.
	Batch int
	// Lease is how soon another relay goes on for one that died: 1s to 10m. Half of it
	// is the time that a call of the publisher has. Default 10s.
	Lease time.Duration
	// MaxAttempts is how often a message is refused before it is parked. Errors that
	// match ErrUnavailable do not count. Default 15, which with the default delays takes
	// about half an hour.
	MaxAttempts int
	// RetryBase and RetryMax bound the delay after a refusal: it is drawn from (0,
	// RetryBase * 2^n], and at most RetryMax. Defaults 1s and 5m.
	RetryBase, RetryMax time.Duration
	// Retention is how long messages stay after they were sent, and with them the memory
	// of their IDs. Default 7 days; a negative one keeps them.
	Retention time.Duration
}

// Deps of a relay are the things passed in code.
type Deps struct {
	// Publisher sends the messages. Required.
	Publisher Publisher
	// Log is told of messages that are parked, and of brokers and databases that cannot
	// answer. Default slog.Default().
	Log *slog.Logger
}

// Validate reports the first field that cannot work, and what would.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Interval < 10*time.Millisecond:
		return fmt.Errorf("outbox: Config.Interval of %v: use 10ms or more", c.Interval)
	case c.Batch < 1 || c.Batch > 500:
		return fmt.Errorf("outbox: Config.Batch of %d: use 1 to 500", c.Batch)
	case c.Lease < time.Second || c.Lease > 10*time.Minute:
		return fmt.Errorf("outbox: Config.Lease of %v: use 1s to 10m", c.Lease)
	case c.MaxAttempts < 1:
		return fmt.Errorf("outbox: Config.MaxAttempts of %d: use 1 or more", c.MaxAttempts)
	case c.RetryBase < 0 || c.RetryMax < c.RetryBase:
		return fmt.Errorf("outbox: Config.RetryBase of %v and RetryMax of %v: use 0 or more, the second no less than the first", c.RetryBase, c.RetryMax)
	}
	return nil
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Interval, time.Second},
		{&c.Lease, 10 * time.Second},
		{&c.RetryBase, time.Second},
		{&c.RetryMax, 5 * time.Minute},
		{&c.Retention, 7 * 24 * time.Hour},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Batch == 0 {
		c.Batch = 100
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 15
	}
	return c
}

// Relay sends what is in an outbox. Run as many as you like, in as many processes: one
// works, the others stand by. It is safe for concurrent use.
type Relay struct {
	box  *Outbox
	cfg  Config
	pub  Publisher
	log  *slog.Logger
	wake chan struct{}
}

// NewRelay makes a relay. The error is that of Config.Validate, or says what is
// missing. It sends nothing.
func NewRelay(box *Outbox, cfg Config, deps Deps) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	switch {
	case box == nil:
		return nil, errors.New("outbox: the Outbox is nil: make one with New")
	case deps.Publisher == nil:
		return nil, errors.New("outbox: Deps.Publisher is missing: give one, such as redisstream.New")
	}
	r := &Relay{box: box, cfg: cfg.withDefaults(), pub: deps.Publisher, log: deps.Log, wake: make(chan struct{}, 1)}
	if r.log == nil {
		r.log = slog.Default()
	}
	return r, nil
}

// Wake lets the relay, if it is the one that works, look for messages at once: after a
// commit that added some.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, and then returns nil: after the call of the publisher that
// is under way, so within half a lease, and a few seconds for the database. A database
// that cannot answer is asked again. An error that matches store.ErrSchema says that the
// tables are not what this program needs.
func (r *Relay) Run(ctx context.Context) error {
	t := &term{Relay: r, owner: store.NewOwner()}
	defer t.resign(ctx)
	errs := 0
	for {
		wait, err := t.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, store.ErrSchema):
			return err
		case err == nil:
			errs = 0
		default:
			if errs++; errs == 1 {
				r.log.WarnContext(ctx, "outbox: the relay cannot work, and tries again", "error", err)
			}
			wait = pauses.Delay(errs)
		}
		if !t.idle(ctx, wait, err == nil && t.streak == 0) {
			return nil
		}
	}
}

// pauses are those between tries while the broker or the database cannot answer.
var pauses = backoff.Policy{Base: 100 * time.Millisecond, Max: 30 * time.Second}

// term is one Run.
type term struct {
	*Relay
	owner    store.Owner
	known    bool // the lease's row is there
	led      bool
	deadline leaseclock.Deadline
	streak   int       // of passes in which the broker could not be asked
	warned   time.Time // of a broker that cannot be asked
	cleaned  time.Time
}

// turn looks once, and answers how long to wait.
func (t *term) turn(ctx context.Context) (time.Duration, error) {
	switch leads, err := t.lead(ctx); {
	case err != nil:
		return 0, err
	case !leads:
		return backoff.Jitter(t.cfg.Interval, 0.1), nil
	}
	p, err := t.pass(ctx)
	if err != nil {
		return 0, err
	}
	if p.sent == 0 && p.unavailable > 0 {
		return pauses.Delay(t.streak), nil
	}
	if p.read == t.cfg.Batch {
		return 0, t.clean(ctx)
	}
	return backoff.Jitter(t.cfg.Interval, 0.1), t.clean(ctx)
}

// idle waits; a Wake ends it, if it may.
func (t *term) idle(ctx context.Context, wait time.Duration, wakes bool) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	wake := t.wake
	if !wakes {
		wake = nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-wake:
	}
	return ctx.Err() == nil
}

const relayName = "relay"

// lead takes the lease, or renews it where less than half of it is left.
func (t *term) lead(ctx context.Context) (bool, error) {
	if t.led && t.deadline.Remaining() > t.cfg.Lease/2 {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Lease/2)
	defer cancel()
	c := t.box.conn
	if !t.known {
		err := c.Retry(ctx, func() error {
			_, err := c.Exec(ctx, "INSERT INTO "+t.box.t.relay+" (name, until_ms) VALUES (?, 0)"+c.InsertIgnore, relayName)
			return err
		})
		if err != nil {
			return false, fail(c.Dialect, "lead", err)
		}
		t.known = true
	}
	sent := leaseclock.Now()
	free := "until_ms < " + c.NowMillis
	if mutation.On("outbox-lease") {
		free = "1 = 1"
	}
	n, err := c.Exec(ctx, "UPDATE "+t.box.t.relay+" SET owner = ?, until_ms = "+c.NowMillis+" + ?, version = version + 1"+
		" WHERE name = ? AND (owner = ? OR "+free+")",
		t.owner[:], t.cfg.Lease.Milliseconds(), relayName, t.owner[:])
	if err != nil {
		return false, fail(c.Dialect, "lead", err)
	}
	if n == 1 {
		t.deadline = leaseclock.NewDeadline(sent, t.cfg.Lease, t.cfg.Lease/20)
	}
	if t.led != (n == 1) {
		t.led = n == 1
		if t.led {
			t.log.InfoContext(ctx, "outbox: this relay works")
		} else {
			t.log.InfoContext(ctx, "outbox: this relay stands by: another has its lease")
		}
	}
	return t.led, nil
}

// resign gives the lease back, so that another relay need not wait for its end.
func (t *term) resign(ctx context.Context) {
	if !t.led {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	c := t.box.conn
	if _, err := c.Exec(ctx, "UPDATE "+t.box.t.relay+" SET owner = NULL, until_ms = 0, version = version + 1 WHERE name = ? AND owner = ?", relayName, t.owner[:]); err != nil {
		t.log.WarnContext(ctx, "outbox: the relay's lease could not be given back, and ends by itself", "lease", t.cfg.Lease, "error", err)
	}
}

const (
	cleanEvery = time.Minute
	cleanMax   = 20 // statements at a time, so that messages need not wait
)

// clean deletes what was sent long ago.
func (t *term) clean(ctx context.Context) error {
	if t.cfg.Retention < 0 || time.Since(t.cleaned) < cleanEvery {
		return nil
	}
	for range cleanMax {
		n, err := t.box.Prune(ctx, t.cfg.Retention, pruneMax)
		if err != nil {
			return err
		}
		if n < pruneMax {
			t.cleaned = time.Now()
			return nil
		}
	}
	return nil
}
