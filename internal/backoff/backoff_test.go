package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDelayStaysUnderItsCeiling(t *testing.T) {
	p := backoff.Policy{Base: 10 * time.Millisecond, Max: 300 * time.Millisecond}
	ceilings := map[int]time.Duration{
		-1: 10 * time.Millisecond, 0: 10 * time.Millisecond, 1: 20 * time.Millisecond, 4: 160 * time.Millisecond,
		5: 300 * time.Millisecond, 61: 300 * time.Millisecond, 62: 300 * time.Millisecond, 1 << 40: 300 * time.Millisecond,
	}
	for n, ceiling := range ceilings {
		var longest time.Duration
		for range 500 {
			d := p.Delay(n)
			if d <= 0 || d > ceiling {
				t.Fatalf("Delay(%d) = %v, want within (0, %v]", n, d, ceiling)
			}
			longest = max(longest, d)
		}
		if longest < ceiling*8/10 {
			t.Errorf("Delay(%d) never came near its ceiling %v: longest %v", n, ceiling, longest)
		}
	}
}

func TestZeroPolicyHasDefaults(t *testing.T) {
	var p backoff.Policy
	for n := range 100 {
		if d := p.Delay(n); d <= 0 || d > 5*time.Second {
			t.Fatalf("Delay(%d) = %v", n, d)
		}
	}
}

func TestJitterSpreadsAroundItsMiddle(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := backoff.Jitter(time.Second, 0.1)
		low, high = min(low, d), max(high, d)
	}
	if low < 900*time.Millisecond || high > 1100*time.Millisecond || high-low < 150*time.Millisecond {
		t.Fatalf("Jitter(1s, 0.1) ranged over %v to %v", low, high)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := backoff.Wait(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Fatalf("Wait = %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := backoff.Wait(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Fatalf("Wait = %v after %v", err, time.Since(start))
		}
		if err := backoff.Wait(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait of nothing under an ended context = %v", err)
		}
	})
}
