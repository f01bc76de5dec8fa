package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks/driver"
)

// session is a lease of etcd, which all holds and waits of one TTL share.
type session struct {
	d       *Driver
	seconds int64 // as asked for
	id      clientv3.LeaseID
	ttl     time.Duration // as granted
	pulse   *pulse
	dead    chan struct{} // closed when etcd has ended it, or the driver was closed

	// The Driver's mu guards the rest.
	over       bool
	from       leaseclock.Instant // when the last request was sent by which its TTL began anew
	refreshing *flight
	waiters    int
	keeping    bool
}

// entry is one key of etcd that the driver has asked for.
type entry struct {
	s       *session
	path    string
	fence   int64 // 0 until known
	waiting bool
	asked   leaseclock.Instant // when its last grant or renewal was asked for
	watch   *watch             // of the key itself; nil if nobody watches
}

// flight is an operation that several callers wait for.
type flight struct {
	done chan struct{}
	s    *session
	err  error
}

// session returns the session for a TTL, a new one where there is none that lives.
func (d *Driver) session(ctx context.Context, ttl time.Duration) (*session, error) {
	seconds := max(int64((ttl+time.Second-1)/time.Second), 1)
	d.mu.Lock()
	if s := d.sessions[seconds]; s != nil {
		if s.left() > 0 {
			d.mu.Unlock()
			return s, nil
		}
		d.retire(s)
	}
	f := d.opening[seconds]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		if !d.spawn(func() { d.open(seconds, f) }) {
			d.mu.Unlock()
			return nil, driver.NotApplied(errClosed)
		}
		d.opening[seconds] = f
	}
	d.mu.Unlock()
	select {
	case <-f.done:
		return f.s, f.err
	case <-ctx.Done():
		return nil, driver.NotApplied(fmt.Errorf("etcdlock: open a session: %w", context.Cause(ctx)))
	}
}

// open makes a session. It has a time limit of its own, so that a caller that goes
// away does not take the session from those who wait for it too.
func (d *Driver) open(seconds int64, f *flight) {
	ctx, cancel := context.WithTimeout(d.life, min(time.Duration(seconds)*time.Second/2, 5*time.Second))
	defer cancel()
	sent := leaseclock.Now()
	resp, err := d.client.Grant(ctx, seconds)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.opening, seconds)
	if err != nil {
		// A lease without keys is nothing to settle.
		f.err = driver.NotApplied(fmt.Errorf("etcdlock: open a session: %w", err))
	} else {
		s := &session{
			d: d, seconds: seconds, id: resp.ID, ttl: time.Duration(resp.TTL) * time.Second,
			pulse: newPulse(d), dead: make(chan struct{}), from: sent,
		}
		d.sessions[seconds] = s
		f.s = s
	}
	close(f.done)
}

// left is the time for which the session surely lives. The caller holds mu.
func (s *session) left() time.Duration {
	if s.over {
		return 0
	}
	return s.ttl - s.from.Elapsed()
}

// began is a moment at which the session's TTL had not begun to run yet, moved by
// what the machine was suspended since.
func (s *session) began() time.Time {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return time.Now().Add(-s.from.Elapsed())
}

// retire takes a session out of use, and ends it at etcd where that can be done.
// The caller holds mu.
func (d *Driver) retire(s *session) {
	if d.sessions[s.seconds] == s {
		delete(d.sessions, s.seconds)
	}
	d.spawn(func() {
		ctx, cancel := context.WithTimeout(d.life, 5*time.Second)
		defer cancel()
		_, err := d.client.Revoke(ctx, s.id)
		if err == nil || sessionGone(err) {
			d.mu.Lock()
			s.die()
			d.mu.Unlock()
		}
	})
}

// die is the end of a session as etcd tells it: so much for its holds. The caller
// holds mu.
func (s *session) die() {
	if s.over {
		return
	}
	s.over = true
	close(s.dead)
	s.pulse.stop()
	if s.d.sessions[s.seconds] == s {
		delete(s.d.sessions, s.seconds)
	}
	for _, e := range s.d.entries {
		if e.s == s {
			s.d.drop(e, true)
		}
	}
}

// enter notes that path is about to be asked for. The caller need not hold mu.
func (d *Driver) enter(s *session, path string, waiting bool) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[path]
	if e == nil {
		e = &entry{path: path}
		d.entries[path] = e
	}
	if e.waiting {
		e.s.waiters--
	}
	if waiting {
		s.waiters++
		s.keep()
	}
	e.s, e.waiting, e.asked = s, waiting, leaseclock.Now()
	return e
}

