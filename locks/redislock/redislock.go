package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks"
)

// Option changes how a driver is made.
type Option func(*Driver)

// Fair keeps those who do not wait behind those who do: a TryAcquire is refused while
// somebody stands in line, also where a dead holder has left the key free. Waiters stand
// in line with and without it.
func Fair() Option { return func(d *Driver) { d.fair = true } }

// WithPrefix sets what every key and channel begins with: printable characters
// without braces. Default [DefaultPrefix].
func WithPrefix(prefix string) Option { return func(d *Driver) { d.prefix = prefix } }

// WithReplicas makes a grant count only when n replicas have it, for which WAIT
// gives them the time (rounded down to ms, default 100 ms, and part of the
// request's own time limit). It makes it less likely that a failover loses a grant,
// and does not rule it out: a replica that has not answered may be promoted. Not
// for a cluster.
func WithReplicas(n int, within time.Duration) Option {
	return func(d *Driver) { d.replicas, d.replicasWait = n, within }
}

// WithLogger sets where warnings go. Default slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(d *Driver) {
		if log != nil {
			d.log = log
		}
	}
}

// New returns a Locker on rdb: a single server, what Sentinel says is the master,
// or a cluster. A nil cfg is the zero Config. It sends nothing. The client stays
// the caller's to close, after the Locker.
//
// Set MaxRetries: -1 and ContextTimeoutEnabled: true in the client's options. The
// lock repeats and bounds its requests itself; a client that does so too holds on
// to a dead connection for longer.
func New(rdb redis.UniversalClient, cfg *locks.Config, opts ...Option) (*locks.Locker, error) {
	d, err := NewDriver(rdb, opts...)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = new(locks.Config)
	}
	return locks.New(d, *cfg)
}

// NewDriver returns a driver on rdb. Close it when it is not given to a Locker. It
// sends nothing; beside the first request it looks once whether the server is fit
// for locks, and logs warnings.
func NewDriver(rdb redis.UniversalClient, opts ...Option) (*Driver, error) {
	d := &Driver{rdb: rdb, prefix: DefaultPrefix, log: slog.Default()}
	for _, o := range opts {
		o(d)
	}
	switch rdb.(type) {
	case nil:
		return nil, errors.New("redislock: the client is nil; make one with redis.NewUniversalClient")
	case *redis.Ring:
		return nil, errors.New("redislock: a redis.Ring moves keys when a shard is away, so that two could hold one; use one server, Sentinel, a cluster, or package redlock")
	case *redis.ClusterClient:
		d.cluster = true
	}
	if err := checkPrefix(d.prefix); err != nil {
		return nil, err
	}
	switch {
	case d.replicas < 0:
		return nil, fmt.Errorf("redislock: replicas: %d; leave it out to wait for none", d.replicas)
	case d.replicas > 0 && d.cluster:
		return nil, errors.New("redislock: replicas: WAIT cannot be sent to the right node of a cluster; leave it out")
	case d.replicas > 0 && d.replicasWait < 0:
		return nil, fmt.Errorf("redislock: replicas_wait: %v; leave it out for the default", d.replicasWait)
	case d.replicas > 0 && d.replicasWait == 0:
		d.replicasWait = 100 * time.Millisecond
	}
	d.scripts = newScripts(d.cluster)
	d.ctx, d.stop = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own
	direct := directTo(rdb)
	if direct != nil {
		d.send = direct
	} else {
		d.send = newBatcher(rdb)
	}
	d.repeats = (direct == nil || d.replicas > 0) && repeats(rdb)
	if byName(rdb) {
		d.doubts = &doubts{holds: map[*doubt]struct{}{}}
	}
	d.hub = newHub(d, direct)
	return d, nil
}

func checkPrefix(prefix string) error {
	bad := strings.IndexFunc(prefix, func(r rune) bool {
		return r == '{' || r == '}' || r == unicode.ReplacementChar || !unicode.IsPrint(r) || r == ' '
	})
	if bad >= 0 || len(prefix) > 128 {
		return fmt.Errorf("redislock: prefix %q: use at most 128 printable characters without spaces and braces, which choose the cluster slot", prefix)
	}
	return nil
}
