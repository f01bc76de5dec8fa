package redislock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks/driver"
)

// Driver is the lock backend. Make it with [NewDriver]; it is safe for concurrent
// use. Close ends its goroutines.
type Driver struct {
	rdb     redis.UniversalClient
	prefix  string
	cluster bool
	fair    bool
	owned   bool // Close closes rdb
	log     *slog.Logger

	replicas     int
	replicasWait time.Duration

	scripts *scripts
	batch   *batcher
	hub     *hub
	check   sync.Once
	checked sync.WaitGroup
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Waker        = (*Driver)(nil)
	_ driver.Queuer       = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
	_ driver.Partial      = (*Driver)(nil)
)

// minTTL leaves room for a renewal: Redis counts in milliseconds.
const minTTL = 20 * time.Millisecond

// Limits implements [driver.Limiter].
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Millisecond}
}

// Serves implements [driver.Partial]: there is a line of waiters only with [Fair].
func (d *Driver) Serves(iface any) bool {
	_, queue := iface.(*driver.Queuer)
	return !queue || d.fair
}

// Acquire implements [driver.Driver] by one script.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	d.checkOnce()
	keys := d.lockKeys(r.Key)
	if d.replicas > 0 {
		return d.acquireReplicated(ctx, r, keys)
	}
	val, err := d.batch.one(ctx, d.scripts.acquire, keys, r.Token.String(), r.TTL.Milliseconds(), r.Label)
	if err != nil {
		return driver.Grant{}, err
	}
	return granted(r.Key, val)
}

// granted reads the answer of an acquire.
func granted(key string, val any) (driver.Grant, error) {
	a, ok := val.([]any)
	if !ok || len(a) < 2 {
		return driver.Grant{}, fmt.Errorf("redislock: acquire: an answer that is none: %v", val)
	}
	text, _ := a[1].(string)
	if a[0] == int64(1) {
		fence, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return driver.Grant{}, fmt.Errorf("redislock: acquire: fence %q: it is no number", text)
		}
		return driver.Grant{Fence: fence}, nil
	}
	var ttl int64
	if len(a) > 2 {
		ttl, _ = a[2].(int64)
	}
	return driver.Grant{}, &driver.HeldError{Holder: parse(key, text, ttl)}
}

// parse reads a record. One that is not ours holds the key all the same.
func parse(key, text string, ttl int64) driver.Holder {
	h := driver.Holder{Key: key, Remaining: max(time.Duration(ttl)*time.Millisecond, 0)}
	if ttl == 0 {
		h.Remaining = 1 // ends within the millisecond; zero stands for "not known"
	}
	f := strings.SplitN(text, " ", 4)
	if len(f) < 4 || len(f[0]) != 2*len(h.Token) {
		h.Label = text[:min(len(text), 200)]
		return h
	}
	if _, err := hex.Decode(h.Token[:], []byte(f[0])); err != nil {
		h.Label = text[:min(len(text), 200)]
		return h
	}
	h.Fence, _ = strconv.ParseInt(f[1], 10, 64)
	if us, err := strconv.ParseInt(f[2], 10, 64); err == nil {
		h.Since = time.UnixMicro(us).UTC()
	}
	h.Label = f[3]
	return h
}

