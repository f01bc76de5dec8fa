package zklock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
)

// transient reports whether a wait goes on after err, and lets a moment pass: the
// place in line is kept while the connection comes and goes, but not in silence.
func (a *attempt) transient(err error, try int) bool {
	lasting := errors.Is(err, errGone) || errors.Is(err, errSilent) || errors.Is(err, zk.ErrNoAuth) || errors.Is(err, errClosed)
	if !a.queued || lasting || a.d.contact().Elapsed() >= 3*a.d.pulse() {
		return false
	}
	return backoff.Wait(a.ctx, backoff.Policy{Base: 10 * time.Millisecond, Max: a.d.pulse()}.Delay(try)) == nil
}

// wait returns when something has changed. Where the one ahead was the first, its
// deletion is the grant: nobody can have come in between. From is then a moment
// before which the leader knew of this session.
func (a *attempt) wait(h *hold, ahead member, first bool) (from leaseclock.Instant, granted bool, err error) {
	d := a.d
	path := a.dir + "/" + ahead.name
	watch := d.subscribe(path)
	defer d.unsubscribe(path, watch)
	d.mu.Lock()
	lost, changed, epoch := h.lostOf(), d.changed, d.epoch
	d.mu.Unlock()
	switch exists, err := a.watch(path); {
	case err != nil:
		return from, false, err
	case !exists:
		return leaseclock.Now(), false, nil
	}
	pulse := time.NewTicker(d.pulse())
	defer pulse.Stop()
	for {
		select {
		case p := <-watch:
			if !p.deleted || !first || p.epoch != epoch {
				return p.contact, false, nil
			}
			if p.contact.Elapsed() <= h.ttl/4 {
				return p.contact, true, nil
			}
			// True, but of little use for so short a rest.
			sent := leaseclock.Now()
			ctx, cancel := a.step()
			err := d.sync(ctx, d.prefix)
			cancel()
			if err != nil {
				return sent, false, err
			}
			d.mu.Lock()
			ok := !h.gone && h.watched
			d.mu.Unlock()
			return sent, ok, nil
		case <-lost:
			return from, false, errGone
		case <-changed:
			// After a reconnection the line is looked at anew.
			ctx, cancel := a.step()
			_, err := d.ready(ctx)
			cancel()
			return leaseclock.Now(), false, err
		case <-pulse.C:
			if d.contact().Elapsed() >= 3*d.pulse() {
				d.wire.cutIfSilent(d.silence())
				return from, false, fmt.Errorf("zklock: acquire: %w for %v", errSilent, d.contact().Elapsed().Round(time.Millisecond))
			}
			d.ping()
		case <-a.ctx.Done():
			return from, false, fmt.Errorf("zklock: acquire: %w", context.Cause(a.ctx))
		}
	}
}

// step bounds one step of a wait, whose caller may have days: a silent server must
// show. An acquire that does not wait has its caller's patience.
func (a *attempt) step() (context.Context, context.CancelFunc) {
	if !a.queued {
		return context.WithCancel(a.ctx)
	}
	return context.WithTimeoutCause(a.ctx, 3*a.d.pulse(), errSilent)
}

var errSilent = errors.New("no answer from the server")

// watch sets a watch on the node ahead, unless there is one already: each would be
// kept until the node goes.
func (a *attempt) watch(path string) (exists bool, err error) {
	d := a.d
	ctx, cancel := a.step()
	defer cancel()
	_, err = call(ctx, d, "watch the one ahead", func() (*zk.Stat, error) {
		d.mu.Lock()
		armed := d.armed[path]
		d.armed[path] = true // before the watch can fire
		d.mu.Unlock()
		if armed {
			_, stat, err := d.conn.Exists(path)
			if err == nil && stat.Czxid == 0 {
				err = zk.ErrNoNode
			}
			return stat, err
		}
		_, stat, _, err := d.conn.GetW(path)
		if err != nil { // others may rely on it
			d.nodeEvent(path, errors.Is(err, zk.ErrNoNode))
		}
		return stat, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

// pulse is how old the last sign of life may be while somebody waits.
func (d *Driver) pulse() time.Duration {
	return min(max(d.leaseTTL()/3, 20*time.Millisecond), 2*time.Second)
}

// ping asks the server for a sign of life, once for all who wait, if there was
// none lately.
func (d *Driver) ping() {
	if d.contact().Elapsed() < d.pulse()/2 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pinging || d.closed || !d.connected {
		return
	}
	d.pinging = true
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		_, err := d.conn.Sync(d.prefix)
		if err != nil {
			d.opts.log.Debug("zklock: ping", "error", err)
		}
		d.mu.Lock()
		d.pinging = false
		d.mu.Unlock()
	}()
}
