package locks

import (
	"context"
	"errors"
)

// reentry is the key of a context's value: the Lease of one key of one Locker.
type reentry struct {
	l   *Locker
	key string
}

// ContextWith returns a child of ctx that carries lease: whoever acquires the same
// key of the same [Locker] with it, by [Locker.Acquire], [Locker.TryAcquire] or
// [Locker.Do], has it already and need not wait. Each such acquire gives a [Lease]
// of its own, which must be released; the key is given back with the last of them,
// by one request. TTL, label and loss policy stay those of the first.
//
// Re-entry goes by the context alone. Two goroutines of one process exclude each
// other unless both work with such a context, and then they share the lock.
//
// Once the lease is lost, an acquire with the context fails with [ErrLost]; once it
// is released, it is one like any other. [Semaphore] does not honour it.
func ContextWith(ctx context.Context, lease *Lease) context.Context {
	return context.WithValue(ctx, reentry{lease.g.l, lease.g.s.key}, lease.g)
}

// reenter takes the grant that ctx carries for key once more. It returns nothing
// where there is none.
func (l *Locker) reenter(ctx context.Context, key string, w wanted) (*Lease, error) {
	g, ok := ctx.Value(reentry{l, key}).(*grant)
	if !ok || w.fresh {
		return nil, nil
	}
	var n ending
	l.mu.Lock()
	if g.err == nil && g.deadline.Expired() {
		n = l.lose(g, ReasonUnavailable)
	}
	defer n.tell()
	defer l.mu.Unlock()
	switch {
	case errors.Is(g.err, ErrLost):
		return nil, g.err
	case g.err != nil || g.open() == 0:
		return nil, nil // given back
	}
	e := &Lease{g: g}
	aside := g.setAside()
	aside.inner = append(aside.inner, e)
	return e, nil
}
