package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks/driver"
)

const (
	scanCount = 1000
	// lookTimeout bounds a look at one node.
	lookTimeout = 2 * time.Second
)

// glob escapes what SCAN takes for a pattern.
var glob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)

// everywhere runs f on every node and returns the answers of those that gave one;
// an error where these are no majority.
func everywhere[T any](ctx context.Context, d *Driver, what string, f func(context.Context, *node) (T, error)) ([]T, error) {
	type answer struct {
		val T
		err error
	}
	answers := make(chan answer, len(d.nodes))
	for _, n := range d.nodes {
		if !d.spawn(func() {
			call, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			val, err := f(call, n)
			answers <- answer{val, err}
		}) {
			return nil, driver.NotApplied(errClosed)
		}
	}
	var out []T
	errs := []error{errNoQuorum}
	for range d.nodes {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
			} else {
				out = append(out, a.val)
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("redlock: %s: %w", what, context.Cause(ctx))
		}
	}
	if len(out) < d.quorum {
		return nil, fmt.Errorf("redlock: %s: %w", what, errors.Join(errs...))
	}
	return out, nil
}

// Inspect implements [driver.Inspector]: the holder is whom a majority of nodes
// knows.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	for n := 0; ; n++ {
		holders, err := everywhere(ctx, d, "inspect", func(ctx context.Context, n *node) (map[string]driver.Holder, error) {
			return d.look(ctx, n, []string{key})
		})
		if err != nil {
			return driver.Holder{}, err
		}
		all, settled := d.agreed(holders)
		// In the middle of a grant the number is not settled yet: a moment later it is.
		if !settled && n < 5 && backoff.Wait(ctx, unsettled.Delay(n)) == nil {
			continue
		}
		if len(all) > 0 {
			return all[0], nil
		}
		return driver.Holder{}, driver.ErrFree
	}
}

// unsettled spaces looks at a grant that is being made.
var unsettled = backoff.Policy{Base: 5 * time.Millisecond, Max: 50 * time.Millisecond}

// look returns the holders of the keys that are held on the node.
func (d *Driver) look(ctx context.Context, n *node, keys []string) (map[string]driver.Holder, error) {
	rs := make([]request, len(keys))
	for i, key := range keys {
		rs[i] = request{keys: []string{d.prefix + key}}
	}
	answers, err := n.pipe.run(ctx, lookScript, rs...)
	if err != nil {
		return nil, err
	}
	out := map[string]driver.Holder{}
	for i, cmd := range answers {
		a, err := cmd.Slice()
		if err != nil {
			return nil, err
		}
		text, _ := a[0].(string)
		ttl, _ := a[1].(int64)
		if text != "" {
			out[keys[i]] = parse(keys[i], text, ttl)
		}
	}
	return out, nil
}

// agreed returns the holders that a majority of nodes knows, in key order, with
// the shortest remaining time, and the fence that a majority has: a node that granted
// late may still have a higher number of its own. Before a majority has one, it is the
// highest, and not settled.
func (d *Driver) agreed(nodes []map[string]driver.Holder) (out []driver.Holder, settled bool) {
	type grant struct {
		key   string
		token driver.Token
	}
	count := map[grant]int{}
	fences := map[grant]map[int64]int{}
	holders := map[grant]driver.Holder{}
	for _, node := range nodes {
		for key, h := range node {
			g := grant{key, h.Token}
			if fences[g] == nil {
				fences[g] = map[int64]int{}
			}
			fences[g][h.Fence]++
			if x, ok := holders[g]; ok {
				h.Fence, h.Remaining = max(h.Fence, x.Fence), min(h.Remaining, x.Remaining)
			}
			holders[g] = h
			count[g]++
		}
	}
	settled = true
	for g, n := range count {
		if n < d.quorum {
			continue
		}
		h, known := holders[g], false
		for fence, n := range fences[g] {
			if n >= d.quorum {
				h.Fence, known = fence, true
			}
		}
		out = append(out, h)
		settled = settled && known
	}
	slices.SortFunc(out, func(a, b driver.Holder) int { return strings.Compare(a.Key, b.Key) })
	return out, settled
}

// List implements [driver.Inspector]. It walks over all keys of every node with
// SCAN: it is for people and tools.
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	holders, err := everywhere(ctx, d, "list", func(ctx context.Context, n *node) (map[string]driver.Holder, error) {
		var keys []string
		for cursor := uint64(0); ; {
			found, next, err := n.rdb.Scan(ctx, cursor, glob.Replace(d.prefix+prefix)+"*", scanCount).Result()
			if err != nil {
				return nil, err
			}
			for _, k := range found {
				if !strings.Contains(k, "\x00") {
					keys = append(keys, strings.TrimPrefix(k, d.prefix))
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		return d.look(ctx, n, keys)
	})
	if err != nil {
		return nil, err
	}
	all, _ := d.agreed(holders)
	return all[:min(len(all), limit)], nil
}

// ForceRelease implements [driver.Inspector] by one request to each node.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	was, err := everywhere(ctx, d, "force release", func(ctx context.Context, n *node) (int64, error) {
		val, err := n.do(ctx, forceScript, d.keys(key, driver.Token{})[:2])
		count, _ := val.(int64)
		return count, err
	})
	switch {
	case err != nil:
		return 0, err
	case slices.Contains(was, 1):
		return driver.ReleasedOK, nil
	}
	return driver.ReleasedGone, nil
}
