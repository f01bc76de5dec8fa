package sqllock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// WakeBy has those who wait listen to w where the key's holder did not come from the
// line. To be called before the driver is used. Without it they look more often.
func (d *Driver) WakeBy(w driver.Waker) { d.lines.waker = w }

// AcquireQueued implements [driver.Queuer]. Beside its place in the line a waiter
// looks at the row, so that no line can hold it up for longer than a lease lasts, and
// so that it knows from when its grant counts.
func (d *Driver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	w := &waiter{d: d, r: r}
	defer w.end()
	g, err := w.look(ctx)
	if w.holder == nil {
		return g, err
	}
	return w.wait(ctx)
}

// waiter is one call of AcquireQueued.
type waiter struct {
	d *Driver
	r driver.Request

	holder *driver.Holder // by the last look that was answered
	looked time.Time      // when that was sent: no grant of ours is older
	failed error          // of the last look, and the one before
	before error
	doubt  bool // a request since that look may have been granted the key
	looks  int  // since the wait, or the time as head, began

	place   *place // nil if none
	head    bool   // the place has the turn, and the key is held
	resting bool   // no place is wanted: the holder stays for long
	joined  time.Time
	fence   int64 // the holder's when it joined

	hint <-chan struct{}
	stop func()
}

func (w *waiter) wait(ctx context.Context) (driver.Grant, error) {
	for {
		g, done, err := w.step(ctx)
		switch {
		case err == nil && done:
			return g, nil
		case ctx.Err() != nil:
			return driver.Grant{}, w.leave(ctx, ctx.Err())
		case w.failed != nil && w.before != nil:
			return driver.Grant{}, w.leave(ctx, w.failed)
		}
	}
}

// step waits once, in line or for a hint, and reports whether the key was granted. An
// error that it returns is that of a look.
func (w *waiter) step(ctx context.Context) (driver.Grant, bool, error) {
	if w.place == nil && !w.resting {
		w.join(ctx)
	}
	if w.place != nil && !w.head {
		return w.stand(ctx)
	}
	if w.hint == nil && w.d.lines.waker != nil && w.subscribe(ctx) {
		return w.try(ctx) // it may have become free before
	}
	t := time.NewTimer(w.pause())
	defer t.Stop()
	select {
	case <-w.hint:
		if w.resting { // all hear it: the line has them try one after the other
			w.resting = false
			return driver.Grant{}, false, nil
		}
	case <-t.C:
	case <-ctx.Done():
		return driver.Grant{}, false, nil
	}
	return w.try(ctx)
}

// try looks, as the head or without a place.
func (w *waiter) try(ctx context.Context) (driver.Grant, bool, error) {
	g, err := w.look(ctx)
	switch {
	case err == nil:
		if w.place != nil {
			w.hold(ctx)
		}
		return g, true, nil
	case w.head && time.Since(w.joined) > lineLimit:
		w.passed(ctx)
	case w.resting && w.holder.Fence != w.fence:
		w.resting = false
	}
	return g, false, err
}

// look asks for the key as anybody would.
func (w *waiter) look(caller context.Context) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(caller, min(askLimit, max(w.r.TTL/2, 50*time.Millisecond)))
	defer cancel()
	sent := time.Now()
	w.looks++
	g, err := w.d.Acquire(ctx, w.r)
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		w.holder, w.looked, w.failed, w.before, w.doubt = &held.Holder, sent, nil, nil, false
		w.r.Tell(nil)
		return g, err
	}
	w.failed, w.before = err, w.failed
	w.doubt = w.doubt || err != nil && !driver.IsNotApplied(err)
	if err != nil && caller.Err() == nil {
		w.r.Tell(err)
	}
	g.From = sent
	return g, err
}

// pause is how long to wait before the next look.
func (w *waiter) pause() time.Duration {
	longest := time.Second
	switch {
	case w.place != nil && !w.head, w.hint != nil:
	case w.head: // nobody else waits for this holder to go
		return min(backoff.Policy{Base: 10 * time.Millisecond, Max: 250 * time.Millisecond}.Delay(w.looks), w.r.TTL/4)
	default:
		longest /= 4
	}
	longest = min(longest, w.r.TTL/4)
	pause := longest/2 + rand.N(longest/2+1)
	if w.holder.Remaining > 0 {
		pause = min(pause, w.holder.Remaining+1+rand.N(longest/8+1))
	}
	return max(pause, time.Millisecond)
}

// join takes a place, if there is one.
func (w *waiter) join(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	w.fence = w.holder.Fence
	if p, err := w.d.lines.place(ctx, w.d.conn); err == nil { // else it looks
		w.place = p
	}
}

