package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// attempt is one acquire: it outlives a caller that gave up, so that its node is
// not left behind, and serves one that comes again with the same token.
type attempt struct {
	d      *Driver
	r      driver.Request
	queued bool
	dir    string
	ctx    context.Context // ends when nobody waits for it
	cancel context.CancelFunc
	stands chan struct{} // closed when the key turns out to be held
	stood  sync.Once
	done   chan struct{}
	after  *attempt // one of the same token that was given up and has not ended; or nil

	wanted int  // callers; the Driver's mu guards it and the next
	over   bool // grant and err are set
	grant  driver.Grant
	err    error
}

// Acquire implements [driver.Driver] in two round trips: the node is made and the line
// read behind it, then the node is looked at. A key that was held at the last look is
// read first, so that who asks for it again and again writes nothing.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return d.acquire(ctx, r, false)
}

// AcquireQueued implements [driver.Queuer]: the line is ZooKeeper's, first come
// first served. It watches no more than two of those ahead; when the last of them
// goes, that is the grant, without another request. A session that has had no answer
// for a TTL ends the wait.
func (d *Driver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return d.acquire(ctx, r, true)
}

// leaveTimeout is how long a caller that gave up its place is kept to hear that
// the node is gone.
const leaveTimeout = 250 * time.Millisecond

func (d *Driver) acquire(ctx context.Context, r driver.Request, queued bool) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("zklock: acquire: %w", context.Cause(ctx)))
	}
	a, h := d.attempt(r, queued)
	if h != nil {
		errs := []error{nil}
		d.confirm(ctx, []*hold{h}, errs)
		if errors.Is(errs[0], driver.ErrNotOurs) {
			return d.acquire(ctx, r, queued) // it is no longer known: a new grant
		}
		return driver.Grant{Fence: h.fence, TTL: d.granted(r.TTL)}, errs[0]
	}
	if a == nil {
		return driver.Grant{}, driver.NotApplied(errClosed)
	}
	for stands := a.stands; ; stands = nil {
		select {
		case <-stands:
			r.Tell(nil)
			continue
		case <-a.done:
			return a.grant, a.err
		case <-ctx.Done():
		}
		break
	}
	d.mu.Lock()
	over := a.over
	if a.wanted--; a.wanted == 0 && !over {
		a.cancel()
	}
	d.mu.Unlock()
	if over {
		<-a.done
		return a.grant, a.err
	}
	d.wire.cutIfSilent(d.silence())
	if queued {
		t := time.NewTimer(leaveTimeout)
		defer t.Stop()
		select {
		case <-a.done:
			if driver.IsNotApplied(a.err) {
				return driver.Grant{}, driver.NotApplied(fmt.Errorf("%w: %v", ctx.Err(), a.err)) //nolint:errorlint // that the attempt ended is our doing
			}
		case <-t.C:
		}
		return driver.Grant{}, ctx.Err()
	}
	return driver.Grant{}, fmt.Errorf("zklock: acquire: %w", context.Cause(ctx))
}

// attempt returns the hold that the token has, or the attempt under way for it, or
// a new one; nothing when the driver is closed.
func (d *Driver) attempt(r driver.Request, queued bool) (*attempt, *hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holds[r.Token]; h != nil && d.isOf(h, r.Key) {
		return nil, h
	}
	if a := d.attempts[r.Token]; a != nil && a.r.Key == r.Key && a.ctx.Err() == nil {
		a.wanted++
		return a, nil
	}
	if d.closed {
		return nil, nil
	}
	a := &attempt{d: d, r: r, queued: queued, dir: d.dir(r.Key), stands: make(chan struct{}), done: make(chan struct{}), wanted: 1}
	if before := d.attempts[r.Token]; before != nil && before.ctx.Err() != nil {
		a.after = before
	}
	a.ctx, a.cancel = context.WithCancel(d.ctx)
	d.attempts[r.Token] = a
	d.wg.Go(a.run)
	return a, nil
}

func (d *Driver) dir(key string) string { return d.prefix + "/" + nodeName(key) }

