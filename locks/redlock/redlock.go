package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

const (
	// DefaultPrefix begins every key.
	DefaultPrefix = "solotick:redlock:"
	// DefaultMaxTTL is the longest TTL that is granted.
	DefaultMaxTTL = time.Minute
)

// Option changes how a driver is made.
type Option func(*Driver)

// WithPrefix sets what every key begins with: printable characters without spaces.
// Default [DefaultPrefix].
func WithPrefix(prefix string) Option { return func(d *Driver) { d.prefix = prefix } }

// WithMaxTTL sets the longest TTL that is granted, which is how long a node that has
// restarted grants nothing. All processes must have the same. Default
// [DefaultMaxTTL].
func WithMaxTTL(ttl time.Duration) Option { return func(d *Driver) { d.maxTTL = ttl } }

// WithNodeTimeout bounds each request to each node. Default max(50 ms, TTL/20).
func WithNodeTimeout(timeout time.Duration) Option { return func(d *Driver) { d.timeout = timeout } }

// TrustFirstSight counts a node that has started within the longest TTL, where this
// process has not seen an earlier start of it. It is for new nodes on which nothing
// can have been held, as in tests; with it, a process that starts after a node
// crashed does not know that the node forgot.
func TrustFirstSight() Option { return func(d *Driver) { d.trust = true } }

// WithLogger sets where warnings go. Default slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(d *Driver) {
		if log != nil {
			d.log = log
		}
	}
}

// WithoutOrder saves the second round of an acquire. Fences then are different for
// every grant but need not grow: for callers who check none.
func WithoutOrder() Option { return func(d *Driver) { d.ordered = false } }

// New returns a Locker on independent masters, an odd number of at least three. A
// nil cfg is the zero Config. It sends nothing. The clients stay the caller's to
// close, after the Locker.
func New(nodes []redis.UniversalClient, cfg *locks.Config, opts ...Option) (*locks.Locker, error) {
	d, err := NewDriver(nodes, opts...)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = new(locks.Config)
	}
	return locks.New(d, *cfg)
}

// NewDriver returns a driver on independent masters. Close it when it is not given
// to a Locker. The clients need ContextTimeoutEnabled, so that a slow node does not
// hold up the others' request; set MaxRetries to -1. A PipelinePoolSize of -1 saves
// 256 KiB a node. What callers ask a node at the same time goes in one pipeline, of
// which at most two are under way, each over a connection of its own.
func NewDriver(nodes []redis.UniversalClient, opts ...Option) (*Driver, error) {
	d := &Driver{
		quorum: len(nodes)/2 + 1, prefix: DefaultPrefix, maxTTL: DefaultMaxTTL, ordered: true,
		grants: map[driver.Token]*grant{}, log: slog.Default(),
	}
	for _, o := range opts {
		o(d)
	}
	if err := checkCount("nodes", len(nodes)); err != nil {
		return nil, err
	}
	addrs := map[string]int{}
	for i, rdb := range nodes {
		c, ok := rdb.(*redis.Client)
		if !ok || c == nil {
			return nil, fmt.Errorf("redlock: node %d: %T; every node is one server, so use *redis.Client", i+1, rdb)
		}
		o := c.Options()
		if before, twice := addrs[o.Addr]; twice {
			return nil, fmt.Errorf("redlock: node %d: %s is node %d too; the nodes must be independent servers", i+1, o.Addr, before)
		}
		addrs[o.Addr] = i + 1
		if !o.ContextTimeoutEnabled {
			return nil, fmt.Errorf("redlock: node %d: set ContextTimeoutEnabled in the client's options; else a slow node is waited for", i+1)
		}
		d.nodes = append(d.nodes, &node{rdb: rdb})
	}
	if err := checkPrefix(d.prefix); err != nil {
		return nil, err
	}
	if err := checkTimes(d.maxTTL, d.timeout); err != nil {
		return nil, err
	}
	if mutation.On("redlock-quorum") {
		d.quorum--
	}
	if mutation.On("redlock-second-round") {
		d.ordered = false
	}
	d.ctx, d.stop = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: requests to nodes outlive their callers
	// Two requests to a node at a time, and what waits beside them.
	d.hands = &hands{work: &d.work, ended: d.ctx.Done(), jobs: make(chan func()), most: int32(3 * len(d.nodes))}
	for _, n := range d.nodes {
		n.pipe = &pipe{rdb: n.rdb, ctx: d.ctx, spawn: d.spawn}
	}
	d.ears = newEars(d)
	return d, nil
}

func checkCount(what string, n int) error {
	if n < 3 || n%2 == 0 {
		return fmt.Errorf("redlock: %s: %d; an odd number of at least 3 is needed, since an even one bears no more failures than one less", what, n)
	}
	return nil
}

