package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// Driver is the lock backend: one session, which all its locks share. It is safe
// for concurrent use.
type Driver struct {
	prefix string
	acl    []zk.ACL
	opts   options
	wire   *wire
	conn   *zk.Conn
	events <-chan zk.Event // closed when the library has ended
	ctx    context.Context // ends when Close begins
	end    context.CancelFunc
	wg     sync.WaitGroup

	// mu is never held over a request: the library's receiving goroutine takes it.
	mu        sync.Mutex
	closed    bool
	connected bool
	authed    bool
	authErr   error                  // the server will not have us
	session   int64                  // 0 while there is none
	epoch     uint64                 // changes whenever the connection or the session does
	changed   chan struct{}          // closed when epoch, authed or authErr change, and replaced
	holds     map[driver.Token]*hold // those that are granted
	nodes     map[string]*hold       // by path: those that are not in holds
	attempts  map[driver.Token]*attempt
	ghosts    []*ghost
	reaping   bool
	armed     map[string]bool // paths with a watch on this connection
	subs      map[string][]chan passed
	seenHeld  map[string]struct{}       // keys that were held at the last look
	ended     map[driver.Token]struct{} // grants that were lost and not yet asked about
	expiry    *time.Timer
	expiryAt  time.Time // when that fires; zero if it does not
	pinging   bool
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Queuer       = (*Driver)(nil)
	_ driver.LossWatcher  = (*Driver)(nil)
	_ driver.LossTeller   = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
)

func newDriver(o options) *Driver {
	d := &Driver{
		prefix: o.prefix, acl: zk.WorldACL(zk.PermAll), opts: o,
		changed: make(chan struct{}),
		holds:   make(map[driver.Token]*hold), nodes: make(map[string]*hold), attempts: make(map[driver.Token]*attempt),
		armed: make(map[string]bool), subs: make(map[string][]chan passed), seenHeld: make(map[string]struct{}), ended: make(map[driver.Token]struct{}),
		authed: o.user == "",
	}
	if o.user != "" {
		d.acl = zk.AuthACL(zk.PermAll)
	}
	d.ctx, d.end = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: it outlives its callers
	d.wire = &wire{dial: o.dial, tls: o.tls}
	d.wire.ctx, d.wire.end = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: it outlives its callers
	return d
}

var errClosed = errors.New("zklock: the driver is closed")

// Close ends the session: the server deletes what the driver has, and the locks
// are free at once. A server that cannot be reached frees them when the session
// times out. Close waits at most a second for the server.
func (d *Driver) Close() error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	connected := d.connected
	if d.expiry != nil {
		d.expiry.Stop()
	}
	d.mu.Unlock()
	if first {
		d.end()
		done := make(chan struct{})
		go func() {
			d.conn.Close()
			close(done)
		}()
		if connected {
			patience := time.NewTimer(time.Second)
			select {
			case <-done:
			case <-patience.C:
			}
			patience.Stop()
		}
		d.wire.end()
		d.wire.cut()
		<-done
	}
	for range d.events { // until the library's last goroutine has ended
		continue
	}
	d.wg.Wait()
	return nil
}

// enter counts a goroutine that Close waits for; false if it is too late for one.
func (d *Driver) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Add(1)
	return true
}

// event is called by the library's goroutines for every change of the connection
// and for every watch that fires, before any later answer is handed out.
func (d *Driver) event(e zk.Event) {
	switch {
	case e.Type == zk.EventSession:
		d.sessionEvent(e.State)
	case e.Path != "" && (e.Type == zk.EventNodeDeleted || e.Type == zk.EventNodeDataChanged):
		d.nodeEvent(e.Path, e.Type == zk.EventNodeDeleted)
	}
}

func (d *Driver) sessionEvent(state zk.State) {
	session, timeout, _ := d.wire.terms()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case zk.StateHasSession:
		if d.session != session {
			d.forgetSession()
		}
		d.connected, d.session = true, session
		d.shorten(leaseFor(timeout))
	case zk.StateExpired:
		d.forgetSession()
		d.connected, d.session = false, 0
	case zk.StateDisconnected:
		if !d.connected {
			return
		}
		// Suspended: nothing is known of the nodes until they were looked at again.
		d.connected = false
	default:
		return
	}
	d.eachNode(func(h *hold) { h.watched = false })
	clear(d.armed)
	d.epoch++
	d.tellChange()
}

// tellChange wakes all who wait for the session. The caller holds mu.
func (d *Driver) tellChange() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// forgetSession ends all that the session had. The caller holds mu.
func (d *Driver) forgetSession() {
	d.eachNode(d.lose)
	d.ghosts = nil // the server deletes the nodes of a session before it tells of its end
}

// shorten ends the holds that were promised more than the session now carries,
// which another server may have agreed to. The caller holds mu.
func (d *Driver) shorten(ttl time.Duration) {
	for _, h := range d.holds {
		if h.ttl > ttl {
			d.lose(h)
			d.bury(&ghost{path: h.path, dir: h.dir(), token: h.token})
		}
	}
}

