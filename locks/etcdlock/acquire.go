package etcdlock

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// txn begins a transaction that is refused at once where etcd has no leader.
func (d *Driver) txn(ctx context.Context) clientv3.Txn {
	return d.client.Txn(clientv3.WithRequireLeader(ctx))
}

// grace is how much longer than its caller's context a request may take that puts a
// key. One that were given up in flight could reach etcd after the one that deletes
// its key.
const grace = 300 * time.Millisecond

// late returns a context that ends by grace later than ctx.
func late(ctx context.Context) (context.Context, context.CancelFunc) {
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return call, func() { stop(); cancel() }
}

// Acquire implements [driver.Driver] by one transaction, where there is a session.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ended(ctx, "acquire"); err != nil {
		return driver.Grant{}, err
	}
	for again := false; ; again = true {
		s, err := d.session(ctx, r.TTL)
		if err != nil {
			return driver.Grant{}, err
		}
		g, err := d.acquireIn(ctx, s, r)
		if errors.Is(err, errSession) && !again {
			continue
		}
		return g, err
	}
}

func (d *Driver) acquireIn(ctx context.Context, s *session, r driver.Request) (driver.Grant, error) {
	dir, path := d.dir(r.Key), d.path(r.Key, r.Token)
	e := d.enter(s, path, false)
	fresh := s.refresh(false)
	call, cancel := late(ctx)
	defer cancel()
	resp, err := d.txn(call).
		// Nobody who could hold the key: what has no lease is none of ours.
		If(clientv3.Compare(clientv3.LeaseValue(dir), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(path, newRecord(r), clientv3.WithLease(s.id)), clientv3.OpGet(dir, clientv3.WithPrefix())).
		Else(clientv3.OpGet(dir, clientv3.WithPrefix(), byArrival)).
		Commit()
	if err != nil {
		return driver.Grant{}, d.failed(s, e, "acquire", err)
	}
	kvs := resp.Responses[len(resp.Responses)-1].GetResponseRange().Kvs
	line := d.line(kvs)
	if !resp.Succeeded && len(line) == 0 {
		return d.acquireAmong(ctx, s, e, r)
	}
	if first := line[0]; string(first.Key) == path || mutation.On("etcd-exclusion") {
		return d.granted(ctx, s, e, first, fresh)
	}
	if find(line, path) == nil {
		d.forget(e)
	}
	return driver.Grant{}, &driver.HeldError{Holder: d.holder(line)}
}

// acquireAmong acquires where keys with a lease lie about that no lock made, which
// the condition cannot tell from ours: it stands in line and looks whether it is
// the first.
func (d *Driver) acquireAmong(ctx context.Context, s *session, e *entry, r driver.Request) (driver.Grant, error) {
	call, cancel := late(ctx)
	defer cancel()
	resp, err := d.txn(call).Then(
		clientv3.OpPut(e.path, newRecord(r), clientv3.WithLease(s.id)),
		clientv3.OpGet(d.dir(r.Key), clientv3.WithPrefix()),
	).Commit()
	if err != nil {
		return driver.Grant{}, d.failed(s, e, "acquire", err)
	}
	line := d.line(resp.Responses[1].GetResponseRange().Kvs)
	if string(line[0].Key) == e.path {
		return d.granted(ctx, s, e, line[0], nil)
	}
	if err := d.leave(ctx, s, e); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{}, &driver.HeldError{Holder: d.holder(line)}
}

// failed judges the error of a transaction that puts the key of e.
func (d *Driver) failed(s *session, e *entry, what string, err error) error {
	if sessionGone(err) {
		d.mu.Lock()
		s.die()
		d.mu.Unlock()
		d.forget(e)
		return driver.NotApplied(errSession)
	}
	err = fail(what, err)
	if driver.IsNotApplied(err) {
		d.forget(e)
	}
	return err
}

// granted makes a grant of the key that etcd has.
func (d *Driver) granted(ctx context.Context, s *session, e *entry, kv *mvccpb.KeyValue, fresh *flight) (driver.Grant, error) {
	if kv.Lease != int64(s.id) {
		return d.grantedBefore(ctx, e, kv)
	}
	d.mu.Lock()
	known := e.fence == kv.CreateRevision
	d.mu.Unlock()
	if known {
		fresh = s.refresh(true) // asked for again: it begins anew
	}
	if err := fresh.wait(ctx); errors.Is(err, errSession) {
		return driver.Grant{}, driver.NotApplied(errSession)
	} else if known && err != nil {
		return driver.Grant{}, err
	}
	d.settle(e, kv.CreateRevision)
	return driver.Grant{Fence: kv.CreateRevision, TTL: s.ttl, From: s.began()}, nil
}

// grantedBefore is the answer to a request whose key is of another session, of this
// process or another.
func (d *Driver) grantedBefore(ctx context.Context, e *entry, kv *mvccpb.KeyValue) (driver.Grant, error) {
	d.forget(e)
	sent := leaseclock.Now()
	resp, err := d.aliveOther(ctx, kv.Lease)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: kv.CreateRevision, TTL: time.Duration(resp) * time.Second, From: sent.Time()}, nil
}

