package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
)

// Who gives up gets the answer of nobody else, and nobody gets his.
func TestAnswersFindThoseWhoAsked(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := fmt.Sprint("k", i)
			var last int64
			for round := range 60 {
				r := request(key)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if (i+round)%4 == 0 {
					time.AfterFunc(time.Duration(round)*10*time.Microsecond, cancel)
				}
				g, err := d.Acquire(ctx, r)
				cancel()
				switch {
				case err == nil && g.Fence <= last:
					t.Errorf("%s: fence %d after %d", key, g.Fence, last)
				case err == nil:
					last = g.Fence
					if x, err := d.Inspect(t.Context(), key); err != nil || x.Token != r.Token || x.Fence != g.Fence || x.Key != key {
						t.Errorf("%s: Inspect = %+v, %v", key, x, err)
					}
					released(t, d, driver.Hold{Request: r, Fence: g.Fence}, driver.ReleasedOK)
				case !errors.Is(err, context.Canceled):
					t.Errorf("%s: %v", key, err)
				default:
					if _, err := d.Release(t.Context(), driver.Hold{Request: r}); err != nil {
						t.Errorf("%s: withdrawal: %v", key, err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A lone request has no company on the way: it is written and answered at once, and the
// connection stays.
func TestOneConnectionServesAll(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	before := p.Stats()
	const cycles = 50
	for range cycles {
		released(t, d, hold(t, d, request("k")), driver.ReleasedOK)
	}
	if got := p.Stats().Sub(before); got.RoundTrips != 2*cycles || got.Conns != 0 {
		t.Errorf("%d round trips and %d new connections for %d cycles", got.RoundTrips, got.Conns, cycles)
	}
}

// Who shares a connection with one that waits longer, and reads, is told when it is
// cancelled. (TestOthersPassASilentConnection has one whose time is over.)
func TestCancelledWaiterIsTold(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	p.BlackHole(faultproxy.ToClient)
	ask := func(key string) (cancel context.CancelFunc, answer chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		before := p.Stats()
		answer = make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, request(key))
			answer <- err
		}()
		if err := p.Await(t.Context(), func(st faultproxy.Stats) bool { return st.BytesToServer > before.BytesToServer }); err != nil {
			t.Error(err)
		}
		return cancel, answer
	}
	stop, reads := ask("reads")
	defer stop()
	cancel, waits := ask("waits")
	cancel()
	select {
	case err := <-waits:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case err := <-reads:
		t.Fatalf("who reads is told: %v", err)
	}
	stop()
	<-reads
}

// A server that has closed the idle connection costs no request.
func TestClosedIdleConnectionIsReplaced(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := process(t, p.Addr(), s.DB)
	warm(t, d)
	<-time.After(1100 * time.Millisecond) // it is not looked at before it has been idle for a second
	p.Reset()
	released(t, d, hold(t, d, request("k")), driver.ReleasedOK)
}
