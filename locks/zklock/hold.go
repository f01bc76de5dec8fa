package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// hold is a node of this session: in line, or granted. The Driver's mu guards what
// changes.
type hold struct {
	path    string
	token   driver.Token
	fence   int64 // the node's czxid; 0 until looked at
	ttl     time.Duration
	from    leaseclock.Instant // when the TTL began
	granted bool
	watched bool          // by a watch on this connection
	gone    bool          // the server or the session's end took it
	lost    chan struct{} // closed when gone; made when asked for
	told    func()        // called when gone; may be nil
}

func (h *hold) until() leaseclock.Deadline { return leaseclock.NewDeadline(h.from, h.ttl, 0) }

func (h *hold) dir() string { return h.path[:strings.LastIndexByte(h.path, '/')] }

// isOf reports whether h is of key, of which it keeps no more than its path.
func (d *Driver) isOf(h *hold, key string) bool { return h.dir() == d.dir(key) }

// hold makes a node that is in line one that is granted. The caller holds mu.
func (d *Driver) hold(h *hold) {
	delete(d.nodes, h.path)
	h.lost = nil                                 // of the wait, which has ended
	if other := d.holds[h.token]; other != nil { // of another key
		d.nodes[other.path] = other
	}
	d.holds[h.token] = h
}

// nodeAt is the node of this session that is at path, or nil. The caller holds mu.
func (d *Driver) nodeAt(path string) *hold {
	if h := d.nodes[path]; h != nil {
		return h
	}
	if m, ok := parseMember(path[strings.LastIndexByte(path, '/')+1:]); ok {
		if h := d.holds[m.token]; h != nil && h.path == path {
			return h
		}
	}
	return nil
}

// eachNode calls f for every node of this session. The caller holds mu.
func (d *Driver) eachNode(f func(*hold)) {
	for _, h := range d.nodes {
		f(h)
	}
	for _, h := range d.holds {
		f(h)
	}
}

// lose ends a hold that the server no longer has, or is about to lose. The caller
// holds mu.
func (d *Driver) lose(h *hold) {
	d.remove(h)
	if h.gone {
		return
	}
	h.gone = true
	if h.lost != nil {
		close(h.lost)
	}
	if h.told != nil {
		h.told()
	}
	if h.granted {
		if len(d.ended) >= endedMax { // nobody asked: the answer comes from the server then
			clear(d.ended)
		}
		d.ended[h.token] = struct{}{}
	}
}

// endedMax bounds what is remembered of lost grants, so that renewals of a
// thousand of them cost no request.
const endedMax = 4096

// remove forgets a hold. The caller holds mu.
func (d *Driver) remove(h *hold) {
	if d.nodes[h.path] == h {
		delete(d.nodes, h.path)
	}
	if d.holds[h.token] == h {
		delete(d.holds, h.token)
	}
}

// lostOf is the channel that tells of the loss. The caller holds mu.
func (h *hold) lostOf() chan struct{} {
	if h.lost == nil {
		h.lost = make(chan struct{})
		if h.gone {
			close(h.lost)
		}
	}
	return h.lost
}

// extend makes the hold live for its TTL from sent. The caller holds mu.
func (d *Driver) extend(h *hold, sent leaseclock.Instant) {
	h.from = sent
	d.planExpiry(h.until().Time())
}

// planExpiry makes the timer fire at t at the latest. The caller holds mu.
func (d *Driver) planExpiry(t time.Time) {
	if d.closed || !d.expiryAt.IsZero() && !t.Before(d.expiryAt) {
		return
	}
	d.expiryAt = t
	if d.expiry == nil {
		d.expiry = time.AfterFunc(time.Until(t), d.expire)
	} else {
		d.expiry.Reset(time.Until(t))
	}
}

// expire gives back what nobody renewed. The session would keep it for ever.
func (d *Driver) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expiryAt = time.Time{}
	var next time.Time
	for _, h := range d.holds {
		if !h.until().Expired() {
			if t := h.until().Time(); next.IsZero() || t.Before(next) {
				next = t
			}
			continue
		}
		d.lose(h)
		d.bury(&ghost{path: h.path, dir: h.dir(), token: h.token})
	}
	if !next.IsZero() {
		d.planExpiry(next)
	}
}

// WatchLoss implements [driver.LossWatcher]. A hold of another driver, and one that
// has ended, count as over.
func (d *Driver) WatchLoss(h driver.Hold) (lost <-chan struct{}, stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known(h).lostOf(), func() {}
}

// TellLoss implements [driver.LossTeller]: lost is called once, under a lock
// of the driver's, which it must not call.
func (d *Driver) TellLoss(h driver.Hold, lost func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	own := d.known(h)
	if before := own.told; before != nil {
		own.told = func() { before(); lost() }
	} else {
		own.told = lost
	}
	if own.gone {
		lost()
	}
	return func() {}
}

