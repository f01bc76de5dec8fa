package redislock

import (
	"context"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks/driver"
)

// AcquireQueued implements [driver.Queuer], where [Fair] was asked for: the waiter
// is entered in the key's line in Redis, and the script that frees the key gives
// it to the first in line and pushes the grant.
//
// A lost message costs a delay: the first in line looks when the holder's TTL
// ends, the others every 20 s, and all of them when the subscription comes back.
func (d *Driver) AcquireQueued(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(ctx.Err())
	}
	d.checkOnce()
	pushes, stop, err := d.hub.line(ctx, r.Token.String())
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return driver.Grant{}, driver.NotApplied(err)
	}
	defer stop()
	w := waiting{d: d, r: r, pushes: pushes, answered: time.Now()}
	g, err := w.wait(ctx)
	if err != nil {
		err = w.leave(ctx, err)
	}
	return g, err
}

// waiting is one waiter in line.
type waiting struct {
	d        *Driver
	r        driver.Request
	pushes   <-chan push
	alive    time.Time // when the last look was sent that found no grant
	answered time.Time // when that was answered
	failures int
	looks    int
}

// wait returns the grant, or why there is none.
func (w *waiting) wait(ctx context.Context) (driver.Grant, error) {
	for {
		sent := time.Now()
		g, pause, err := w.look(ctx)
		switch {
		case err == nil && g.Fence > 0:
			g.From = sent // the look has started the TTL anew
			return g, nil
		case ctx.Err() != nil:
			return driver.Grant{}, ctx.Err()
		case err == nil:
			w.alive, w.answered, w.failures = sent, time.Now(), 0
		case w.alive.IsZero(), time.Since(w.answered) > w.r.TTL:
			return driver.Grant{}, err
		default:
			pause = backoff.Policy{Base: requestTimeout(w.r.TTL) / 2, Max: lookEvery}.Delay(w.failures)
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
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return driver.Grant{}, ctx.Err()
		case <-t.C:
			return driver.Grant{}, nil
		case p := <-w.pushes:
			switch p.kind {
			case "granted":
				if w.alive.IsZero() || time.Since(w.alive) > w.r.TTL/2 {
					// The TTL may have begun any time since: look, which starts it anew.
					return driver.Grant{}, nil
				}
				return driver.Grant{Fence: p.n, From: w.alive}, nil
			case "first":
				t.Reset(untilOver(time.Duration(p.n)*time.Millisecond, w.r.TTL))
			case "again":
				return driver.Grant{}, nil
			}
		}
	}
}

// untilOver is the pause of the first in line until the holder's TTL is over.
func untilOver(left, ttl time.Duration) time.Duration {
	if left < 0 {
		return lookEvery // it has no end: not a record of ours
	}
	return min(left+time.Millisecond+backoff.Jitter(ttl/100, 1), lookEvery)
}

// look enters the line or shows a sign of life there.
func (w *waiting) look(ctx context.Context) (g driver.Grant, pause time.Duration, err error) {
	d, r := w.d, w.r
	call, cancel := context.WithTimeout(ctx, requestTimeout(r.TTL))
	defer cancel()
	// From the second look on, the answer is pushed too: the subscription shows
	// that it works without being asked.
	ack := 0
	if w.looks > 0 {
		ack = 1
	}
	w.looks++
	val, err := d.batch.one(call, d.scripts.enqueue, d.lockKeys(r.Key), r.Token.String(), r.TTL.Milliseconds(), r.Label, d.hub.channel, ack)
	if err != nil {
		return g, 0, err
	}
	a, _ := val.([]any)
	if len(a) != 4 {
		g, err = granted(r.Key, val)
		return g, 0, err
	}
	left, _ := a[2].(int64)
	if place, ok := a[3].(int64); ok && place == 0 {
		return g, untilOver(time.Duration(left)*time.Millisecond, r.TTL), nil
	}
	return g, backoff.Jitter(lookEvery, 0.1), nil
}

// leave gives up the place in line, and the key if that has just been granted.
func (w *waiting) leave(ctx context.Context, why error) error {
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*requestTimeout(w.r.TTL))
	defer cancel()
	if _, err := w.d.Release(back, driver.Hold{Request: w.r}); err != nil {
		return why // the caller settles it
	}
	return driver.NotApplied(why)
}
