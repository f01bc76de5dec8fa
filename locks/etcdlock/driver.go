package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// DefaultPrefix begins the keys of etcd, before a slash.
const DefaultPrefix = "solotick/locks"

// Option changes how NewDriver makes a Driver.
type Option func(*Driver)

// WithPrefix sets what the keys of etcd begin with, without the slash at its end.
// Whoever shares locks shares the prefix. Empty stands for the default,
// [DefaultPrefix].
func WithPrefix(prefix string) Option {
	return func(d *Driver) {
		if prefix != "" {
			d.prefix = prefix
		}
	}
}

// WithLogger sets where keys are reported that no lock made, and watches that etcd
// refuses. Default [slog.Default].
func WithLogger(log *slog.Logger) Option {
	return func(d *Driver) {
		if log != nil {
			d.log = log
		}
	}
}

// New returns a Locker on an open client. A nil cfg is the zero Config. It sends
// nothing. The client stays the caller's to close, after the Locker.
func New(client *clientv3.Client, cfg *locks.Config, opts ...Option) (*locks.Locker, error) {
	d, err := NewDriver(client, opts...)
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		cfg = new(locks.Config)
	}
	return locks.New(d, *cfg)
}

// Driver is the lock backend. It is safe for concurrent use. It keeps one session,
// a lease of etcd, for all locks of one TTL, and starts no goroutine while nothing
// is waited for, watched or under way.
type Driver struct {
	client *clientv3.Client
	leases pb.LeaseClient
	prefix string
	log    *slog.Logger
	hub    *hub

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	// mu guards what follows and the changing part of every session and entry. It
	// is never held over I/O.
	mu       sync.Mutex
	closed   bool
	sessions map[int64]*session // by the TTL asked for, in seconds
	opening  map[int64]*flight  // of a session to come
	entries  map[string]*entry  // by key of etcd: what this driver holds, waits for or does not know the outcome of
	strays   map[string]struct{}
	short    map[string]struct{} // lines that few stood in, see wasShort
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Queuer       = (*Driver)(nil)
	_ driver.LossWatcher  = (*Driver)(nil)
	_ driver.LossTeller   = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
	_ io.Closer           = (*Driver)(nil)
)

// NewDriver returns a driver on an open client, which stays the caller's to close.
// It sends nothing.
func NewDriver(client *clientv3.Client, opts ...Option) (*Driver, error) {
	if client == nil {
		return nil, errors.New("etcdlock: client: it is nil; open one first")
	}
	d := &Driver{
		client: client, leases: pb.NewLeaseClient(client.ActiveConnection()), prefix: DefaultPrefix, log: slog.Default(),
		sessions: map[int64]*session{}, opening: map[int64]*flight{}, entries: map[string]*entry{}, strays: map[string]struct{}{}, short: map[string]struct{}{},
	}
	for _, o := range opts {
		o(d)
	}
	if err := checkPrefix(d.prefix); err != nil {
		return nil, err
	}
	d.prefix += "/"
	life, end := context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: it outlives its callers
	d.life, d.end = clientv3.WithRequireLeader(life), end
	d.hub = newHub(d)
	return d, nil
}

func checkPrefix(prefix string) error {
	switch {
	case prefix == "" || strings.HasSuffix(prefix, "/"):
		return fmt.Errorf("etcdlock: prefix %q: it is empty or ends in a slash; leave that out", prefix)
	case len(prefix) > locks.MaxKeyBytes:
		return fmt.Errorf("etcdlock: prefix: %d bytes; shorten it to %d", len(prefix), locks.MaxKeyBytes)
	}
	return nil
}

// Limits implements [driver.Limiter]: etcd counts TTLs in whole seconds. It raises
// one that is below 1.5 election timeouts, which is 2 s where that was not changed,
// and the grant says so.
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: time.Second, Granularity: time.Second}
}

// background runs f, unless the driver is closed. Close waits for it.
func (d *Driver) background(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.spawn(f)
}

// spawn is background for who holds mu.
func (d *Driver) spawn(f func()) bool {
	if d.closed {
		return false
	}
	d.work.Go(f)
	return true
}

// closeTimeout bounds the end of the sessions.
const closeTimeout = time.Second

// cleanUp bounds a request that nobody waits for, and the leaving of a line.
const cleanUp = 500 * time.Millisecond

// Close ends the sessions, and with them whatever the driver still holds or waits
// for, and every goroutine. It takes at most a second. The client stays open.
func (d *Driver) Close() error {
	d.mu.Lock()
	first, left := !d.closed, len(d.entries) > 0
	d.closed = true
	var ids []clientv3.LeaseID
	for _, s := range d.sessions {
		ids = append(ids, s.id)
		s.die()
	}
	clear(d.sessions)
	d.mu.Unlock()
	d.end()
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	if first && len(ids) > 0 {
		// A client that was cut off a while ago waits before it connects again.
		d.client.ActiveConnection().ResetConnectBackoff()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(d.life), closeTimeout)
		defer cancel()
		for i, id := range ids {
			wg.Go(func() {
				if _, err := d.client.Revoke(ctx, id); err != nil && left && !sessionGone(err) {
					errs[i] = fmt.Errorf("etcdlock: end the session: %w; its keys are free after the TTL", err)
				}
			})
		}
	}
	wg.Wait()
	d.hub.shutDown()
	d.work.Wait()
	return errors.Join(errs...)
}