func (a *attempt) run() {
	if a.after != nil {
		<-a.after.done // at once, or when its create is answered
		a.after = nil
	}
	h, grant, err := a.seek()
	d := a.d
	d.mu.Lock()
	for err == nil && a.ctx.Err() != nil {
		d.mu.Unlock()
		err = a.leave(h, fmt.Errorf("zklock: acquire: %w", context.Cause(a.ctx)))
		d.mu.Lock()
	}
	a.grant, a.err, a.over = grant, err, true
	if d.attempts[a.r.Token] == a {
		delete(d.attempts, a.r.Token)
	}
	if err == nil {
		h.granted = true
		if h.gone { // between the last look and now: the holder hears it at once
			d.ended[h.token] = struct{}{}
		} else {
			d.hold(h)
			d.planExpiry(h.until().Time())
		}
	}
	d.mu.Unlock()
	a.cancel()
	close(a.done)
}

// seek gets the key, or leaves nothing: whatever ends it, the own node is deleted,
// or on the list of those that are deleted as soon as that can be.
func (a *attempt) seek() (*hold, driver.Grant, error) {
	ctx, cancel := a.step()
	err := a.d.settleGhosts(ctx, a.r.Token)
	cancel()
	if err != nil {
		return nil, driver.Grant{}, unmarked(fmt.Errorf("zklock: acquire: an earlier one with this token is not settled: %w", err))
	}
	if !a.queued && a.d.wasHeld(a.r.Key) {
		holder, err := a.d.holder(a.ctx, a.dir, a.r.Key)
		switch {
		case err == nil && holder.Token != a.r.Token:
			return nil, driver.Grant{}, &driver.HeldError{Holder: holder}
		case err != nil && !errors.Is(err, driver.ErrFree):
			return nil, driver.Grant{}, driver.NotApplied(err) // nothing but reads
		}
	}
	for try := 0; ; try++ {
		h, sent, early, err := a.enqueue()
		if err != nil {
			return nil, driver.Grant{}, err
		}
		grant, err := a.advance(h, sent, early)
		if err == nil {
			a.d.sawHeld(a.r.Key, false)
			return h, grant, nil
		}
		if errors.Is(err, errGone) && (a.queued || try == 0) && backoff.Wait(a.ctx, backoff.Policy{}.Delay(try)) == nil {
			continue // somebody deleted the node, or the session ended: a new place
		}
		if held, ok := errors.AsType[*driver.HeldError](err); ok {
			_ = a.withdraw(h) // held all the same; the reaper sees to the node
			return nil, driver.Grant{}, held
		}
		return nil, driver.Grant{}, a.leave(h, err)
	}
}

// leave withdraws, and marks err as not applied if the node is gone for certain.
func (a *attempt) leave(h *hold, err error) error {
	if left := a.withdraw(h); left != nil {
		return unmarked(err, left)
	}
	return driver.NotApplied(err)
}

// unmarked joins errors of which one may be marked as not applied, when that is
// not true of the whole.
func unmarked(errs ...error) error { return errors.New(errors.Join(errs...).Error()) }

// errGone says that the own node is not there any more.
var errGone = errors.New("zklock: acquire: the own node was deleted or its session ended")

// maxCreates bounds how often the node is made anew after a clear answer that it
// was not made.
const maxCreates = 4

// lookAhead is a read of the line that is under way.
type lookAhead struct {
	cancel context.CancelFunc
	done   chan struct{}
	line   []member
	err    error
}

// lookAhead begins to read the line, when after is closed; nil if the driver is closed.
func (a *attempt) lookAhead(after <-chan struct{}) *lookAhead {
	if !a.d.enter() {
		return nil
	}
	ctx, cancel := a.step()
	l := &lookAhead{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer a.d.wg.Done()
		defer close(l.done)
		select {
		case <-after:
			l.line, l.err = a.d.line(ctx, a.dir, false)
		case <-ctx.Done():
			l.err = ctx.Err()
		}
	}()
	return l
}

// wait returns the line.
func (l *lookAhead) wait() ([]member, error) {
	if l == nil {
		return nil, errClosed
	}
	<-l.done
	l.cancel()
	return l.line, l.err
}

