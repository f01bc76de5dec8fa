package leader

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks"
)

const (
	maxPriority = 9
	// rankEvery is how often a process looks for those with a higher priority.
	rankEvery = time.Second
)

// rank is what a process knows of the priorities in its election. Each number is a key:
// whoever has it shows that a process with that priority runs.
type rank struct {
	locker *locks.Locker
	opts   []locks.Option
	own    string
	above  []string
}

func newRank(l *locks.Locker, key string, cfg Config, opts []locks.Option) *rank {
	if cfg.Priority == 0 {
		return nil
	}
	of := func(n int) string { return key + ":priority:" + strconv.Itoa(n) }
	r := &rank{locker: l, opts: opts, own: of(cfg.Priority)}
	for n := cfg.Priority + 1; n <= maxPriority; n++ {
		r.above = append(r.above, of(n))
	}
	return r
}

// show holds the own number until ctx ends, as one of those who have it.
func (r *rank) show(ctx context.Context) {
	for n := 0; ; n++ {
		lease, err := r.locker.Acquire(ctx, r.own, r.opts...)
		if err == nil {
			n = 0
			select {
			case <-lease.Done():
			case <-ctx.Done():
			}
			_ = lease.Release(context.WithoutCancel(ctx)) // what is unknown ends with its TTL
		}
		if ctx.Err() != nil || backoff.Wait(ctx, retry.Delay(n)) != nil {
			return
		}
	}
}

// outranked reports whether a process with a higher priority runs.
func (r *rank) outranked(ctx context.Context) (bool, error) {
	if len(r.above) == 0 {
		return false, nil
	}
	found, err := r.locker.Survey(ctx, r.above)
	return len(found) > 0, err
}

// await waits until nobody runs who comes first. It is asked before each campaign.
func (r *rank) await(ctx context.Context, answered func(error)) error {
	if r == nil {
		return nil
	}
	for {
		over, err := r.outranked(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && !over:
			return nil
		case !errors.Is(err, locks.ErrInvalid):
			answered(unavailable(err))
		}
		if err := backoff.Wait(ctx, backoff.Jitter(rankEvery, 0.1)); err != nil {
			return err
		}
	}
}

// watch calls yield once when a process with a higher priority has come, until stop is
// called.
func (r *rank) watch(ctx context.Context, yield func()) (stop func()) {
	if r == nil || len(r.above) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if over, err := r.outranked(ctx); err == nil && over {
				yield()
				return
			}
			if backoff.Wait(ctx, backoff.Jitter(rankEvery, 0.1)) != nil {
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
