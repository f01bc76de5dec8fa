package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/lazyctx"
	"github.com/solotick/solotick/locks/driver"
)

// AcquireQueued implements [driver.Queuer]: the waiter is entered in the key's line in Redis, and the script that frees the key gives
// it to the first in line and pushes the grant.
//
// A lost message costs a delay: the last in line looks when the holder's TTL
// ends, on behalf of all, the others every 2 s, or up to 20 s in a long line, and all of them when the
// subscription fails or comes back. A backend that does not answer is an error after
// some 3 s of that.
func (d *Driver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(ctx.Err())
	}
	if !d.hub.inUse() {
		// To subscribe takes longer than to ask for a key that is free.
		sent := time.Now()
		call := lazyctx.WithDeadline(ctx, sent.Add(requestTimeout(r.TTL)))
		g, err := d.try(call, r, true)
		call.Cancel()
		g.From = sent
		if _, held := errors.AsType[*driver.HeldError](err); !held {
			return g, err
		}
		r.Tell(nil)
	}
	call, cancel := context.WithTimeout(ctx, max(requestTimeout(r.TTL), subscribeTimeout))
	pushes, stop, err := d.hub.line(call, r.Token.String())
	cancel()
	switch {
	case ctx.Err() != nil && err != nil:
		return driver.Grant{}, ctx.Err()
	case err != nil:
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("redislock: subscribe: %w", err))
	}
	defer stop()
	w := waiting{d: d, r: r, member: d.member(r), pushes: pushes}
	g, err := w.wait(ctx)
	if err != nil {
		err = w.leave(ctx, err)
	}
	return g, err
}

const (
	// subscribeTimeout is enough to dial.
	subscribeTimeout = time.Second
	// silence is how long a waiter in line bears a server that does not answer.
	silence = 3 * time.Second
)

// waiting is one waiter in line.
type waiting struct {
	d          *Driver
	r          driver.Request
	member     string
	pushes     <-chan push
	alive      time.Time // when the last look was sent that found no grant
	unanswered time.Time // since when there has been no answer
	floor      int64     // the last fence given then: a grant made since is above it
	failures   int
	looks      int
	last       bool          // in line, at the last look
	left       time.Duration // of the holder's TTL, then
	late       bool          // a look without an answer may still be carried out
}

// wait returns the grant, or why there is none.
func (w *waiting) wait(ctx context.Context) (driver.Grant, error) {
	for {
		sent := time.Now()
		if w.failures == 0 {
			w.unanswered = sent
		}
		g, pause, err := w.look(ctx)
		switch {
		case err == nil && g.Fence > 0:
			g.From = sent // the look has started the TTL anew
			return g, nil
		case ctx.Err() != nil:
			return driver.Grant{}, ctx.Err()
		case err == nil:
			w.alive, w.failures = sent, 0
			w.r.Tell(nil)
		case w.alive.IsZero(), time.Since(w.unanswered) > min(w.r.TTL, silence):
			return driver.Grant{}, err
		default:
			// The place is kept for a while, but who stands there wants to know.
			w.r.Tell(err)
			pause = backoff.Policy{Base: requestTimeout(w.r.TTL) / 2, Max: looksMost}.Delay(w.failures)
			w.failures++
		}
		if g, err := w.listen(ctx, pause); err != nil || g.Fence > 0 {
			return g, err
		}
	}
}

// listen returns the pushed grant, or neither grant nor error when it is time to
// look.
func (w *waiting) listen(ctx context.Context, pause time.Duration) (driver.Grant, error) {
	next := time.Now().Add(pause)
	alarm := next
	if w.last {
		alarm = earlier(next, w.over(w.left))
	}
	t := time.NewTimer(time.Until(alarm))
	defer t.Stop()
	for {
		var p push
		ear, turn := w.d.hub.listens()
		if len(w.pushes) > 0 {
			turn = nil
		}
		select {
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		case <-t.C:
			return driver.Grant{}, nil
		case <-turn:
			ear.read(ctx, alarm, w.pushes)
			continue
		case p = <-w.pushes:
		}
		switch p.kind {
		case pushGranted:
			if p.n <= w.floor {
				continue // of a grant that has ended: this process stood still
			}
			if w.alive.IsZero() || time.Since(w.alive) > w.r.TTL/3 {
				// The TTL may have begun any time since: look, which starts it anew.
				return driver.Grant{}, nil
			}
			return driver.Grant{Fence: p.n, From: w.alive}, nil
		case pushAgain:
			return driver.Grant{}, nil
		case pushBehind:
			alarm = next
		case pushLast:
			alarm = earlier(next, w.over(time.Duration(p.n)*time.Millisecond))
		}
		t.Reset(time.Until(alarm))
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// over is when the last in line looks at a key whose holder's TTL has that much left.
func (w *waiting) over(left time.Duration) time.Time {
	// Meanwhile the key may go to somebody in line, who mostly wants it for as long as
	// this one does.
	if often := max(w.r.TTL, time.Second); left < 0 || left > often {
		left = often // below 0 it has no end: not a record of ours
	}
	return time.Now().Add(left + time.Millisecond + backoff.Jitter(w.r.TTL/100, 1))
}

// look enters the line or shows a sign of life there.
func (w *waiting) look(ctx context.Context) (g driver.Grant, pause time.Duration, err error) {
	d, r := w.d, w.r
	call := lazyctx.WithTimeout(ctx, requestTimeout(r.TTL))
	defer call.Cancel()
	// From the second look on, the answer is pushed too: the subscription shows
	// that it works without being asked.
	val, err := d.one(call, d.scripts.enqueue, r.Key, r.Token.String(), millis(r.TTL), r.Label, w.member, d.hub.channel, flag(w.looks > 0))
	w.looks++
	if err != nil {
		w.late = w.late || !driver.IsNotApplied(err)
		return g, 0, err
	}
	a, _ := val.([]any)
	if len(a) != 6 {
		g, err = granted(r.Key, val)
		return g, 0, err
	}
	text, _ := a[5].(string)
	if w.floor, err = strconv.ParseInt(text, 10, 64); err != nil {
		return g, 0, fmt.Errorf("redislock: enqueue: fence %q: it is no number", text)
	}
	left, _ := a[2].(int64)
	place, _ := a[3].(int64)
	n, _ := a[4].(int64)
	w.left, w.last = time.Duration(left)*time.Millisecond, place == n-1
	every := min(max(time.Duration(n)*time.Second/looksPerSecond, looksMost), looksLeast)
	pause = backoff.Jitter(every, 0.1)
	if w.looks == 1 {
		// Waiters that came at the same time must not look at the same time.
		pause = looksMost/2 + rand.N(every-looksMost/2)
	}
	return g, pause, nil
}

// leave gives up the place in line, and the key if that has just been granted.
func (w *waiting) leave(ctx context.Context, why error) error {
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*requestTimeout(w.r.TTL))
	defer cancel()
	if _, err := w.d.release(back, driver.Hold{Request: w.r}, w.late); err != nil {
		if driver.IsNotApplied(why) {
			return errors.New(why.Error()) // of the last look; it may stand in line all the same
		}
		return why // the caller settles it
	}
	return driver.NotApplied(why)
}