// enqueue makes the own node. When it fails the node is not there, or on the list.
// Right behind the create goes a read of the line, so that both take one round trip: a
// server carries out what a session asks for in the order in which it comes.
func (a *attempt) enqueue() (h *hold, sent leaseclock.Instant, early *lookAhead, err error) {
	d := a.d
	data := nodeData(a.r.Label)
	var failure error
	for range maxCreates {
		ctx, cancel := a.step()
		_, err := d.ready(ctx)
		cancel()
		if err != nil {
			return nil, leaseclock.Instant{}, nil, err
		}
		d.mu.Lock()
		session := d.session
		d.mu.Unlock()
		sent := leaseclock.Now()
		name := a.dir + "/" + a.r.Token.String() + infix
		early := a.lookAhead(d.wire.leaving(name))
		// In this goroutine, which has no caller to obey. A silent server is left for
		// another connection, which answers what became of the node.
		impatient := time.AfterFunc(3*d.pulse(), func() { d.wire.cutIfSilent(d.silence()) })
		path, err := d.conn.Create(name, data, zk.FlagEphemeralSequential, d.acl)
		impatient.Stop()
		d.wire.left(name)
		if err == nil {
			return a.place(path), sent, early, nil
		}
		if early != nil {
			early.cancel()
		}
		switch {
		case errors.Is(err, zk.ErrNoNode):
			ctx, cancel := a.step()
			err := d.makeKey(ctx, a.dir)
			cancel()
			if err != nil {
				return nil, sent, nil, driver.NotApplied(err)
			}
			failure = d.explain("acquire", err)
			continue
		case notApplied(err):
			if !errors.Is(err, zk.ErrSessionExpired) && !errors.Is(err, zk.ErrSessionMoved) {
				return nil, sent, nil, d.explain("acquire", err)
			}
			failure = driver.NotApplied(fmt.Errorf("zklock: acquire: %w", err))
			continue
		}
		failure = fmt.Errorf("zklock: acquire: %w", err)
		path, err = a.settle(session)
		switch {
		case err != nil:
			d.mu.Lock()
			d.bury(&ghost{dir: a.dir, token: a.r.Token})
			d.mu.Unlock()
			return nil, sent, nil, unmarked(failure, err)
		case path != "":
			return a.place(path), sent, nil, nil
		}
		failure = driver.NotApplied(failure)
	}
	return nil, leaseclock.Instant{}, nil, failure
}

// settle finds out what became of a create that was not answered: the path of the
// node, if it was made and is this session's.
func (a *attempt) settle(session int64) (string, error) {
	ctx, cancel := a.step()
	defer cancel()
	for try := 0; ; try++ {
		path, err := a.settleOnce(ctx, session)
		if err == nil {
			return path, nil
		}
		if backoff.Wait(ctx, backoff.Policy{Base: 10 * time.Millisecond, Max: time.Second}.Delay(try)) != nil {
			return "", err
		}
	}
}

