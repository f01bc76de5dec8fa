package locks

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// MaxPermits is the largest [Semaphore].
const MaxPermits = 128

// Semaphore lets up to n holders in, of all processes together. A permit is a
// [Lease] on one of n keys, KEY:permit:0 to KEY:permit:n-1, so it has an owner, is
// renewed, can be lost, and cannot be given back twice. It is safe for concurrent
// use.
//
// Guaranteed: never more leases at a time than the largest n that any process uses
// for the key. Processes that use different n are not found out; each is kept to its
// own.
//
// Not guaranteed: fences grow over the grants of one permit, but say nothing about
// another permit, so a resource must keep a high-water mark for each [Lease.Key].
//
// Cost: one request while the permit that this process had last is free, and at most
// n to learn that all are held; permits held by this process cost none. Those who
// wait stand in one line (the lock KEY:line), and only its first looks at the
// permits, at all of them as [Locker.Acquire] looks at one key: n looks each
// Config.Poll for the whole cluster, or n places in line where the backend keeps
// lines. Who comes when a permit is free does not stand in line. If the first in
// line dies, the others wait for its TTL, while permits that become free go to
// newcomers.
type Semaphore struct {
	l       *Locker
	line    string
	permits []string
	next    atomic.Int32 // where to look first
}

// NewSemaphore returns the semaphore called key with n permits, 1 to [MaxPermits].
// No request is sent. Every process must use the same n.
func NewSemaphore(l *Locker, key string, n int) (*Semaphore, error) {
	switch {
	case l == nil:
		return nil, invalid("locker: it is nil; make one first")
	case n < 1 || n > MaxPermits:
		return nil, invalid("permits: %d; use 1 to %d", n, MaxPermits)
	}
	if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
		return nil, err
	}
	s := &Semaphore{l: l, line: key + ":line", permits: make([]string, n)}
	for i := range s.permits {
		s.permits[i] = key + ":permit:" + strconv.Itoa(i)
	}
	if err := checkKey(s.permits[n-1], l.limits.MaxKeyBytes); err != nil {
		return nil, err
	}
	// Processes that look at the same permits in the same order meet at each.
	s.next.Store(rand.Int32N(int32(n)))
	return s, nil
}

// TryAcquire takes a permit if one is free. Errors are those of
// [Locker.TryAcquire]; ErrHeld, with the holder that ends first as far as that is
// known, means that all permits are held.
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...Option) (*Lease, error) {
	opts = append(slices.Clip(opts), withoutReentry)
	first := int(s.next.Load())
	var soonest *HeldError
	for i := range s.permits {
		at := (first + i) % len(s.permits)
		lease, err := s.l.TryAcquire(ctx, s.permits[at], opts...)
		if err == nil {
			s.next.Store(int32(at))
			return lease, nil
		}
		var held *HeldError
		if !errors.As(err, &held) || ctx.Err() != nil {
			return nil, err
		}
		if soonest == nil || held.Holder.Remaining > 0 && held.Holder.Remaining < soonest.Holder.Remaining {
			soonest = held
		}
	}
	return nil, soonest
}

// Acquire waits for a permit. Errors are those of [Locker.Acquire].
func (s *Semaphore) Acquire(ctx context.Context, opts ...Option) (*Lease, error) {
	lease, err := s.TryAcquire(ctx, opts...)
	if !errors.Is(err, ErrHeld) || ctx.Err() != nil {
		return lease, err
	}
	opts = append(slices.Clip(opts), withoutReentry)
	line, err := s.l.Acquire(ctx, s.line, opts...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = line.Release(ctx) }() // what is unknown is settled in the background
	work, cancel := line.Context(ctx)        // who is no longer the first has no right to look
	defer cancel()
	lease, err = s.any(work, opts)
	if lease == nil && ctx.Err() == nil && errors.Is(line.Err(), ErrLost) {
		err = &UnavailableError{Key: s.line, Op: OpAcquire, Err: line.Err()}
	}
	return lease, err
}

// any waits for all permits at once, takes the first that comes, and gives back
// what comes besides.
func (s *Semaphore) any(ctx context.Context, opts []Option) (*Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		won   *Lease
		fault error
	)
	for i, permit := range s.permits {
		wg.Go(func() {
			lease, err := s.l.Acquire(ctx, permit, opts...)
			mu.Lock()
			first := won == nil && err == nil
			switch {
			case first:
				won = lease
				s.next.Store(int32(i))
			case err != nil && (fault == nil || ctx.Err() == nil):
				fault = err
			}
			mu.Unlock()
			cancel() // also after an error: a permit that cannot be asked for may be free
			if lease != nil && !first {
				_ = lease.Release(ctx)
			}
		})
	}
	wg.Wait()
	if won != nil {
		return won, nil
	}
	return nil, fault
}

func withoutReentry(o *options) { o.fresh = true }