// stand waits in line for the turn, and looks now and then meanwhile.
func (w *waiter) stand(ctx context.Context) (driver.Grant, bool, error) {
	// No context of the statement's ends it: it must be known what became of it.
	standing, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	over := make(chan struct{})
	interrupt := sync.OnceFunc(func() { w.interrupt(standing, over, abort) })
	leaving := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(leaving)
		interrupt()
	})
	var seen struct {
		grant driver.Grant
		done  bool
		err   error
	}
	looking, cancel := context.WithCancel(ctx)
	defer cancel()
	looked := make(chan struct{})
	first := time.AfterFunc(w.pause(), func() {
		defer close(looked)
		for {
			seen.grant, seen.err = w.look(looking)
			seen.done = seen.err == nil
			if seen.done || w.before != nil {
				interrupt()
				return
			}
			t := time.NewTimer(w.pause())
			select {
			case <-t.C:
			case <-over:
				t.Stop()
				return
			}
		}
	})

	w.joined = time.Now()
	t := w.d.await(standing, w.place, w.r)
	close(over)
	if !first.Stop() {
		late := time.AfterFunc(w.r.TTL/8, cancel)
		<-looked
		late.Stop()
	}
	if !unhook() {
		<-leaving
	}
	w.came(ctx, t)
	switch {
	case seen.done:
		if w.place != nil {
			w.hold(ctx)
		}
		return seen.grant, true, nil
	case t.err != nil:
		return driver.Grant{}, false, seen.err
	case ctx.Err() != nil: // it was granted as the caller left
		w.failed, w.doubt = errLate, true
		return driver.Grant{}, false, nil
	}
	g := t.grant
	if !mutation.On("line-grant-from") {
		g.From = w.joined
		if w.looked.After(w.joined) {
			g.From = w.looked
		}
	}
	w.hold(ctx)
	return g, true, nil
}

var errLate = errors.New("sqllock: granted as the caller left")

// interrupt ends the statement that stands in line: by asking, else with its
// connection.
func (w *waiter) interrupt(ctx context.Context, over <-chan struct{}, abort func()) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if w.d.lines.sql.interrupt(ctx, w.d.conn, w.place.id) == nil {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
	}
	abort()
}

// came does with the place what the answer of its statement asks for.
func (w *waiter) came(ctx context.Context, t turn) {
	switch {
	case t.err == nil:
	case t.ours:
		w.head, w.looks, w.joined = true, 0, time.Now()
		w.markHead(ctx)
	case t.sure:
		w.passed(ctx)
	default:
		w.d.lines.kill(w.place)
		w.place, w.resting = nil, true
		w.failed, w.doubt = t.err, true
	}
}

// passed goes on where the time in line is over: at its end where the line moves, else
// without a place, for the holder may stay for hours.
func (w *waiter) passed(ctx context.Context) {
	w.d.lines.clear(ctx, w.place)
	w.place, w.head = nil, false
	w.resting = w.holder.Fence == w.fence
}

// markHead lets others count this waiter, which waits for no session lock any more.
func (w *waiter) markHead(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	l := &w.d.lines
	if _, err := l.sql.each(ctx, w.place.conn.Conn, l.sql.lock, []any{l.headOf(w.r.Key)}); err != nil {
		l.kill(w.place)
		w.place, w.head, w.resting = nil, false, true
	}
}

// hold has the holder keep the turn, or what else the place has. It is no head any more.
func (w *waiter) hold(ctx context.Context) {
	p, l := w.place, &w.d.lines
	w.place = nil
	if w.head {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
		defer cancel()
		if _, err := l.sql.each(ctx, p.conn.Conn, l.sql.unlock, []any{l.headOf(w.r.Key)}); err != nil {
			l.kill(p)
			return
		}
	}
	l.keep(grant{w.r.Key, w.r.Token}, p)
}

// leave ends a wait without a grant, for a reason. It is marked as not applied where
// that is certain.
func (w *waiter) leave(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*askLimit)
	defer cancel()
	if w.place != nil {
		w.d.lines.clear(ctx, w.place)
		w.place = nil
	}
	sure := !w.doubt
	if !sure {
		_, err := w.d.Release(ctx, driver.Hold{Request: w.r})
		sure = err == nil
	}
	if sure {
		return driver.NotApplied(why)
	}
	return &unsettled{why}
}

// unsettled hides that an error was marked as not applied: another request may be.
type unsettled struct{ err error }

func (u *unsettled) Error() string     { return u.err.Error() }
func (u *unsettled) Is(err error) bool { return errors.Is(u.err, err) }

func (w *waiter) subscribe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	hint, stop, err := w.d.lines.waker.Wake(ctx, w.r.Key)
	if err != nil {
		return false // looking does without; the next look tries again
	}
	w.hint, w.stop = hint, stop
	return true
}

func (w *waiter) end() {
	if w.stop != nil {
		w.stop()
	}
}