// settle makes a hold of an entry, or what may be one while fence is 0.
func (d *Driver) settle(e *entry, fence int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.waiting {
		e.waiting = false
		e.s.waiters--
	}
	e.fence, e.asked = fence, leaseclock.Now()
}

// drop ends the care for an entry; lost tells those who watch it. The caller holds
// mu.
func (d *Driver) drop(e *entry, lost bool) {
	if d.entries[e.path] != e {
		return
	}
	delete(d.entries, e.path)
	if e.waiting {
		e.waiting = false
		e.s.waiters--
	}
	d.hub.unwatch(e.watch, lost)
	e.watch = nil
}

func (d *Driver) forget(e *entry) {
	d.mu.Lock()
	d.drop(e, false)
	d.mu.Unlock()
}

// refresh starts a keep-alive beside the request of a caller, where the last one
// was a while ago, so that the grant does not begin with a half-spent TTL. It
// returns nil where none is needed.
func (s *session) refresh(always bool) *flight {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if f := s.refreshing; f != nil && !always {
		return f
	}
	if !always && s.from.Elapsed() < s.ttl/6 {
		return nil
	}
	f := &flight{done: make(chan struct{})}
	started := s.d.spawn(func() {
		ctx, cancel := context.WithTimeout(s.d.life, s.ttl/3)
		defer cancel()
		f.err = s.keepAlive(ctx)
		s.d.mu.Lock()
		if s.refreshing == f {
			s.refreshing = nil
		}
		s.d.mu.Unlock()
		close(f.done)
	})
	if !started {
		return nil
	}
	s.refreshing = f
	return f
}

