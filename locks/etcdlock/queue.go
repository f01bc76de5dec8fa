package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// errRemoved says that somebody deleted the key of a waiter.
var errRemoved = errors.New("etcdlock: the place in the line was removed")

// AcquireQueued implements [driver.Queuer]. Waiters come in the order of their keys'
// create revisions, and each watches no more than the key before its own. A session
// that ends costs its waiters their places; they line up again.
//
// It gives up with an error when etcd has not answered for the TTL, at most 5 s.
func (d *Driver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(ctx.Err())
	}
	for try := 0; ; try++ {
		s, err := d.session(ctx, r.TTL)
		if err != nil {
			return driver.Grant{}, err
		}
		e := d.enter(s, d.path(r.Key, r.Token), true)
		w := &wait{d: d, s: s, e: e, dir: d.dir(r.Key)}
		if d.wasShort(w.dir) {
			w.view = d.hub.view(w.dir, e.path)
		}
		g, err := w.run(ctx, r)
		w.close()
		if !errors.Is(err, errSession) && !errors.Is(err, errRemoved) {
			return g, err
		}
		d.forget(e)
		if backoff.Wait(ctx, backoff.Policy{Base: time.Millisecond, Max: time.Second}.Delay(try)) != nil {
			return driver.Grant{}, driver.NotApplied(ctx.Err())
		}
	}
}

// front is how many may be ahead of one who lines up and watches the line itself at
// once. Who comes later watches it when one is left: so in a long line a release is
// told to two.
const front = 2

// wait is one stand in a line.
type wait struct {
	d        *Driver
	s        *session
	e        *entry
	dir      string
	rev      int64    // create revision of our key
	ahead    []string // those before us, the nearest first, at most one more than front
	seen     int64    // the revision at which they were
	view     *view    // begun before lining up, where that line was short lately
	answered leaseclock.Instant
}

// patience is how long etcd may answer nothing.
func (w *wait) patience() time.Duration { return min(w.s.ttl, 5*time.Second) }

func (w *wait) close() {
	if w.view != nil {
		w.d.hub.close(w.view)
		w.view = nil
	}
}

// maxShort bounds what is remembered of lines.
const maxShort = 1024

// wasShort reports whether a line had few in it when we lined up there last, and had
// any. Then its watch is begun together with the next line-up: what it tells from
// before that is known from both, and no look is needed between.
func (d *Driver) wasShort(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.short[dir]
	return ok
}

func (d *Driver) noteLine(dir string, ahead int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ahead == 0 || ahead > front {
		delete(d.short, dir)
		return
	}
	if len(d.short) >= maxShort {
		clear(d.short)
	}
	d.short[dir] = struct{}{}
}

