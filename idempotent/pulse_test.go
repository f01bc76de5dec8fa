package idempotent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

type beats func(ctx context.Context) (store.Heartbeats, error)

func (b beats) Heartbeat(ctx context.Context, _ store.HeartbeatRequest) (store.Heartbeats, error) {
	return b(ctx)
}

// However the store fails, the work ends a margin before the lease does.
func TestPulseEndsTheWorkBeforeItsLease(t *testing.T) {
	good := func(context.Context) (store.Heartbeats, error) {
		return store.Heartbeats{Beats: make([]store.BeatAnswer, 1)}, nil
	}
	for _, c := range []struct {
		name string
		bad  beats
	}{
		{"hangs", func(ctx context.Context) (store.Heartbeats, error) {
			<-ctx.Done()
			return store.Heartbeats{}, ctx.Err()
		}},
		{"hangs for longer than asked", func(context.Context) (store.Heartbeats, error) {
			time.Sleep(time.Minute)
			return store.Heartbeats{}, store.ErrUnavailable
		}},
		{"fails", func(context.Context) (store.Heartbeats, error) { return store.Heartbeats{}, store.ErrUnavailable }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				var last time.Time
				st := beats(func(ctx context.Context) (store.Heartbeats, error) {
					if n++; n <= 3 {
						last = time.Now()
						return good(ctx)
					}
					return c.bad(ctx)
				})
				start := time.Now()
				work, p := startPulse(t.Context(), st, store.Execution{}, 10*time.Second, leaseclock.Now())
				<-work.Done()
				if !errors.Is(context.Cause(work), ErrLeaseLost) {
					t.Errorf("the cause is %v", context.Cause(work))
				}
				if since := time.Since(last); since != 8*time.Second || time.Since(start) < 16*time.Second {
					t.Errorf("it ended %v after the last beat, want 8s", since)
				}
				p.stop()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		work, p := startPulse(t.Context(), beats(good), store.Execution{}, 10*time.Second, leaseclock.Now())
		time.Sleep(time.Hour)
		if work.Err() != nil {
			t.Errorf("it ended: %v", context.Cause(work))
		}
		p.stop()
	})
}