// wait waits for the end of f, which may be nil, or of ctx.
func (f *flight) wait(ctx context.Context) error {
	if f == nil {
		return nil
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// keepAlive renews the session; errSession means that it has ended.
func (s *session) keepAlive(ctx context.Context) error {
	sent, err := s.pulse.beat(ctx, s.id)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case errors.Is(err, errSession):
		s.die()
	case err == nil && sent.Since(s.from) > 0:
		s.from = sent
	}
	return err
}

// renew is one round: a keep-alive, and beside it a look at the keys that etcd has
// of this session. A hold whose key is not among them has ended; a key that nobody
// here knows is left of a request that was given up and came late, and is removed.
func (s *session) renew(ctx context.Context) (keys map[string]bool, err error) {
	d := s.d
	sent := leaseclock.Now()
	alive := make(chan error, 1)
	if !d.background(func() { alive <- s.keepAlive(ctx) }) {
		return nil, driver.NotApplied(errClosed)
	}
	resp, err := d.client.TimeToLive(ctx, s.id, clientv3.WithAttachedKeys())
	if beat := <-alive; beat != nil {
		return nil, beat
	}
	if err != nil {
		return nil, err
	}
	if resp.TTL < 0 {
		d.mu.Lock()
		s.die()
		d.mu.Unlock()
		return nil, errSession
	}
	keys = make(map[string]bool, len(resp.Keys))
	for _, k := range resp.Keys {
		keys[string(k)] = true
	}
	s.audit(keys, sent)
	return keys, nil
}

// audit compares the entries with the keys that etcd had after sent.
func (s *session) audit(keys map[string]bool, sent leaseclock.Instant) {
	d := s.d
	var left []string
	d.mu.Lock()
	for path := range keys {
		if _, _, ok := d.parse([]byte(path)); ok && d.entries[path] == nil {
			left = append(left, path)
		}
	}
	for _, e := range d.entries {
		switch {
		case e.s != s || e.waiting:
		case e.fence > 0 && !keys[e.path] && sent.Since(e.asked) > 0:
			d.drop(e, true)
		case e.asked.Elapsed() > s.ttl+s.ttl/4:
			// Not renewed for a TTL, while the session lived on for others: over.
			d.drop(e, true)
			left = append(left, e.path)
		}
	}
	if len(left) > 0 {
		d.spawn(func() { d.remove(left) })
	}
	d.mu.Unlock()
}

// maxOps is how many operations etcd takes in one transaction.
const maxOps = 128

// remove deletes keys that are nobody's any more. What fails is found again by the
// next audit.
func (d *Driver) remove(paths []string) {
	ctx, cancel := context.WithTimeout(d.life, 5*time.Second)
	defer cancel()
	for len(paths) > 0 {
		n := min(len(paths), maxOps)
		ops := make([]clientv3.Op, n)
		for i, path := range paths[:n] {
			ops[i] = clientv3.OpDelete(path)
		}
		if _, err := d.client.Txn(ctx).Then(ops...).Commit(); err != nil {
			d.log.Warn("etcdlock: cannot remove keys that were given up; trying again later", "keys", len(paths), "error", err)
			return
		}
		paths = paths[n:]
	}
}

// keep starts the goroutine that renews the session for as long as somebody waits:
// holds are renewed by their owner, and waits by nobody else. The caller holds mu.
func (s *session) keep() {
	if s.keeping {
		return
	}
	s.keeping = s.d.spawn(func() {
		failures := 0
		for {
			s.d.mu.Lock()
			pause := backoff.Jitter(s.ttl/3, 0.1) - s.from.Elapsed()
			if failures > 0 {
				pause = backoff.Policy{Base: s.ttl / 20, Max: s.ttl / 4}.Delay(failures - 1)
			}
			s.d.mu.Unlock()
			if backoff.Wait(s.d.life, pause) != nil {
				return
			}
			s.d.mu.Lock()
			if s.waiters == 0 || s.over {
				s.keeping = false
				s.d.mu.Unlock()
				return
			}
			fresh := s.from.Elapsed() < s.ttl/4 // somebody renewed it meanwhile
			s.d.mu.Unlock()
			if fresh {
				continue
			}
			ctx, cancel := context.WithTimeout(s.d.life, min(s.ttl/5, time.Second))
			if _, err := s.renew(ctx); err != nil {
				failures++
			} else {
				failures = 0
			}
			cancel()
		}
	})
}

// pulse sends keep-alives, one at a time, over a stream that it keeps open while
// they come: with a user and password, each new stream makes etcd compute a hash
// that is slow on purpose. The client's own KeepAliveOnce opens one each time, and
// repeats without a pause while etcd is away.
type pulse struct {
	d      *Driver
	turn   chan struct{} // of capacity 1: whose turn it is, has the rest
	stream pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
	idle   *time.Timer
}

func newPulse(d *Driver) *pulse { return &pulse{d: d, turn: make(chan struct{}, 1)} }

// beat renews the lease and returns when the request was sent.
func (p *pulse) beat(ctx context.Context, id clientv3.LeaseID) (sent leaseclock.Instant, err error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return sent, fmt.Errorf("etcdlock: keep alive: %w", context.Cause(ctx))
	}
	defer func() { <-p.turn }()
	for fresh := false; ; {
		if p.stream == nil {
			fresh = true
			var life context.Context
			life, p.cancel = context.WithCancel(p.d.life)
			cut := context.AfterFunc(ctx, p.cancel)
			p.stream, err = p.d.leases.LeaseKeepAlive(life)
			cut()
			if err != nil {
				p.hangUp()
				return sent, fmt.Errorf("etcdlock: keep alive: %w", err)
			}
		}
		sent = leaseclock.Now()
		resp, err := p.ask(ctx, id)
		switch {
		case err == nil && resp.TTL <= 0:
			return sent, errSession
		case err == nil:
			p.restUntilUsed()
			return sent, nil
		}
		p.hangUp()
		if sessionGone(err) {
			return sent, errSession
		}
		// The end of an old stream says nothing of the server as it is now.
		if fresh || ctx.Err() != nil {
			return sent, fmt.Errorf("etcdlock: keep alive: %w", rpctypes.Error(err))
		}
	}
}

func (p *pulse) ask(ctx context.Context, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	defer context.AfterFunc(ctx, p.cancel)()
	if err := p.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return p.stream.Recv() // tells why, where Send met the end of the stream
}

// hangUp closes the stream. The caller has the turn.
func (p *pulse) hangUp() {
	if p.cancel != nil {
		p.cancel()
	}
	p.stream, p.cancel = nil, nil
}

// linger is how long a stream is kept that is not used. It spans the pauses between
// the renewals of most TTLs.
const linger = time.Minute

// restUntilUsed closes the stream when it was not used for a while. The caller has
// the turn.
func (p *pulse) restUntilUsed() {
	if p.idle == nil {
		p.idle = time.AfterFunc(linger, p.stop)
	} else {
		p.idle.Reset(linger)
	}
}

// stop closes the stream, unless it is in use; then its end is the context's.
func (p *pulse) stop() {
	select {
	case p.turn <- struct{}{}:
		p.hangUp()
		<-p.turn
	default:
	}
}