// known is the driver's own hold, or one that is gone. The caller holds mu.
func (d *Driver) known(h driver.Hold) *hold {
	own := d.holds[h.Token]
	if own == nil || !d.isOf(own, h.Key) || own.fence != h.Fence {
		own = &hold{gone: true}
	}
	return own
}

// errForeign answers for a hold that another session has.
var errForeign = errors.New("zklock: renew: the node lives with the session that made it, which this driver cannot prolong; renew through the driver that acquired")

// errSuspended answers for a node that could not be looked at since the connection
// was lost.
var errSuspended = errors.New("zklock: renew: the connection was lost meanwhile")

// Renew implements [driver.Driver]: one request.
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := d.RenewBatch(ctx, []driver.Hold{h})[0]; err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence, TTL: d.granted(h.TTL), From: time.Time{}}, nil
}

// RenewBatch implements [driver.BatchRenewer] by one request for all holds: a sync,
// which proves that the leader knows the session, and before whose answer any
// watch that fired is told. After a loss of the connection it is one more request
// for each hold, all in flight together.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	mine := make([]*hold, len(holds))
	known := false
	var foreign []int
	d.mu.Lock()
	for i, h := range holds {
		own := d.holds[h.Token]
		_, ended := d.ended[h.Token]
		switch {
		case own != nil && d.isOf(own, h.Key) && own.fence == h.Fence:
			mine[i], known = own, true
		case own != nil || ended:
			errs[i] = driver.ErrNotOurs
		default:
			foreign = append(foreign, i)
		}
	}
	d.mu.Unlock()
	var wg sync.WaitGroup
	limit := make(chan struct{}, maxParallel)
	for _, i := range foreign {
		limit <- struct{}{}
		wg.Go(func() {
			errs[i] = d.foreign(ctx, holds[i])
			<-limit
		})
	}
	if known {
		d.confirm(ctx, mine, errs)
	}
	wg.Wait()
	return errs
}

// maxParallel bounds the requests that one call has in flight.
const maxParallel = 32

// foreign answers for a hold that this driver knows nothing of.
func (d *Driver) foreign(ctx context.Context, h driver.Hold) error {
	_, found, err := d.find(ctx, h)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return driver.ErrNotOurs
	}
	return errForeign
}

// confirm extends the holds that are still ours, and answers for each that is not
// nil.
func (d *Driver) confirm(ctx context.Context, mine []*hold, errs []error) {
	_, err := d.ready(ctx)
	sent := leaseclock.Now()
	if err == nil {
		var unwatched []*hold
		d.mu.Lock()
		for _, h := range mine {
			if h != nil && !h.watched && !h.gone {
				unwatched = append(unwatched, h)
			}
		}
		d.mu.Unlock()
		var wg sync.WaitGroup
		limit := make(chan struct{}, maxParallel)
		for _, h := range unwatched {
			limit <- struct{}{}
			wg.Go(func() {
				_ = d.look(ctx, h) // what could not be looked at stays unwatched
				<-limit
			})
		}
		err = d.sync(ctx, d.prefix)
		wg.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, h := range mine {
		switch {
		case h == nil:
		case h.gone:
			errs[i] = driver.ErrNotOurs
			delete(d.ended, h.token)
		case err != nil:
			errs[i] = err
		case !h.watched:
			errs[i] = errSuspended
		default:
			d.extend(h, sent)
		}
	}
}

// look reads the own node and sets a watch on it. A node that is not there, or not
// of this session, is lost: after a reconnection the one with our name may belong
// to the session that just ended (apache/curator 1211).
func (d *Driver) look(ctx context.Context, h *hold) error {
	epoch, err := d.ready(ctx)
	if err != nil {
		return err
	}
	stat, err := call(ctx, d, "look at the own node", func() (*zk.Stat, error) {
		// Not exists: where there is no node, that would leave a watch for ever.
		_, stat, _, err := d.conn.GetW(h.path)
		return stat, err
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case h.gone:
	case d.epoch != epoch:
		return errSuspended
	case err != nil:
		d.lose(h)
	case stat.EphemeralOwner != d.session && !mutation.On("zk-owner-check"):
		d.lose(h)
		d.bury(&ghost{path: h.path, dir: h.dir(), token: h.token})
	case h.fence != 0 && h.fence != stat.Czxid:
		d.lose(h)
	default:
		h.fence, h.watched = stat.Czxid, true
	}
	return nil
}

// granted is the TTL of a grant that was asked for with ttl; 0 where it is that.
func (d *Driver) granted(ttl time.Duration) time.Duration {
	if most := d.leaseTTL(); most > 0 && ttl > most {
		return most
	}
	return 0
}
