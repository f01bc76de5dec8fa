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

// wait returns when something has changed. The last two ahead are watched. Where there
// are no more and both have gone, that is the grant: nobody can have come in between,
// and the end of the own node would have been told before, as ZooKeeper tells what it
// is asked to watch in the order in which it happened. From is then a moment before
// which the leader knew of this session. In a longer line one of the two goes first, in
// turn the farther one: then, and mostly with it all before it, there is the hold of the
// nearer one to look at the line again, which is watched by then.
func (a *attempt) wait(h *hold, at standing) (from leaseclock.Instant, granted bool, err error) {
	d := a.d
	left := map[string]bool{a.path(at.next): true}
	if at.ahead > 1 {
		left[a.path(at.second)] = true
	}
	told := make(chan passed, 2*len(left))
	for path := range left {
		d.subscribe(path, told)
		defer d.unsubscribe(path, told)
	}
	d.mu.Lock()
	lost, changed, epoch := h.lostOf(), d.changed, d.epoch
	d.mu.Unlock()
	from = leaseclock.Now()
	if err := a.watchAll(h, left); err != nil {
		return from, false, err
	}
	if at.ahead > 2 && len(left) < 2 {
		return from, false, nil
	}
	pulse := time.NewTicker(d.pulse())
	defer pulse.Stop()
	for len(left) > 0 {
		select {
		case p := <-told:
			if from = p.contact; !p.deleted || p.epoch != epoch || at.ahead > 2 {
				return from, false, nil
			}
			delete(left, p.path)
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
	return a.first(h, from)
}

// watchAll watches the own node and nodes ahead, all at once, and takes those out that
// are gone.
func (a *attempt) watchAll(h *hold, paths map[string]bool) error {
	type answer struct {
		path   string
		exists bool
		err    error
	}
	answers := make(chan answer, len(paths))
	for path := range paths {
		go func() {
			exists, err := a.watch(path)
			answers <- answer{path, exists, err}
		}()
	}
	failed := a.lookAtOwn(h)
	for range cap(answers) {
		switch w := <-answers; {
		case w.err != nil:
			failed = w.err
		case !w.exists:
			delete(paths, w.path)
		}
	}
	return failed
}

// first makes sure that a grant which follows from what was told is worth something:
// after a long silence it would be true, but of little use for so short a rest.
func (a *attempt) first(h *hold, told leaseclock.Instant) (from leaseclock.Instant, granted bool, err error) {
	d := a.d
	if told.Elapsed() > h.ttl/4 {
		told = leaseclock.Now()
		ctx, cancel := a.step()
		defer cancel()
		if err := d.sync(ctx, d.prefix); err != nil {
			return told, false, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return told, !h.gone && h.watched, nil
}

func (a *attempt) path(m member) string { return a.dir + "/" + m.name }

// step bounds one step of a wait, whose caller may have days: a silent server must
// show. An acquire that does not wait has its caller's patience.
func (a *attempt) step() (context.Context, context.CancelFunc) {
	if !a.queued {
		return context.WithCancel(a.ctx)
	}
	return context.WithTimeoutCause(a.ctx, 3*a.d.pulse(), errSilent)
}

var errSilent = errors.New("no answer from the server")

// watch sets a watch on a node ahead, unless there is one already, which tells all
// who have subscribed: each would be kept until the node goes.
func (a *attempt) watch(path string) (exists bool, err error) {
	d := a.d
	d.mu.Lock()
	armed := d.armed[path]
	d.mu.Unlock()
	if armed {
		return true, nil
	}
	ctx, cancel := a.step()
	defer cancel()
	_, err = call(ctx, d, "watch the one ahead", func() (*zk.Stat, error) {
		d.mu.Lock()
		armed := d.armed[path]
		d.armed[path] = true // before the watch can fire
		d.mu.Unlock()
		if armed {
			return nil, nil //nolint:nilnil // nobody looks at it
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
	d.wg.Go(func() {
		_, err := d.conn.Sync(d.prefix)
		if err != nil {
			d.opts.log.Debug("zklock: ping", "error", err)
		}
		d.mu.Lock()
		d.pinging = false
		d.mu.Unlock()
	})
}
