package redislock

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks/driver"
)

// checkTimeout bounds the look at the server's settings, which Close waits for: the client
// does not see that it is no longer wanted.
const checkTimeout = 2 * time.Second

// checkOnce looks, beside the first request, whether the server is fit for locks,
// and warns where it is not.
func (d *Driver) checkOnce() {
	d.check.Do(func() {
		d.checked.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, checkTimeout)
			defer cancel()
			d.checkPolicy(ctx)
			d.checkPrivileges(ctx)
		})
	})
}

func (d *Driver) checkPolicy(ctx context.Context) {
	info, err := d.rdb.Info(ctx, "memory").Result()
	if err != nil {
		if redis.HasErrorPrefix(err, "NOPERM") {
			d.log.Info("redislock: the user may not ask for the eviction policy; it must be noeviction, else locks vanish under memory pressure")
		}
		return // a server that cannot answer shows elsewhere
	}
	policy := field(info, "maxmemory_policy")
	if policy != "" && policy != "noeviction" && field(info, "maxmemory") != "0" {
		d.log.Warn("redislock: maxmemory-policy must be noeviction: the server may evict locks that are held", "maxmemory_policy", policy)
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

func (d *Driver) checkPrivileges(ctx context.Context) {
	val, err := d.one(ctx, d.scripts.probe, "probe:"+driver.NewToken().String())
	if err != nil {
		if redis.HasErrorPrefix(err, "NOPERM") {
			d.log.Warn("redislock: the user lacks a privilege; the package comment lists them", "error", err)
		}
		return
	}
	var denied []string
	if names, ok := val.([]any); ok {
		for _, n := range names {
			if s, ok := n.(string); ok {
				denied = append(denied, s)
			}
		}
	}
	if len(denied) > 0 {
		d.log.Warn("redislock: the user may not run commands that locks need; the package comment lists them", "denied", strings.Join(denied, " "))
	}
}