func (w *wait) run(ctx context.Context, r driver.Request) (driver.Grant, error) {
	err := w.lineUp(ctx, r)
	if err == nil && len(w.ahead) > 0 {
		r.Tell(nil)
		err = w.untilFirst(ctx, r)
	}
	switch {
	case err == nil:
		w.d.settle(w.e, w.rev)
		return driver.Grant{Fence: w.rev, TTL: w.s.ttl, From: w.s.began()}, nil
	case errors.Is(err, errSession), errors.Is(err, errRemoved):
		return driver.Grant{}, err
	case driver.IsNotApplied(err) && w.rev == 0: // not in line
		if ctx.Err() != nil {
			err = driver.NotApplied(ctx.Err())
		}
		return driver.Grant{}, err
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if left := w.d.leave(ctx, w.s, w.e); left != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{}, driver.NotApplied(err)
}

// lineUp puts our key and looks at those before it. Reads of a line ask for the
// values too, because etcd leaves the lease out of a read of keys only.
func (w *wait) lineUp(caller context.Context, r driver.Request) error {
	fresh := w.s.refresh(false)
	ctx, cancel := context.WithTimeout(caller, w.patience())
	defer cancel()
	call, stop := late(ctx)
	defer stop()
	resp, err := w.d.txn(call).Then(
		clientv3.OpPut(w.e.path, newRecord(r), clientv3.WithLease(w.s.id)),
		clientv3.OpGet(w.dir, clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(front+2)),
	).Commit()
	if err != nil {
		if call.Err() != nil && caller.Err() == nil {
			err = fmt.Errorf("no answer for %v", w.patience())
		}
		return w.d.failed(w.s, w.e, "line up", err)
	}
	w.answered, w.seen = leaseclock.Now(), resp.Header.Revision
	kvs := resp.Responses[1].GetResponseRange().Kvs
	if string(kvs[0].Key) != w.e.path || !w.take(kvs[1:]) {
		// A key of others, or ours has been in line before.
		return w.place(ctx)
	}
	w.rev = kvs[0].CreateRevision
	w.d.noteLine(w.dir, len(w.ahead))
	if len(w.ahead) > front {
		w.close() // else it would hear of every hand-over before its own
	}
	if len(w.ahead) == 0 && errors.Is(fresh.wait(ctx), errSession) {
		return errSession
	}
	return nil
}

// take notes who is ahead of us, latest first. It reports false where a key of others
// is among them, so that they say nothing of how many there are.
func (w *wait) take(kvs []*mvccpb.KeyValue) bool {
	w.ahead = w.ahead[:0]
	for _, kv := range kvs {
		if !w.d.ours(kv) {
			return false
		}
		w.ahead = append(w.ahead, string(kv.Key))
	}
	return true
}

// place reads the whole line for our key and those before it.
func (w *wait) place(ctx context.Context) error {
	all, err := w.d.client.Get(clientv3.WithRequireLeader(ctx), w.dir, clientv3.WithPrefix())
	if err != nil {
		return fail("look at the line", err)
	}
	w.ahead, w.seen = w.ahead[:0], all.Header.Revision
	for _, kv := range w.d.line(all.Kvs) {
		if string(kv.Key) == w.e.path && (w.rev == 0 || w.rev == kv.CreateRevision) {
			w.rev = kv.CreateRevision
			slices.Reverse(w.ahead)
			w.ahead = w.ahead[:min(len(w.ahead), front+1)]
			return nil
		}
		w.ahead = append(w.ahead, string(kv.Key))
	}
	return errRemoved
}

// look asks whether our key is the one that we made, and which are before it. It is
// asked beside the beginning of a watch, which tells all that comes later; where the
// watch has begun later than the look, once more.
func (w *wait) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	mine := created(w.e.path, w.rev)
	if mutation.On("etcd-revision-check") {
		mine = clientv3.Compare(clientv3.CreateRevision(w.e.path), ">", -1)
	}
	resp, err := w.d.txn(ctx).If(mine).Then(clientv3.OpGet(w.dir, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(w.rev-1),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(front+1))).Commit()
	if err != nil {
		return fail("look at the line", err)
	}
	w.answered, w.seen = leaseclock.Now(), resp.Header.Revision
	if !resp.Succeeded {
		return errRemoved
	}
	if !w.take(resp.Responses[0].GetResponseRange().Kvs) {
		return w.place(ctx)
	}
	return nil
}

// untilFirst returns nil when our key is the first.
func (w *wait) untilFirst(ctx context.Context, r driver.Request) error {
	poll := time.NewTimer(0)
	defer poll.Stop()
	for failures := 0; ; {
		step := w.inFront
		if len(w.ahead) > front {
			step = w.behind
		}
		err := step(ctx, poll)
		switch {
		case err == nil && len(w.ahead) == 0:
			return w.alive()
		case err == nil:
			if failures > 0 {
				r.Tell(nil)
			}
			failures = 0
			continue
		case errors.Is(err, errRemoved), errors.Is(err, errSession), ctx.Err() != nil:
			return err
		}
		if w.answered.Elapsed() > w.patience() {
			return fmt.Errorf("etcdlock: no answer for %v while waiting: %w", w.answered.Elapsed().Round(time.Millisecond), err)
		}
		r.Tell(err)
		again := backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}.Delay(failures)
		if err := w.pause(ctx, again, poll, nil); err != nil {
			return err
		}
		failures++
	}
}

