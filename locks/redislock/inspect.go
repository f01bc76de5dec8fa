package redislock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks/driver"
)

// scanCount is the number of keys that one SCAN looks at.
const scanCount = 1000

// Inspect implements [driver.Inspector] by one script.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	val, err := d.one(ctx, d.scripts.look, key)
	if err != nil {
		return driver.Holder{}, err
	}
	h, held := looked(key, val)
	if !held {
		return driver.Holder{}, driver.ErrFree
	}
	return h, nil
}

func looked(key string, val any) (h driver.Holder, held bool) {
	a, _ := val.([]any)
	if len(a) != 3 {
		return h, false
	}
	text, _ := a[0].(string)
	ttl, _ := a[1].(int64)
	waiters, _ := a[2].(int64)
	h = parse(key, text, ttl)
	h.Waiters = int(waiters)
	return h, text != ""
}

// List implements [driver.Inspector]. It walks over all keys of the database with
// SCAN: it is for people and tools, not for a hot path.
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	found, err := d.scan(ctx, glob.Replace(d.prefix+"{"+escape.Replace(prefix))+"*}")
	if err != nil {
		return nil, d.explain("list", err)
	}
	var names []string
	for redisKey := range found {
		if name, ok := d.lockName(redisKey); ok && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []driver.Holder
	for len(names) > 0 && len(out) < limit {
		n := min(len(names), limit-len(out), scanCount)
		some, err := d.lookAt(ctx, names[:n])
		if err != nil {
			return nil, d.explain("list", err)
		}
		out = append(out, some...) // some end meanwhile
		names = names[n:]
	}
	return out, nil
}

// Survey implements [driver.Surveyor] by one pipeline.
func (d *Driver) Survey(ctx context.Context, keys []string) ([]driver.Holder, error) {
	out, err := d.lookAt(ctx, keys)
	return out, d.explain("survey", err)
}

// lookAt answers those of the keys that are held.
func (d *Driver) lookAt(ctx context.Context, keys []string) ([]driver.Holder, error) {
	commands := make([]*command, len(keys))
	for i, key := range keys {
		commands[i] = &command{script: d.scripts.look, keys: []string{RedisKey(d.prefix, key)}}
	}
	if err := d.send.run(ctx, commands...); err != nil {
		return nil, err
	}
	var out []driver.Holder
	for i, c := range commands {
		if c.err != nil {
			return nil, c.err
		}
		if h, held := looked(keys[i], c.val); held {
			out = append(out, h)
		}
	}
	return out, nil
}

// scan returns the keys that match, from every master of a cluster.
func (d *Driver) scan(ctx context.Context, match string) (map[string]struct{}, error) {
	var mu sync.Mutex
	found := map[string]struct{}{}
	walk := func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := c.Scan(ctx, cursor, match, scanCount).Result()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, k := range keys {
				found[k] = struct{}{}
			}
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return ctx.Err()
			}
		}
	}
	done := make(chan error, 1)
	d.checked.Go(func() {
		switch c := d.rdb.(type) {
		case *redis.ClusterClient:
			done <- c.ForEachMaster(ctx, walk)
		case *redis.Client:
			done <- walk(ctx, c)
		default:
			done <- errors.New("this client cannot scan")
		}
	})
	select { // the client may not look at ctx while it reads
	case err := <-done:
		return found, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ForceRelease implements [driver.Inspector] by one script.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	val, err := d.one(ctx, d.scripts.force, key)
	if err != nil {
		return 0, err
	}
	if val == int64(0) {
		return driver.ReleasedGone, nil
	}
	return driver.ReleasedOK, nil
}
