package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/backoff"
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
	line, path, err := d.find(ctx, h)
	if err != nil {
		return 0, err
	}
	if path != "" {
		gone, err := d.delete(ctx, path)
		switch {
		case err != nil:
			return 0, err
		case !gone:
			d.settled(h.Token)
			return driver.ReleasedOK, nil
		}
	}
	if h.Fence == 0 {
		d.settled(h.Token)
	}
	for _, m := range line {
		if m.token != h.Token || path == "" {
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

// settled takes the nodes of a token off the reaper's list.
func (d *Driver) settled(t driver.Token) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ended, t)
	for i := 0; i < len(d.ghosts); {
		if d.ghosts[i].token == t {
			d.ghosts[i] = d.ghosts[len(d.ghosts)-1]
			d.ghosts = d.ghosts[:len(d.ghosts)-1]
		} else {
			i++
		}
	}
}

// find returns the line of the hold's key, after a sync, and the path of the node
// that is the hold's, or "" if there is none.
func (d *Driver) find(ctx context.Context, h driver.Hold) (line []member, path string, err error) {
	dir := d.dir(h.Key)
	if line, err = d.line(ctx, dir, true); err != nil {
		return nil, "", err
	}
	for _, m := range ofToken(line, h.Token) {
		path := dir + "/" + m.name
		if h.Fence == 0 {
			return line, path, nil
		}
		stat, err := call(ctx, d, "look at the node", func() (*zk.Stat, error) {
			_, stat, err := d.conn.Get(path)
			return stat, err
		})
		switch {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil:
			return nil, "", err
		case stat.Czxid == h.Fence:
			return line, path, nil
		}
	}
	return line, "", nil
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
	tries     int
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

// reap runs while there are ghosts.
func (d *Driver) reap() {
	retry := backoff.Policy{Base: 10 * time.Millisecond, Max: time.Second}
	for {
		d.mu.Lock()
		if len(d.ghosts) == 0 || d.closed {
			d.reaping = false
			d.mu.Unlock()
			return
		}
		g := d.ghosts[0]
		d.mu.Unlock()
		err := d.layToRest(g)
		d.mu.Lock()
		// The list may have changed: a release settled it, or the session ended.
		for i, other := range d.ghosts {
			if other == g {
				d.ghosts = append(d.ghosts[:i], d.ghosts[i+1:]...)
				if err != nil {
					d.ghosts = append(d.ghosts, g)
				}
				break
			}
		}
		d.mu.Unlock()
		if err != nil {
			d.opts.log.Debug("zklock: a node is left to be deleted later", "error", err)
			_ = backoff.Wait(d.ctx, retry.Delay(g.tries)) // when it ends, the loop does
			g.tries++
		}
	}
}

func (d *Driver) layToRest(g *ghost) error {
	if _, err := d.ready(d.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, max(d.silence(), 100*time.Millisecond))
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