// checkTimes refuses a longest TTL that no lock could have, and a time limit per node
// that would outlast every one.
func checkTimes(maxTTL, nodeTimeout time.Duration) error {
	switch {
	case maxTTL < minTTL:
		return fmt.Errorf("redlock: max_ttl: %v is below %v, the shortest TTL, so nothing could be locked; raise it to the longest TTL in use", maxTTL, minTTL)
	case maxTTL > longestMaxTTL:
		return fmt.Errorf("redlock: max_ttl: %v; a node that has restarted grants nothing for so long; lower it to the longest TTL in use, at most %v", maxTTL, longestMaxTTL)
	case nodeTimeout < 0:
		return fmt.Errorf("redlock: node_timeout: %v is negative; leave it out for the default", nodeTimeout)
	case nodeTimeout > maxTTL:
		return fmt.Errorf("redlock: node_timeout: %v is beyond max_ttl, %v: a lease would have ended before one node has answered; lower it", nodeTimeout, maxTTL)
	}
	return nil
}

// longestMaxTTL is where a TTL is no TTL any more: counters live that long.
const longestMaxTTL = counterLife

func checkPrefix(prefix string) error {
	if len(prefix) > 128 || strings.ContainsFunc(prefix, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' || r == unicode.ReplacementChar }) {
		return fmt.Errorf("redlock: prefix %q: use at most 128 printable characters without spaces", prefix)
	}
	return nil
}

// PluginConfig is the plugin's part of a configuration file.
type PluginConfig struct {
	// Addrs are the nodes, host:port: an odd number of at least 3. Required.
	Addrs []string `yaml:"addrs"`
	// Username and Password are for every node. Default none.
	Username string       `yaml:"username"`
	Password secret.Value `yaml:"password"`
	// DB is the number of the database. Default 0.
	DB int `yaml:"db"`
	// TLS encrypts the connections. Default off.
	TLS transport.TLS `yaml:"tls"`
	// AllowPlaintext lets the password go over the network without TLS. Default
	// false: then only to this host.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// Prefix begins every key. Default "solotick:redlock:".
	Prefix string `yaml:"prefix"`
	// MaxTTL is the longest TTL that is granted, from 200ms to 24h. Default 1m.
	MaxTTL time.Duration `yaml:"max_ttl"`
	// NodeTimeout bounds each request to each node. Default max(50ms, TTL/20).
	NodeTimeout time.Duration `yaml:"node_timeout"`
	// Unordered saves the second round of an acquire; fences need not grow then.
	// Default false.
	Unordered bool `yaml:"unordered"`
}

// Validate reports the first setting that cannot work.
func (c PluginConfig) Validate() error {
	if err := checkCount("addrs", len(c.Addrs)); err != nil {
		return err
	}
	for _, addr := range c.Addrs {
		host, _, err := transport.HostPort(addr)
		if err == nil && !c.Password.IsZero() {
			err = transport.CheckPlaintext(host, c.TLS.On(), c.AllowPlaintext)
		}
		if err != nil {
			return fmt.Errorf("redlock: addrs: %w", err)
		}
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("redlock: %w", err)
	}
	if c.DB < 0 {
		return fmt.Errorf("redlock: db: %d; use 0 and up", c.DB)
	}
	if err := checkTimes(cmp.Or(c.MaxTTL, DefaultMaxTTL), c.NodeTimeout); err != nil {
		return err
	}
	return checkPrefix(c.Prefix)
}

// Plugin returns the backend called "redlock". It does not wait for the nodes.
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: "redlock",
		Open: func(_ context.Context, decode func(any) error) (driver.Driver, error) {
			var cfg PluginConfig
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			d, err := open(cfg)
			if err != nil {
				return nil, err
			}
			return d, nil
		},
	}
}

func open(cfg PluginConfig) (*Driver, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	cfg.MaxTTL = cmp.Or(cfg.MaxTTL, DefaultMaxTTL)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.TLS.Config("")
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	opts := []Option{WithPrefix(cfg.Prefix), WithMaxTTL(cfg.MaxTTL), WithNodeTimeout(cfg.NodeTimeout)}
	if cfg.Unordered {
		opts = append(opts, WithoutOrder())
	}
	var nodes []redis.UniversalClient
	for _, addr := range cfg.Addrs {
		nodes = append(nodes, redis.NewClient(&redis.Options{
			Addr: addr, Username: cfg.Username, Password: cfg.Password.Reveal(), DB: cfg.DB, TLSConfig: tlsConfig,
			MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
			// Two for the pipelines, and one each for a list and the look at the settings: all
			// of one pool, as the client's own for pipelines takes 256 KiB a connection.
			PoolSize: 4, PipelinePoolSize: -1,
			// Servers announce their maintenance in a cloud only; others refuse to be asked,
			// which costs every connection a round trip.
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}))
	}
	d, err := NewDriver(nodes, opts...)
	if err != nil {
		errs := []error{err}
		for _, n := range nodes {
			errs = append(errs, n.Close())
		}
		return nil, errors.Join(errs...)
	}
	d.owned = true
	return d, nil
}
