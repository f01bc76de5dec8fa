package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
)

// company is a driver whose calls can be made to go together.
type company struct {
	*Driver
	t     *testing.T
	admin *redis.Client
}

func inCompany(t *testing.T, server *testenv.Server, user string) *company {
	t.Helper()
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: user, MaxRetries: -1, ContextTimeoutEnabled: true})
	d, err := NewDriver(rdb, WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), rdb.Close(), admin.Close()); err != nil {
			t.Error(err)
		}
	})
	c := &company{d, t, admin}
	_, _ = c.Acquire(t.Context(), c.request("warm")) // dials
	d.Checked()
	return c
}

func (c *company) request(key string) driver.Request {
	return driver.Request{Key: key, Token: driver.NewToken(), TTL: time.Minute, Label: "host 1"}
}

// together makes n calls that are sent at once, and returns how many scripts the
// server was asked for.
func (c *company) together(n int, call func(i int)) int {
	c.t.Helper()
	before := c.scripts()
	d := c.send.(*direct)
	d.mu.Lock()
	l := d.lanes[0]
	l.writing = true // as if a write were under way
	d.mu.Unlock()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { call(i) })
	}
	waiting := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		l.progress = time.Now() // else those who come late take another connection
		if l.unsent < n {
			return false
		}
		l.write(time.Now())
		return true
	}
	for end := time.Now().Add(time.Minute); !waiting(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatal("the calls do not come")
		}
	}
	wg.Wait()
	return c.scripts() - before
}

func (c *company) scripts() (n int) {
	c.t.Helper()
	info, err := c.admin.Info(c.t.Context(), "commandstats").Result()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range []string{"cmdstat_eval:calls=", "cmdstat_evalsha:calls="} {
		var one int
		if _, rest, found := strings.Cut(info, name); found {
			_, _ = fmt.Sscan(rest, &one)
		}
		n += one
	}
	return n
}

func (c *company) acquire(keys ...string) ([]driver.Hold, []error, int) {
	c.t.Helper()
	holds, errs := make([]driver.Hold, len(keys)), make([]error, len(keys))
	n := c.together(len(keys), func(i int) {
		r := c.request(keys[i])
		g, err := c.Acquire(c.t.Context(), r)
		holds[i], errs[i] = driver.Hold{Request: r, Fence: g.Fence}, err
	})
	return holds, errs, n
}

func TestRequestsTogetherAreOneScript(t *testing.T) {
	c := inCompany(t, testenv.Redis(t), "")
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	last := map[string]int64{}
	for round := range 3 {
		most := 1
		if round == 2 { // the server has forgotten the scripts
			if err := c.admin.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			most += 1 + len(keys)
		}
		holds, errs, n := c.acquire(keys...)
		if err := errors.Join(errs...); err != nil || n > most {
			t.Fatalf("round %d: %d scripts for %d acquires, %v", round, n, len(keys), err)
		}
		for _, h := range holds {
			if h.Fence <= last[h.Key] {
				t.Errorf("%s: fence %d after %d", h.Key, h.Fence, last[h.Key])
			}
			last[h.Key] = h.Fence
			if x, err := c.Inspect(t.Context(), h.Key); err != nil || x.Token != h.Token || x.Fence != h.Fence || x.Label != h.Label {
				t.Errorf("%s: Inspect = %+v, %v", h.Key, x, err)
			}
		}
		n = c.together(len(holds), func(i int) {
			if out, err := c.Release(t.Context(), holds[i]); err != nil || out != driver.ReleasedOK {
				t.Errorf("%s: Release = %v, %v", holds[i].Key, out, err)
			}
		})
		if n > most {
			t.Errorf("round %d: %d scripts for %d releases", round, n, len(keys))
		}
	}
}

// Each of those who are asked for together has its own answer.
func TestEachHasItsOwnAnswer(t *testing.T) {
	c := inCompany(t, testenv.Redis(t), "")
	ctx := t.Context()
	held := c.request("held")
	if _, err := c.Acquire(ctx, held); err != nil {
		t.Fatal(err)
	}
	ahead := time.Now().Add(time.Hour).UnixMicro()
	err := errors.Join(
		c.admin.LPush(ctx, RedisKey(DefaultPrefix, "list"), 1).Err(),
		c.admin.LPush(ctx, RedisKey(DefaultPrefix, "count")+":f", 1).Err(),
		c.admin.Set(ctx, RedisKey(DefaultPrefix, "ahead")+":f", fmt.Sprint(ahead, "--"), 0).Err(),
	)
	if err != nil {
		t.Fatal(err)
	}
	holds, errs, n := c.acquire("free", "held", "twice", "list", "count", "ahead", "twice")
	if n != 1 {
		t.Errorf("%d scripts", n)
	}
	isHeldBy := func(err error, token driver.Token) bool {
		var h *driver.HeldError
		return errors.As(err, &h) && h.Holder.Token == token
	}
	if errs[0] != nil || errs[5] != nil || holds[5].Fence != ahead+1 {
		t.Errorf("free keys: %v, %v, fence %d, want %d", errs[0], errs[5], holds[5].Fence, ahead+1)
	}
	if !isHeldBy(errs[1], held.Token) {
		t.Errorf("held key: %v", errs[1])
	}
	first, second := 2, 6
	if errs[first] != nil {
		first, second = second, first
	}
	if errs[first] != nil || !isHeldBy(errs[second], holds[first].Token) {
		t.Errorf("one key twice: %v, %v", errs[2], errs[6])
	}
	for _, i := range []int{3, 4} {
		if !redis.HasErrorPrefix(errors.Unwrap(errs[i]), "WRONGTYPE") || driver.IsNotApplied(errs[i]) {
			t.Errorf("%s: %v", holds[i].Key, errs[i])
		}
	}
	if kind := c.admin.Type(ctx, RedisKey(DefaultPrefix, "list")).Val(); kind != "list" {
		t.Errorf("what was not ours is a %s now", kind)
	}
	// A token that is not the holder's, a key that is free, and one for which somebody
	// stands in line.
	queued := make(chan driver.Hold, 1)
	go func() {
		r := c.request("free")
		g, err := c.AcquireQueued(context.Background(), r)
		if err != nil {
			t.Error(err)
		}
		queued <- driver.Hold{Request: r, Fence: g.Fence}
	}()
	for c.admin.ZCard(ctx, RedisKey(DefaultPrefix, "free")+":q").Val() == 0 {
		<-time.After(time.Millisecond)
	}
	theirs := driver.Hold{Request: c.request("held"), Fence: holds[0].Fence}
	gone := driver.Hold{Request: c.request("gone"), Fence: holds[0].Fence}
	back := []driver.Hold{holds[0], theirs, gone, holds[first], holds[5]}
	want := []driver.Released{driver.ReleasedOK, driver.ReleasedOther, driver.ReleasedGone, driver.ReleasedOK, driver.ReleasedOK}
	c.together(len(back), func(i int) {
		if out, err := c.Release(ctx, back[i]); err != nil || out != want[i] {
			t.Errorf("%s: Release = %v, %v, want %v", back[i].Key, out, err, want[i])
		}
	})
	if h := <-queued; h.Fence <= holds[0].Fence {
		t.Errorf("fence %d after %d", h.Fence, holds[0].Fence)
	}
}