// aliveOther renews a session that is not of this driver, and returns its TTL in
// seconds.
func (d *Driver) aliveOther(ctx context.Context, lease int64) (int64, error) {
	p := newPulse(d)
	defer p.stop()
	if _, err := p.beat(ctx, clientv3.LeaseID(lease)); err != nil {
		return 0, err
	}
	resp, err := d.client.TimeToLive(clientv3.WithRequireLeader(ctx), clientv3.LeaseID(lease))
	if err != nil {
		return 0, fail("look at a session", err)
	}
	return resp.GrantedTTL, nil
}

func find(line []*mvccpb.KeyValue, path string) *mvccpb.KeyValue {
	for _, kv := range line {
		if string(kv.Key) == path {
			return kv
		}
	}
	return nil
}

// Renew implements [driver.Driver].
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	err := d.RenewBatch(ctx, []driver.Hold{h})[0]
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// RenewBatch implements [driver.BatchRenewer] by two requests for each session, which
// is one for each TTL: a keep-alive, and a look at the session's keys.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	if err := ended(ctx, "renew"); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	ctx = clientv3.WithRequireLeader(ctx)
	paths := make([]string, len(holds))
	groups := map[*session][]int{}
	d.mu.Lock()
	for i, h := range holds {
		paths[i] = d.path(h.Key, h.Token)
		var s *session // nil for what this driver does not know
		if e := d.entries[paths[i]]; e != nil && e.fence == h.Fence {
			s = e.s
		}
		groups[s] = append(groups[s], i)
	}
	d.mu.Unlock()
	for s, group := range groups {
		if s == nil {
			for _, i := range group {
				errs[i] = d.renewUnknown(ctx, paths[i], holds[i])
			}
			continue
		}
		asked := leaseclock.Now()
		keys, err := s.renew(ctx)
		d.mu.Lock()
		for _, i := range group {
			e := d.entries[paths[i]]
			switch {
			case errors.Is(err, errSession):
				errs[i] = driver.ErrNotOurs
			case err != nil:
				errs[i] = fail("renew", err)
			case !keys[paths[i]] && !mutation.On("etcd-renew-token"):
				errs[i] = driver.ErrNotOurs
			case e != nil:
				e.asked = asked
			}
		}
		d.mu.Unlock()
	}
	return errs
}

// renewUnknown renews a hold by what etcd knows of it.
func (d *Driver) renewUnknown(ctx context.Context, path string, h driver.Hold) error {
	resp, err := d.client.Get(ctx, path)
	switch {
	case err != nil:
		return fail("renew", err)
	case len(resp.Kvs) == 0:
		return driver.ErrNotOurs
	case resp.Kvs[0].CreateRevision != h.Fence && !mutation.On("etcd-renew-token"):
		return driver.ErrNotOurs
	}
	if _, err := d.aliveOther(ctx, resp.Kvs[0].Lease); errors.Is(err, errSession) {
		return driver.ErrNotOurs
	} else if err != nil {
		return err
	}
	return nil
}

// Release implements [driver.Driver] by one transaction.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := ended(ctx, "release"); err != nil {
		return 0, err
	}
	dir, path := d.dir(h.Key), d.path(h.Key, h.Token)
	mine, gone := created(path, h.Fence), clientv3.OpDelete(path)
	if mutation.On("etcd-release-token") {
		mine = clientv3.Compare(clientv3.LeaseValue(dir), ">", 0).WithPrefix()
		gone = clientv3.OpDelete(dir, clientv3.WithPrefix())
	}
	resp, err := d.txn(ctx).If(mine).Then(gone).Else(clientv3.OpGet(dir, clientv3.WithPrefix())).Commit()
	if err != nil {
		return 0, fail("release", err)
	}
	out := driver.ReleasedOK
	var line []*mvccpb.KeyValue
	if !resp.Succeeded {
		out = driver.ReleasedGone
		if line = d.line(resp.Responses[0].GetResponseRange().Kvs); len(line) > 0 {
			out = driver.ReleasedOther
		}
	}
	if find(line, path) == nil {
		d.mu.Lock()
		if e := d.entries[path]; e != nil {
			d.drop(e, false)
		}
		d.mu.Unlock()
	}
	return out, nil
}
