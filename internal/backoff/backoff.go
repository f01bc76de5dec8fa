// Package backoff spaces retries so that many clients of one struggling server
// do not come back together: exponential growth with full jitter (M. Brooker,
// "Exponential Backoff And Jitter", 2015), and a bound.
//
// It does not count tries: the caller bounds them, by number or by a context.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy says how long to wait between tries. The zero Policy is ready for use.
// It is an immutable value.
type Policy struct {
	Base time.Duration // ceiling of the first delay (default 50 ms)
	Max  time.Duration // ceiling of every delay (default 5 s)
}

// Delay returns a random delay before retry number n, counted from 0: evenly
// spread over (0, min(Max, Base * 2^n)].
func (p Policy) Delay(n int) time.Duration {
	base, limit := p.Base, p.Max
	if base <= 0 {
		base = 50 * time.Millisecond
	}
	if limit <= 0 {
		limit = 5 * time.Second
	}
	ceiling := limit
	if n = max(n, 0); n < 62 && base <= limit>>n {
		ceiling = base << n
	}
	return 1 + rand.N(ceiling)
}

// Jitter spreads d evenly over [d-share*d, d+share*d]; share lies between 0 and 1.
func Jitter(d time.Duration, share float64) time.Duration {
	return d + time.Duration((2*rand.Float64()-1)*share*float64(d))
}

// Wait blocks for d, or until ctx ends, and then returns the context's error. A
// context that has ended wins over a d that is not positive.
func Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