// passed is what a watch tells.
type passed struct {
	path    string
	deleted bool
	epoch   uint64
	contact leaseclock.Instant // as it was then
}

func (d *Driver) nodeEvent(path string, deleted bool) {
	contact := d.contact()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.armed, path)
	if h := d.nodeAt(path); h != nil {
		h.watched = false
		if deleted {
			d.lose(h)
		}
	}
	for _, c := range d.subs[path] {
		select {
		case c <- passed{path, deleted, d.epoch, contact}:
		default:
		}
	}
}

func (d *Driver) subscribe(path string, c chan passed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subs[path] = append(d.subs[path], c)
}

func (d *Driver) unsubscribe(path string, c chan passed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.subs[path]
	for i, other := range all {
		if other == c {
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			break
		}
	}
	if len(all) == 0 {
		delete(d.subs, path)
	} else {
		d.subs[path] = all
	}
}

// ready waits for a session that requests can be sent on. Without one nothing is
// sent, and the error is marked as not applied.
func (d *Driver) ready(ctx context.Context) (epoch uint64, err error) {
	for {
		d.mu.Lock()
		changed, epoch := d.changed, d.epoch
		ok, closed, authErr := d.connected && d.authed, d.closed, d.authErr
		d.mu.Unlock()
		switch {
		case closed:
			return 0, driver.NotApplied(errClosed)
		case authErr != nil:
			return 0, driver.NotApplied(authErr)
		case ctx.Err() != nil:
			return 0, driver.NotApplied(fmt.Errorf("zklock: no connection: %w", context.Cause(ctx)))
		case ok:
			return epoch, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-d.ctx.Done():
		}
	}
}

// authenticate sends the credentials once; from then on the library sends them on
// every new connection before anything else.
func (d *Driver) authenticate(user string, password secret.Value) {
	for try := 0; ; try++ {
		d.mu.Lock()
		changed, connected := d.changed, d.connected
		d.mu.Unlock()
		if !connected {
			select {
			case <-changed:
			case <-d.ctx.Done():
				return
			}
			continue
		}
		err := d.conn.AddAuth("digest", []byte(user+":"+password.Reveal()))
		d.mu.Lock()
		switch {
		case err == nil:
			d.authed = true
		case errors.Is(err, zk.ErrAuthFailed):
			d.authErr = fmt.Errorf("zklock: digest: user %q: %w", user, err)
		}
		settled := d.authed || d.authErr != nil
		if settled {
			d.tellChange()
		}
		d.mu.Unlock()
		if settled || backoff.Wait(d.ctx, backoff.Policy{Base: 20 * time.Millisecond, Max: time.Second}.Delay(try)) != nil {
			return
		}
	}
}

// call runs a request of the library, which knows no context, and gives it up when
// ctx ends. What becomes of it then is for the reaper, where it matters.
func call[T any](ctx context.Context, d *Driver, what string, request func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, driver.NotApplied(fmt.Errorf("zklock: %s: %w", what, context.Cause(ctx)))
	}
	if _, err := d.ready(ctx); err != nil {
		return none, fmt.Errorf("zklock: %s: %w", what, err)
	}
	if !d.enter() {
		return none, driver.NotApplied(errClosed)
	}
	type answer struct {
		value T
		err   error
	}
	c := make(chan answer, 1)
	go func() {
		defer d.wg.Done()
		v, err := request()
		c <- answer{v, err}
	}()
	select {
	case a := <-c:
		return a.value, d.explain(what, a.err)
	case <-ctx.Done():
		d.wire.cutIfSilent(d.silence())
		return none, fmt.Errorf("zklock: %s: %w", what, context.Cause(ctx))
	}
}

// silence is for how long a connection may leave requests unanswered before
// another is tried: an eighth of the session, so that there is time for it.
func (d *Driver) silence() time.Duration { return max(d.sessionTimeout()/8, 50*time.Millisecond) }

// explain wraps an error of the library, and marks those after which nothing has
// changed at the server. nil, and the errors that callers tell apart, still match.
func (d *Driver) explain(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoAuth):
		who := "nobody: set a digest user"
		if d.opts.user != "" {
			who = fmt.Sprintf("%q: check its password", d.opts.user)
		}
		return driver.NotApplied(fmt.Errorf("zklock: %s: the ACL below %s does not admit %s: %w", what, d.prefix, who, err))
	case notApplied(err):
		return driver.NotApplied(fmt.Errorf("zklock: %s: %w", what, err))
	}
	return fmt.Errorf("zklock: %s: %w", what, err)
}

// notApplied reports whether the server said, or the library knows, that a request
// changed nothing.
func notApplied(err error) bool {
	for _, known := range []error{
		zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL,
		zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrBadVersion, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals, zk.ErrInvalidPath,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// sync makes the server that we are connected to catch up with the leader, and
// proves that it can: a follower that is cut off still answers reads.
func (d *Driver) sync(ctx context.Context, path string) error {
	_, err := call(ctx, d, "sync", func() (string, error) { return d.conn.Sync(path) })
	return err
}
