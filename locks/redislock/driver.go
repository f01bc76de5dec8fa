package redislock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
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
	repeats bool // the client may repeat requests
	log     *slog.Logger

	replicas     int
	replicasWait time.Duration

	scripts *scripts
	send    sender
	ctx     context.Context // ends with stop
	stop    context.CancelFunc
	hub     *hub
	doubts  *doubts // nil where the master stays
	check   sync.Once
	checked sync.WaitGroup
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Queuer       = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
	_ driver.LossTeller   = (*Driver)(nil)
	_ driver.Partial      = (*Driver)(nil)
)

// minTTL leaves room for a renewal: Redis counts in milliseconds.
const minTTL = 20 * time.Millisecond

// Limits implements [driver.Limiter].
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Millisecond}
}

// sender carries out commands.
type sender interface {
	// run has the commands answered, all in one pipeline. Its own error means that
	// there are no answers: marked not applied where nothing was sent.
	run(ctx context.Context, commands ...*command) error
	// close refuses new commands and ends those under way.
	close()
}

// one runs a script about one lock and returns its answer.
func (d *Driver) one(ctx context.Context, s *script, key string, args ...string) (any, error) {
	c := &struct { // one allocation
		command
		key [1]string
	}{command{script: s, args: args}, [1]string{RedisKey(d.prefix, key)}}
	c.keys = c.key[:]
	if err := d.send.run(ctx, &c.command); err != nil {
		return nil, d.explain(s.name, err)
	}
	return c.val, d.explain(s.name, c.err)
}

// Acquire implements [driver.Driver] by one script.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return d.try(ctx, r, d.fair)
}

// try asks once, behind those in line or before them.
func (d *Driver) try(ctx context.Context, r driver.Request, fair bool) (driver.Grant, error) {
	d.checkOnce()
	args := []string{r.Token.String(), millis(r.TTL), r.Label, flag(fair)}
	if d.replicas > 0 {
		return d.acquireReplicated(ctx, r, args)
	}
	val, err := d.one(ctx, d.scripts.acquire, r.Key, args...)
	if err != nil {
		return driver.Grant{}, err
	}
	return granted(r.Key, val)
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// fenceText is a fence as the scripts write it.
func fenceText(fence int64) string {
	text := strconv.FormatInt(fence, 10)
	return "0000000000000000"[min(len(text), fenceDigits):] + text
}

const fenceDigits = 16

var errRefused = errors.New("redislock: acquire: the token was given back already")

// granted reads the answer of an acquire.
func granted(key string, val any) (driver.Grant, error) {
	if text, ok := val.(string); ok {
		fence, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return driver.Grant{}, fmt.Errorf("redislock: acquire: fence %q: it is no number", text)
		}
		return driver.Grant{Fence: fence}, nil
	}
	a, _ := val.([]any)
	if len(a) == 1 && a[0] == int64(-1) {
		return driver.Grant{}, driver.NotApplied(errRefused)
	}
	if len(a) < 3 {
		return driver.Grant{}, fmt.Errorf("redislock: acquire: an answer that is none: %v", val)
	}
	text, _ := a[1].(string)
	ttl, _ := a[2].(int64)
	return driver.Grant{}, &driver.HeldError{Holder: parse(key, text, ttl)}
}

// parse reads a record. One that is not ours holds the key all the same.
func parse(key, text string, ttl int64) driver.Holder {
	h := driver.Holder{Key: key, Remaining: max(time.Duration(ttl)*time.Millisecond, 0)}
	if ttl == 0 {
		h.Remaining = 1 // ends within the millisecond; zero stands for "not known"
	}
	const fence, rest = 2*len(h.Token) + 1, 2*len(h.Token) + 1 + fenceDigits
	if len(text) > rest+1 && text[fence-1] == ' ' && text[rest+1] == ' ' {
		n, err := strconv.ParseInt(text[fence:rest], 10, 64)
		if _, terr := hex.Decode(h.Token[:], []byte(text[:fence-1])); err == nil && terr == nil {
			// The fence is the server's time, but where that was set back.
			h.Fence, h.Since, h.Label = n, time.UnixMicro(n).UTC(), text[rest+2:]
			return h
		}
		h.Token = driver.Token{}
	}
	h.Label = text[:min(len(text), 200)]
	return h
}

// acquireReplicated is an acquire that counts only if enough replicas have it.
// WAIT speaks of its own connection, so both go in a pipeline of their own.
func (d *Driver) acquireReplicated(ctx context.Context, r driver.Request, args []string) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, driver.NotApplied(context.Cause(ctx))
	}
	c := &command{script: d.scripts.acquire, keys: []string{RedisKey(d.prefix, r.Key)}, args: args}
	var acked int64
	done := make(chan struct{})
	d.checked.Go(func() {
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
		return driver.Grant{}, d.explain("acquire", context.Cause(ctx))
	}
	if c.err != nil {
		return driver.Grant{}, d.explain("acquire", c.err)
	}
	g, err := granted(r.Key, c.val)
	if err != nil || acked >= int64(d.replicas) {
		return g, err
	}
	err = fmt.Errorf("redislock: acquire: %d of %d replicas have it after %v", acked, d.replicas, d.replicasWait)
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout(r.TTL))
	defer cancel()
	if _, rerr := d.release(back, driver.Hold{Request: r}, false); rerr != nil {
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
		c := &command{script: d.scripts.renew, keys: make([]string, len(part)), args: make([]string, 0, 3*len(part))}
		for i, h := range part {
			c.keys[i] = RedisKey(d.prefix, h.Key)
			c.args = append(c.args, h.Token.String(), fenceText(h.Fence), millis(h.TTL))
		}
		commands = append(commands, c)
	}
	if len(holds) == 0 {
		return errs
	}
	if err := d.send.run(ctx, commands...); err != nil {
		err = d.explain("renew", err)
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
				errs[at] = d.explain("renew", c.err)
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
// the next in line. A hold of fence 0 leaves the line too, and its token is refused for
// a TTL: the acquire may still be on its way.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	return d.release(ctx, h, h.Fence == 0)
}

// release refuses the token from now on if late requests may come.
func (d *Driver) release(ctx context.Context, h driver.Hold, late bool) (driver.Released, error) {
	fence, member, refuse, id := "0", "", "0", ""
	if h.Fence == 0 {
		member = d.member(h.Request)
	} else {
		fence = fenceText(h.Fence)
	}
	if late {
		refuse = millis(h.TTL)
	}
	if d.repeats {
		// The id lets the client repeat the script without being told that it is gone.
		id = driver.NewToken().String()
	}
	val, err := d.one(ctx, d.scripts.release, h.Key, h.Token.String(), fence, id, member, refuse)
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

// Close ends the subscription and waits a moment for requests under way. It closes
// the client only where the driver has made it.
func (d *Driver) Close() error {
	d.stop()
	d.hub.close()
	if d.owned {
		_ = d.rdb.Close() // also ends what waits for an answer; a server that is gone takes no farewell
	}
	d.send.close()
	d.checked.Wait()
	return nil
}