func (a *attempt) settleOnce(ctx context.Context, session int64) (string, error) {
	d := a.d
	line, err := d.line(ctx, a.dir, true)
	if err != nil {
		return "", err
	}
	for _, m := range ofToken(line, a.r.Token) {
		path := a.dir + "/" + m.name
		stat, err := call(ctx, d, "look for the own node", func() (*zk.Stat, error) {
			_, stat, err := d.conn.Get(path)
			return stat, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return "", err
		}
		d.mu.Lock()
		ours := d.session == session && stat.EphemeralOwner == session
		d.mu.Unlock()
		if ours || mutation.On("zk-owner-check") {
			return path, nil
		}
		if _, err := d.delete(ctx, path); err != nil { // the next one would stand behind it
			return "", err
		}
	}
	return "", nil
}

// place enters the own node among those of the session.
func (a *attempt) place(path string) *hold {
	h := &hold{path: path, token: a.r.Token, ttl: a.r.TTL}
	if cut := a.d.granted(h.ttl); cut > 0 {
		h.ttl = cut
	}
	a.d.mu.Lock()
	a.d.nodes[path] = h
	a.d.mu.Unlock()
	return h
}

// advance looks at the line, and waits where that is wanted, until the own node is
// the first. Early is a look under way, if there is one.
func (a *attempt) advance(h *hold, sent leaseclock.Instant, early *lookAhead) (driver.Grant, error) {
	me, ok := parseMember(h.path[strings.LastIndexByte(h.path, '/')+1:])
	if !ok {
		return driver.Grant{}, fmt.Errorf("zklock: acquire: the server named the node %q, which is none of ours", h.path)
	}
	for try := 0; ; try++ {
		at, line, err := a.lookAround(h, me, early)
		early = nil
		if err == nil && at.ahead == 0 {
			err = a.lookAtOwn(h)
		}
		if err != nil {
			if a.transient(err, try) {
				continue
			}
			return driver.Grant{}, err
		}
		switch {
		case at.ahead == 0 || mutation.On("zk-exclusion"):
			return a.granted(h, sent), nil
		case !a.queued:
			return driver.Grant{}, a.held(line)
		}
		a.stood.Do(func() { close(a.stands) })
		from, granted, err := a.wait(h, at)
		if err != nil {
			if a.transient(err, try) {
				continue
			}
			return driver.Grant{}, err
		}
		try = 0
		if granted {
			return a.granted(h, from), nil
		}
		if sent = from; a.ctx.Err() != nil {
			return driver.Grant{}, fmt.Errorf("zklock: acquire: %w", context.Cause(a.ctx))
		}
	}
}

// lookAround finds where the own node stands. A look that began early will do if the
// own node was there then; else the line is read, and the own node with it.
func (a *attempt) lookAround(h *hold, me member, early *lookAhead) (standing, []member, error) {
	if early != nil {
		if line, err := early.wait(); err == nil {
			if at := standingOf(line, me); at.present {
				return at, line, nil
			}
		}
	}
	now := make(chan struct{})
	close(now)
	look := a.lookAhead(now)
	own := a.lookAtOwn(h)
	line, err := look.wait()
	if err := cmp.Or(err, own); err != nil {
		return standing{}, nil, err
	}
	at := standingOf(line, me)
	if !at.present {
		return at, nil, errGone
	}
	return at, line, nil
}

// lookAtOwn reads the own node, unless a watch would have told of its end.
func (a *attempt) lookAtOwn(h *hold) error {
	d := a.d
	d.mu.Lock()
	watched, gone := h.watched, h.gone
	d.mu.Unlock()
	if !watched && !gone {
		ctx, cancel := a.step()
		defer cancel()
		if err := d.look(ctx, h); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case h.gone:
		return errGone
	case !h.watched:
		return errSuspended
	}
	return nil
}

// granted makes the hold a grant that began at from.
func (a *attempt) granted(h *hold, from leaseclock.Instant) driver.Grant {
	d := a.d
	d.mu.Lock()
	defer d.mu.Unlock()
	h.from = from
	g := driver.Grant{Fence: h.fence, From: from.Time()}
	if h.ttl != a.r.TTL {
		g.TTL = h.ttl
	}
	return g
}

// held says who has the key.
func (a *attempt) held(line []member) error {
	first, _ := head(line)
	d := a.d
	d.sawHeld(a.r.Key, true)
	h, err := d.describe(a.ctx, a.dir, a.r.Key, first)
	if err != nil { // it has gone meanwhile, or cannot be read: its name tells enough
		h = driver.Holder{Key: a.r.Key, Token: first.token}
	}
	return &driver.HeldError{Holder: h}
}

// withdraw deletes the own node; an error means that it is left to the reaper.
func (a *attempt) withdraw(h *hold) error {
	d := a.d
	d.mu.Lock()
	d.remove(h)
	gone := h.gone
	d.mu.Unlock()
	if gone {
		return nil
	}
	// Not a.ctx, which may have ended.
	ctx, cancel := context.WithTimeout(d.ctx, max(d.silence(), 100*time.Millisecond))
	defer cancel()
	_, err := d.delete(ctx, h.path)
	if err == nil || mutation.On("zk-withdraw") {
		return nil
	}
	d.mu.Lock()
	d.bury(&ghost{path: h.path, dir: a.dir, token: a.r.Token})
	d.mu.Unlock()
	return err
}

// seenHeldMax bounds the memory for keys that others hold.
const seenHeldMax = 1024

func (d *Driver) wasHeld(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.seenHeld[key]
	return ok
}

func (d *Driver) sawHeld(key string, held bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !held {
		delete(d.seenHeld, key)
		return
	}
	if len(d.seenHeld) >= seenHeldMax {
		clear(d.seenHeld)
	}
	d.seenHeld[key] = struct{}{}
}
