package redlock

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkTimeout bounds the look at a node's settings.
const checkTimeout = 5 * time.Second

// checkOnce looks, beside the first request, whether the nodes are fit for locks,
// and warns where one is not.
func (d *Driver) checkOnce() {
	d.check.Do(func() {
		for at, n := range d.nodes {
			d.checked.Add(1)
			if !d.spawn(func() {
				defer d.checked.Done()
				ctx, cancel := context.WithTimeout(d.ctx, checkTimeout)
				defer cancel()
				d.checkPolicy(ctx, at+1, n)
			}) {
				d.checked.Done()
			}
		}
	})
}

func (d *Driver) checkPolicy(ctx context.Context, number int, n *node) {
	info, err := n.rdb.Info(ctx, "memory").Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		d.log.Warn("redlock: the user lacks a privilege; the package comment lists them", "node", number, "error", err)
	}
	if err != nil {
		return // a node that cannot answer shows elsewhere
	}
	policy := field(info, "maxmemory_policy")
	if policy != "" && policy != "noeviction" && field(info, "maxmemory") != "0" {
		d.log.Warn("redlock: maxmemory-policy must be noeviction: the node may evict locks that are held", "node", number, "maxmemory_policy", policy)
	}
}

// field is a line of an INFO text.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
