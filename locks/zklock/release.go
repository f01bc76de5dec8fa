package zklock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// Release implements [driver.Driver] by one request for a hold of this driver. For
// any other, and for an acquire of unknown outcome, the line is read first, after a
// sync.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := d.stopAttempt(ctx, h); err != nil {
		return 0, err
	}
	d.mu.Lock()
	own := d.holds[h.Token]
	left := d.ghostsOf(h.Token)
	d.mu.Unlock()
	if own != nil && d.isOf(own, h.Key) && (h.Fence == 0 || own.fence == h.Fence) {
		switch gone, err := d.delete(ctx, own.path); {
		case err != nil:
			return 0, err
		case !gone:
			d.forget(own)
			return driver.ReleasedOK, nil
		}
		d.forget(own)
	}
	line, paths, err := d.find(ctx, h)
	if err != nil {
		return 0, err
	}
	released := false
	for _, path := range paths {
		gone, err := d.delete(ctx, path)
		if err != nil {
			return 0, err
		}
		released = released || !gone
	}
	if h.Fence != 0 { // only that node is known to be gone, and not what other acquires with the token left
		left = slices.DeleteFunc(left, func(g *ghost) bool { return !slices.Contains(paths, g.path) })
	}
	if released || h.Fence == 0 {
		d.settled(h.Token, left)
	}
	if released {
		return driver.ReleasedOK, nil
	}
	for _, m := range line {
		if m.token != h.Token || len(paths) == 0 {
			return driver.ReleasedOther, nil
		}
	}
	return driver.ReleasedGone, nil
}

// stopAttempt ends the acquire that is under way for the token, if there is one.
func (d *Driver) stopAttempt(ctx context.Context, h driver.Hold) error {
	d.mu.Lock()
	a := d.attempts[h.Token]
	if a != nil {
		a.cancel()
	}
	d.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// forget removes a hold that was given back.
func (d *Driver) forget(h *hold) {
	d.mu.Lock()
	d.remove(h)
	delete(d.ended, h.token)
	d.mu.Unlock()
}

// settled takes ghosts that are gone for certain off the reaper's list.
func (d *Driver) settled(t driver.Token, gone []*ghost) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ended, t)
	d.unbury(gone...)
}

// unbury takes ghosts off the list. The caller holds mu.
func (d *Driver) unbury(gone ...*ghost) {
	d.ghosts = slices.DeleteFunc(d.ghosts, func(g *ghost) bool { return slices.Contains(gone, g) })
}

// ghostsOf are those of a token. The caller holds mu.
func (d *Driver) ghostsOf(t driver.Token) (all []*ghost) {
	for _, g := range d.ghosts {
		if g.token == t {
			all = append(all, g)
		}
	}
	return all
}

// find returns the line of the hold's key, after a sync, and the path of the node
// that is the hold's; of an acquire of unknown outcome the paths of all that it has
// made, which may be several where it was repeated.
func (d *Driver) find(ctx context.Context, h driver.Hold) (line []member, paths []string, err error) {
	dir := d.dir(h.Key)
	if line, err = d.line(ctx, dir, true); err != nil {
		return nil, nil, err
	}
	for _, m := range ofToken(line, h.Token) {
		path := dir + "/" + m.name
		if h.Fence == 0 && !mutation.On("zk-all-nodes") {
			paths = append(paths, path)
			continue
		}
		stat, err := call(ctx, d, "look at the node", func() (*zk.Stat, error) {
			_, stat, err := d.conn.Get(path)
			return stat, err
		})
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return nil, nil, err
		case stat.Czxid == h.Fence || h.Fence == 0:
			return line, []string{path}, nil
		}
	}
	return line, paths, nil
}

// delete deletes a node; gone means that it was not there.
func (d *Driver) delete(ctx context.Context, path string) (gone bool, err error) {
	_, err = call(ctx, d, "delete the node", func() (struct{}, error) {
		return struct{}{}, d.conn.Delete(path, -1)
	})
	if errors.Is(err, zk.ErrNoNode) {
		return true, nil
	}
	return false, err
}

// ghost is a node of this session that nobody wants, or that may be there: then
// it has no path but the name that its create would have given it.
type ghost struct {
	dir, path string
	token     driver.Token
}

// bury puts a ghost on the list of those that are deleted as soon as that can be.
// The list ends with the session, which deletes them itself. The caller holds mu.
func (d *Driver) bury(g *ghost) {
	if d.closed {
		return
	}
	d.ghosts = append(d.ghosts, g)
	if !d.reaping {
		d.reaping = true
		d.wg.Go(d.reap)
	}
}

// reap runs while there are ghosts. It asks for all of them together: one by one they
// would each wait for a server that is slow, and for the pauses of those before.
func (d *Driver) reap() {
	retry := backoff.Policy{Base: 10 * time.Millisecond, Max: time.Second}
	for failures := 0; ; {
		d.mu.Lock()
		if len(d.ghosts) == 0 || d.closed {
			d.reaping = false
			d.mu.Unlock()
			return
		}
		round := slices.Clone(d.ghosts)
		d.mu.Unlock()
		if d.reapRound(round) {
			failures = 0
			continue
		}
		_ = backoff.Wait(d.ctx, retry.Delay(failures)) // when it ends, the loop does
		failures++
	}
}

// reapRound tries each ghost once, and reports whether all went.
func (d *Driver) reapRound(round []*ghost) bool {
	var wg sync.WaitGroup
	var failed atomic.Bool
	limit := make(chan struct{}, maxParallel)
	for _, g := range round {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			if err := d.layToRest(d.ctx, g); err != nil {
				failed.Store(true)
				d.opts.log.Debug("zklock: a node is left to be deleted later", "error", err)
				return
			}
			d.mu.Lock()
			d.unbury(g)
			d.mu.Unlock()
		})
	}
	wg.Wait()
	return !failed.Load()
}

// settleGhosts deletes what earlier acquires with the token have left: a new node would
// stand in line behind them, and could not be told from one of unknown outcome.
func (d *Driver) settleGhosts(ctx context.Context, t driver.Token) error {
	d.mu.Lock()
	left := d.ghostsOf(t)
	d.mu.Unlock()
	for _, g := range left {
		if err := d.layToRest(ctx, g); err != nil {
			return err
		}
		d.settled(t, []*ghost{g})
	}
	return nil
}

func (d *Driver) layToRest(ctx context.Context, g *ghost) error {
	if _, err := d.ready(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(d.silence(), 100*time.Millisecond))
	defer cancel()
	if g.path != "" {
		_, err := d.delete(ctx, g.path)
		return err
	}
	line, err := d.line(ctx, g.dir, true)
	if err != nil {
		return err
	}
	for _, m := range ofToken(line, g.token) {
		if _, err := d.delete(ctx, g.dir+"/"+m.name); err != nil {
			return err
		}
	}
	return nil
}