// A refusal that names one key must not be the answer to the others.
func TestARefusedKeyRefusesNoOther(t *testing.T) {
	server := testenv.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = admin.Close() }()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "poor", "on", ">poor", "~solotick:{a*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	c := inCompany(t, server, "poor")
	_, errs, _ := c.acquire("a1", "b", "a2")
	if errs[0] != nil || errs[2] != nil {
		t.Error(errs)
	}
	if !redis.HasErrorPrefix(errors.Unwrap(errs[1]), "NOPERM") && !strings.Contains(fmt.Sprint(errs[1]), "NOPERM") || !driver.IsNotApplied(errs[1]) {
		t.Errorf("the refused key: %v", errs[1])
	}
}

// A release goes behind a ping, whose answer is nobody's, also where it is a refusal: to
// hand over costs no time that whoever releases spends on hearing of it.
func TestReleaseGoesBehindAPing(t *testing.T) {
	for user, rule := range map[string]string{"pings": "+ping", "mute": "-ping"} {
		t.Run(user, func(t *testing.T) {
			server := testenv.Redis(t)
			admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer func() { _ = admin.Close() }()
			if err := admin.Do(t.Context(), "ACL", "SETUSER", user, "on", ">"+user, "~*", "&*", "+@all", rule).Err(); err != nil {
				t.Fatal(err)
			}
			c := inCompany(t, server, user)
			pings := func() (n int) {
				for line := range strings.Lines(admin.Info(t.Context(), "commandstats").Val()) {
					if stats, ok := strings.CutPrefix(line, "cmdstat_ping:"); ok {
						var calls, usec, rejected int
						var each string
						_, _ = fmt.Sscanf(strings.ReplaceAll(stats, ",", " "), "calls=%d usec=%d usec_per_call=%s rejected_calls=%d", &calls, &usec, &each, &rejected)
						n = calls + rejected
					}
				}
				return n
			}
			holds, errs, _ := c.acquire("a", "b", "c")
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			before := pings()
			for i := range holds { // alone
				if out, err := c.Release(t.Context(), holds[i]); err != nil || out != driver.ReleasedOK {
					t.Errorf("Release = %v, %v", out, err)
				}
			}
			if n := pings() - before; n < len(holds) { // a new connection makes one, too
				t.Errorf("%d pings for %d releases", n, len(holds))
			}
			if holds, errs, _ = c.acquire("a", "b", "c"); errors.Join(errs...) != nil {
				t.Fatal(errs)
			}
			c.together(len(holds), func(i int) {
				if out, err := c.Release(t.Context(), holds[i]); err != nil || out != driver.ReleasedOK {
					t.Errorf("Release together = %v, %v", out, err)
				}
			})
		})
	}
}

// A hold of an hour and more renews the life of its counter when it ends.
func TestCounterOutlivesALongHold(t *testing.T) {
	c := inCompany(t, testenv.Redis(t), "")
	holds, errs, _ := c.acquire("k", "l")
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range holds { // as if granted an hour and a bit ago
		holds[i].Fence -= (fenceFresh + time.Minute).Microseconds()
		k := RedisKey(DefaultPrefix, holds[i].Key)
		record := holds[i].Token.String() + " " + fenceText(holds[i].Fence) + "- host 1"
		if err := errors.Join(c.admin.Set(t.Context(), k, record, time.Minute).Err(), c.admin.PExpire(t.Context(), k+":f", time.Hour).Err()); err != nil {
			t.Fatal(err)
		}
	}
	c.together(len(holds), func(i int) {
		if out, err := c.Release(t.Context(), holds[i]); err != nil || out != driver.ReleasedOK {
			t.Errorf("Release = %v, %v", out, err)
		}
	})
	for _, h := range holds {
		if ttl := c.admin.PTTL(t.Context(), RedisKey(DefaultPrefix, h.Key)+":f").Val(); ttl < fenceLife-time.Minute {
			t.Errorf("the counter of %s lives for %v more", h.Key, ttl)
		}
	}
}
