package driver

import (
	"context"

	locks "github.com/solotick/solotick/locks/driver"
)

// QueueLock is a lock backend that keeps waiters in line, pushes the grant to the next
// of them, and pushes the end of a hold.
type QueueLock interface {
	locks.Driver
	locks.Queuer
	locks.Inspector
	locks.LossWatcher
	// Watch hints that the holder of key may have changed, as [Watcher] has it.
	Watch(ctx context.Context, key string) (hint <-chan struct{}, stop func(), err error)
}

// FromQueue makes an election of such a backend: candidates stand in the line of a key,
// its holder leads, and the fence is the number of the term. It implements [Observer],
// [Watcher] and [Notifier].
func FromQueue(d QueueLock) Driver { return queue{d} }

type queue struct{ d QueueLock }

var (
	_ Observer      = queue{}
	_ Watcher       = queue{}
	_ Notifier      = queue{}
	_ locks.Limiter = queue{}
)

func (c Candidate) request() locks.Request {
	return locks.Request{Key: c.Election, Token: c.Token, TTL: c.TTL, Label: c.Label}
}

func (t Term) hold() locks.Hold { return locks.Hold{Request: t.request(), Fence: t.Number} }

// Campaign implements [Driver].
func (q queue) Campaign(ctx context.Context, c Candidate, answered func()) (Grant, error) {
	r := c.request()
	r.Answered = func(err error) {
		if err == nil {
			answered()
		}
	}
	g, err := q.d.AcquireQueued(ctx, r)
	if err != nil {
		return Grant{}, err
	}
	answered()
	return Grant{Number: g.Fence, TTL: g.TTL}, nil
}

// Keep implements [Driver].
func (q queue) Keep(ctx context.Context, t Term) (Grant, error) {
	g, err := q.d.Renew(ctx, t.hold())
	return Grant{Number: t.Number, TTL: g.TTL}, err
}

// Resign implements [Driver].
func (q queue) Resign(ctx context.Context, t Term) (locks.Released, error) {
	return q.d.Release(ctx, t.hold())
}

// Leader implements [Observer].
func (q queue) Leader(ctx context.Context, election string) (locks.Holder, error) {
	return q.d.Inspect(ctx, election)
}

// Watch implements [Watcher].
func (q queue) Watch(ctx context.Context, election string) (<-chan struct{}, func(), error) {
	return q.d.Watch(ctx, election)
}

// Ended implements [Notifier].
func (q queue) Ended(t Term) (<-chan struct{}, func()) { return q.d.WatchLoss(t.hold()) }

// Limits implements [locks.Limiter].
func (q queue) Limits() locks.Limits {
	if l, ok := locks.As[locks.Limiter](q.d); ok {
		return l.Limits()
	}
	return locks.Limits{}
}
