package etcdlock

import (
	"context"
	"errors"
	"fmt"
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
			if ctx.Err() != nil {
				err = driver.NotApplied(ctx.Err())
			}
			return driver.Grant{}, err
		}
		e := d.enter(s, d.path(r.Key, r.Token), true)
		g, err := (&wait{d: d, s: s, e: e, dir: d.dir(r.Key)}).run(ctx, r)
		if !errors.Is(err, errSession) && !errors.Is(err, errRemoved) {
			return g, err
		}
		d.forget(e)
		if backoff.Wait(ctx, backoff.Policy{Base: time.Millisecond, Max: time.Second}.Delay(try)) != nil {
			return driver.Grant{}, driver.NotApplied(ctx.Err())
		}
	}
}

// wait is one stand in a line.
type wait struct {
	d        *Driver
	s        *session
	e        *entry
	dir      string
	rev      int64  // create revision of our key
	before   string // the key before ours
	watch    *watch // of that
	answered leaseclock.Instant
}

func (w *wait) run(ctx context.Context, r driver.Request) (driver.Grant, error) {
	defer func() { w.d.hub.unwatch(w.watch, false) }()
	err := w.lineUp(ctx, r)
	if err == nil && w.before != "" {
		err = w.untilFirst(ctx)
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

// lineUp puts our key and looks at the one before it. Reads of a line ask for the
// values too, because etcd leaves the lease out of a read of keys only.
func (w *wait) lineUp(ctx context.Context, r driver.Request) error {
	fresh := w.s.refresh(false)
	call, cancel := late(ctx)
	defer cancel()
	resp, err := w.d.txn(call).Then(
		clientv3.OpPut(w.e.path, newRecord(r), clientv3.WithLease(w.s.id)),
		clientv3.OpGet(w.dir, clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2)),
	).Commit()
	if err != nil {
		return w.d.failed(w.s, w.e, "line up", err)
	}
	w.answered = leaseclock.Now()
	kvs := resp.Responses[1].GetResponseRange().Kvs
	if string(kvs[0].Key) == w.e.path && (len(kvs) == 1 || w.d.ours(kvs[1])) {
		w.rev = kvs[0].CreateRevision
		if len(kvs) == 2 {
			w.before = string(kvs[1].Key)
			return nil
		}
		if err := fresh.wait(ctx); errors.Is(err, errSession) {
			return errSession
		}
		return nil
	}
	// A key of others, or ours has been in line before.
	all, err := w.d.client.Get(clientv3.WithRequireLeader(ctx), w.dir, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("etcdlock: line up: %w", err)
	}
	return w.place(w.d.line(all.Kvs))
}

// place finds our key in the line, and the one before it.
func (w *wait) place(line []*mvccpb.KeyValue) error {
	w.before = ""
	for _, kv := range line {
		if string(kv.Key) == w.e.path && (w.rev == 0 || w.rev == kv.CreateRevision) {
			w.rev = kv.CreateRevision
			return nil
		}
		w.before = string(kv.Key)
	}
	return errRemoved
}

// look asks whether our key is the one that we made, and which is before it. It is
// asked once after a watch has begun, and before every grant.
func (w *wait) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	mine := created(w.e.path, w.rev)
	if mutation.On("etcd-revision-check") {
		mine = clientv3.Compare(clientv3.CreateRevision(w.e.path), ">", -1)
	}
	earlier := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithMaxCreateRev(w.rev - 1)}
	last := append(earlier, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(1))
	resp, err := w.d.txn(ctx).If(mine).Then(clientv3.OpGet(w.dir, last...)).Commit()
	if err != nil {
		return fail("look at the line", err)
	}
	w.answered = leaseclock.Now()
	if !resp.Succeeded {
		return errRemoved
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		w.before = ""
		return nil
	case w.d.ours(kvs[0]):
		w.before = string(kvs[0].Key)
		return nil
	}
	all, err := w.d.client.Get(clientv3.WithRequireLeader(ctx), w.dir, clientv3.WithPrefix())
	if err != nil {
		return fail("look at the line", err)
	}
	return w.place(w.d.line(all.Kvs))
}

// untilFirst returns nil when our key is the first.
func (w *wait) untilFirst(ctx context.Context) error {
	d := w.d
	own := d.hub.watch(w.e.path, 0)
	d.mu.Lock()
	kept := d.entries[w.e.path] == w.e
	if kept {
		w.e.watch = own // for as long as we have the key
	}
	d.mu.Unlock()
	if !kept {
		d.hub.unwatch(own, false)
		return errSession
	}
	watched, failures := "", 0
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		if watched != w.before {
			d.hub.unwatch(w.watch, false)
			w.watch, watched = d.hub.watch(w.before, 0), w.before
			// From now on, so what came before must be looked for once it has begun.
			if err := w.pause(ctx, w.watch.ready, own, time.Second, poll); err != nil {
				return err
			}
		} else if err := w.pause(ctx, w.watch.gone, own, w.nextLook(failures), poll); err != nil {
			return err
		}
		err := w.look(ctx)
		switch {
		case err == nil && w.before == "":
			return w.alive()
		case err == nil:
			failures = 0
		case errors.Is(err, errRemoved), ctx.Err() != nil:
			return err
		default:
			failures++
			if w.answered.Elapsed() > min(w.s.ttl, 5*time.Second) {
				return fmt.Errorf("etcdlock: no answer for %v while waiting: %w", w.answered.Elapsed().Round(time.Millisecond), err)
			}
		}
	}
}

// nextLook is when to look again although no watch says anything: a watch that died
// in silence costs a delay and never a hang.
func (w *wait) nextLook(failures int) time.Duration {
	if failures > 0 {
		return backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}.Delay(failures - 1)
	}
	return backoff.Jitter(min(w.s.ttl, 4*time.Second), 0.2)
}

// pause waits for the event, for the end of our key, session or context, or for d.
func (w *wait) pause(ctx context.Context, event <-chan struct{}, own *watch, d time.Duration, poll *time.Timer) error {
	poll.Reset(d)
	select {
	case <-event:
	case <-own.gone:
	case <-poll.C:
	case <-w.s.dead:
		return errSession
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
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