// inFront is the wait of the next few: it watches the line, knows who is ahead since,
// and returns when nobody is, without another look, or when it is time for one.
func (w *wait) inFront(ctx context.Context, poll *time.Timer) error {
	if w.view == nil {
		w.view = w.d.hub.view(w.dir, w.e.path)
		if err := w.look(ctx); err != nil || !w.isInFront() {
			w.close()
			return err
		}
	}
	defer w.close()
	v := w.view
	if err := w.pause(ctx, time.Second, poll, v.ready); err != nil {
		return err
	}
	if !isClosed(v.ready) {
		return nil // nothing is known of what came since
	}
	if !w.d.hub.covers(v.watch, w.seen) {
		if err := w.look(ctx); err != nil || !w.isInFront() {
			return err
		}
	}
	w.d.hub.expect(v, w.ahead, w.seen)
	if err := w.pause(ctx, w.nextLook(), poll, v.told); err != nil {
		return err
	}
	end := w.d.hub.verdict(v)
	if end == removed {
		return errRemoved
	}
	if end == first {
		w.ahead = nil
	}
	return nil
}

func (w *wait) isInFront() bool { return len(w.ahead) > 0 && len(w.ahead) <= front }

// behind is the wait of all others: it watches the last but one before us, whose end
// makes us the next, and returns then or when it is time to look again. So what the
// next one must know is found out while the one before it holds the key.
func (w *wait) behind(ctx context.Context, poll *time.Timer) error {
	far := w.ahead[1]
	ahead := w.d.hub.watch(far)
	defer w.d.hub.unwatch(ahead, false)
	still := func() bool { return len(w.ahead) > front && w.ahead[1] == far }
	if err := w.look(ctx); err != nil || !still() {
		return err
	}
	if err := w.pause(ctx, time.Second, poll, ahead.ready); err != nil {
		return err
	}
	if !w.d.hub.covers(ahead, w.seen) {
		if err := w.look(ctx); err != nil || !still() {
			return err
		}
	}
	if err := w.pause(ctx, w.nextLook(), poll, ahead.gone); err != nil {
		return err
	}
	if isClosed(ahead.gone) {
		w.ahead = w.ahead[:1]
	}
	return nil
}

// nextLook is when to look again although no watch says anything: a watch that died
// in silence costs a delay and never a hang.
func (w *wait) nextLook() time.Duration {
	return backoff.Jitter(min(w.s.ttl, 4*time.Second), 0.2)
}

// pause waits for the event, for the end of our session or context, or for d.
func (w *wait) pause(ctx context.Context, d time.Duration, poll *time.Timer, event <-chan struct{}) error {
	poll.Reset(d)
	select {
	case <-event:
	case <-poll.C:
	case <-w.s.dead:
		return errSession
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// alive refuses a grant in a session that may have ended.
func (w *wait) alive() error {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if w.s.over {
		return errSession
	}
	if w.s.left() <= 0 {
		return errors.New("etcdlock: the session was not renewed in time")
	}
	return nil
}

// leave deletes the key of a request that is given up, in a time of its own. Where
// that fails, the key is still in the entries, and the next audit removes it; or
// its session is used for nothing else, and ends.
func (d *Driver) leave(ctx context.Context, s *session, e *entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	_, err := d.txn(ctx).If(created(e.path, 0)).Then(clientv3.OpDelete(e.path)).Commit()
	if err == nil {
		d.forget(e)
		return nil
	}
	d.settle(e, 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	alone := true
	for _, other := range d.entries {
		alone = alone && (other == e || other.s != s)
	}
	if alone {
		d.retire(s)
	}
	return fail("leave the line", err)
}
