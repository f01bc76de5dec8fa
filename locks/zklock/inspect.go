package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/locks/driver"
)

// nodeData is what a node holds: the label, for people.
func nodeData(label string) []byte { return []byte(label) }

// line reads the children of a key's node; there are none where that is missing.
// With a sync it shows all that was done before.
func (d *Driver) line(ctx context.Context, dir string, synced bool) ([]member, error) {
	if synced {
		if err := d.sync(ctx, dir); err != nil {
			return nil, err
		}
	}
	children, err := call(ctx, d, "read the line", func() ([]string, error) {
		children, _, err := d.conn.Children(dir)
		return children, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return members(children), err
}

// describe reads the node of m.
func (d *Driver) describe(ctx context.Context, dir, key string, m member) (driver.Holder, error) {
	h := driver.Holder{Key: key, Token: m.token}
	type node struct {
		data []byte
		stat *zk.Stat
	}
	n, err := call(ctx, d, "look at the holder", func() (node, error) {
		data, stat, err := d.conn.Get(dir + "/" + m.name)
		return node{data, stat}, err
	})
	if err != nil {
		return h, err
	}
	h.Label, h.Fence, h.Since = string(n.data), n.stat.Czxid, time.UnixMilli(n.stat.Ctime).UTC()
	return h, nil
}

// holder reads the line and its head, or returns ErrFree.
func (d *Driver) holder(ctx context.Context, dir, key string) (driver.Holder, error) {
	for {
		line, err := d.line(ctx, dir, false)
		if err != nil {
			return driver.Holder{}, err
		}
		first, ok := head(line)
		if !ok {
			return driver.Holder{}, driver.ErrFree
		}
		h, err := d.describe(ctx, dir, key, first)
		if errors.Is(err, zk.ErrNoNode) {
			continue // released between the two; ctx bounds how often
		}
		h.Waiters = len(line) - 1
		return h, err
	}
}

// Inspect implements [driver.Inspector]. Remaining is not known: the holder's
// session says how long it lives, to nobody else.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	dir := d.dir(key)
	if err := d.sync(ctx, dir); err != nil {
		return driver.Holder{}, err
	}
	return d.holder(ctx, dir, key)
}

// List implements [driver.Inspector]: one request for the keys and two for each of
// them, in flight together.
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	if err := d.sync(ctx, d.prefix); err != nil {
		return nil, err
	}
	names, err := call(ctx, d, "list", func() ([]string, error) {
		names, _, err := d.conn.Children(d.prefix)
		return names, err
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	var keys []string
	for _, name := range names {
		if key, ok := keyOf(name); ok && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var found []driver.Holder
	for part := range slices.Chunk(keys, maxParallel) {
		holders := make([]driver.Holder, len(part))
		errs := make([]error, len(part))
		var wg sync.WaitGroup
		for i, key := range part {
			wg.Go(func() { holders[i], errs[i] = d.holder(ctx, d.dir(key), key) })
		}
		wg.Wait()
		for i, err := range errs {
			switch {
			case errors.Is(err, driver.ErrFree):
			case err != nil:
				return nil, err
			case len(found) < limit:
				found = append(found, holders[i])
			}
		}
		if len(found) >= limit {
			break
		}
	}
	return found, nil
}

// ForceRelease implements [driver.Inspector]: it deletes the node of the holder,
// whose driver is told by its watch. Every node made later has a greater fence, and
// so has every one that was in line.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	dir := d.dir(key)
	for {
		line, err := d.line(ctx, dir, true)
		if err != nil {
			return 0, err
		}
		first, ok := head(line)
		if !ok {
			return driver.ReleasedGone, nil
		}
		gone, err := d.delete(ctx, dir+"/"+first.name)
		if err != nil {
			return 0, err
		}
		if !gone {
			return driver.ReleasedOK, nil
		}
	}
}

// makeKey makes the node of a key: a container, which the server removes some time
// after its last child, so that keys that nobody uses any more cost nothing. The
// nodes above it are plain ones. What is there is left as it is, its ACL included.
func (d *Driver) makeKey(ctx context.Context, dir string) error {
	for range 2 {
		_, err := call(ctx, d, "make the node of the key", func() (string, error) {
			return d.conn.CreateContainer(dir, nil, zk.FlagContainer, d.acl)
		})
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		if err := d.makeNode(ctx, d.prefix); err != nil {
			return err
		}
	}
	return fmt.Errorf("zklock: the node %s was deleted as soon as it was made", d.prefix)
}

func (d *Driver) makeNode(ctx context.Context, path string) error {
	for range 2 {
		_, err := call(ctx, d, "make "+path, func() (string, error) {
			return d.conn.Create(path, nil, zk.FlagPersistent, d.acl)
		})
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		up := path[:strings.LastIndexByte(path, '/')]
		if up == "" {
			return err
		}
		if err := d.makeNode(ctx, up); err != nil {
			return err
		}
	}
	return fmt.Errorf("zklock: a node above %s was deleted as soon as it was made", path)
}