// acquireReplicated is an acquire that counts only if enough replicas have it.
// WAIT speaks of its own connection, so both go in a pipeline of their own.
func (d *Driver) acquireReplicated(ctx context.Context, r driver.Request, keys []string) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(context.Cause(ctx))
	}
	c := &command{script: d.scripts.acquire, keys: keys, args: []any{r.Token.String(), r.TTL.Milliseconds(), r.Label}}
	var acked int64
	done := make(chan struct{})
	d.batch.lanes.Go(func() {
		defer close(done)
		for _, text := range []bool{false, true} {
			pipe := d.rdb.Pipeline()
			script := c.cmd(ctx, text)
			_ = pipe.Process(ctx, script)
			wait := pipe.Do(ctx, "wait", d.replicas, max(d.replicasWait.Milliseconds(), 1))
			_, _ = pipe.Exec(ctx)
			c.val, c.err = script.Result()
			if !redis.HasErrorPrefix(c.err, "NOSCRIPT") {
				acked, _ = wait.Int64() // without an answer nobody is known to have it
				return
			}
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
		return driver.Grant{}, explain("acquire", context.Cause(ctx))
	}
	if c.err != nil {
		return driver.Grant{}, explain("acquire", c.err)
	}
	g, err := granted(r.Key, c.val)
	if err != nil || acked >= int64(d.replicas) {
		return g, err
	}
	err = fmt.Errorf("redislock: acquire: %d of %d replicas have it after %v", acked, d.replicas, d.replicasWait)
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout(r.TTL))
	defer cancel()
	if _, rerr := d.Release(back, driver.Hold{Request: r}); rerr != nil {
		return driver.Grant{}, errors.Join(err, rerr)
	}
	return driver.Grant{}, driver.NotApplied(err)
}

// requestTimeout bounds a request that the driver sends by itself.
func requestTimeout(ttl time.Duration) time.Duration {
	return max(min(ttl/5, time.Second), 50*time.Millisecond)
}

// Renew implements [driver.Driver] by one script.
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := d.RenewBatch(ctx, []driver.Hold{h})[0]; err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// renewMax is the number of holds that one script renews: it keeps the server
// from others for as long.
const renewMax = 100

// RenewBatch implements [driver.BatchRenewer] by one pipeline; in a cluster by one
// for each node.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	most := renewMax
	if d.cluster {
		most = 1 // the keys of a script share a slot
	}
	var commands []*command
	for from := 0; from < len(holds); from += most {
		part := holds[from:min(from+most, len(holds))]
		c := &command{script: d.scripts.renew, keys: make([]string, len(part)), args: make([]any, 0, 3*len(part))}
		for i, h := range part {
			c.keys[i] = RedisKey(d.prefix, h.Key)
			c.args = append(c.args, h.Token.String(), h.Fence, h.TTL.Milliseconds())
		}
		commands = append(commands, c)
	}
	if len(holds) == 0 {
		return errs
	}
	if err := d.batch.run(ctx, commands...); err != nil {
		err = explain("renew", err)
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	for i, c := range commands {
		answers, _ := c.val.([]any)
		for j := range c.keys {
			at := i*most + j
			switch {
			case c.err != nil:
				errs[at] = explain("renew", c.err)
			case j >= len(answers):
				errs[at] = fmt.Errorf("redislock: renew: %d answers for %d holds", len(answers), len(c.keys))
			case answers[j] != int64(1):
				errs[at] = driver.ErrNotOurs
			}
		}
	}
	return errs
}

// Release implements [driver.Driver] by one script, which also hands the key to
// the next in line or wakes those who wait. A hold of fence 0 leaves the line too.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	// The id lets the client repeat the script without being told that it is gone.
	id := driver.NewToken().String()
	val, err := d.batch.one(ctx, d.scripts.release, d.lockKeys(h.Key), h.Token.String(), strconv.FormatInt(h.Fence, 10), id)
	if err != nil {
		return 0, err
	}
	n, _ := val.(int64)
	switch out := driver.Released(n); out {
	case driver.ReleasedOK, driver.ReleasedGone, driver.ReleasedOther:
		return out, nil
	default:
		return 0, fmt.Errorf("redislock: release: an answer that is none: %v", val)
	}
}

// Wake implements [driver.Waker] over the one subscription of the driver.
func (d *Driver) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	hint, stop, err := d.hub.wake(ctx, RedisKey(d.prefix, key)+":w")
	if err != nil {
		return nil, nil, fmt.Errorf("redislock: subscribe: %w", err)
	}
	return hint, stop, nil
}

// Close ends the subscription and waits a moment for requests under way. It closes
// the client only where the driver has made it.
func (d *Driver) Close() error {
	d.hub.close()
	var err error
	if d.owned {
		err = d.rdb.Close() // also ends what waits for an answer
	}
	d.batch.close()
	d.checked.Wait()
	return err
}
