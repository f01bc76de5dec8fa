package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Kind is what was asked.
type Kind int

// The kinds of operation.
const (
	Acquire Kind = iota
	Renew
	Release
)

// Outcome is what was answered.
type Outcome int

// The outcomes of operations.
const (
	OK      Outcome = iota
	Held            // of Acquire: another token holds the key
	NotOurs         // of Renew
	Gone            // of Release
	Other           // of Release
	Unknown         // no clear answer
)

// Op is one operation on one key.
type Op struct {
	Client   int
	Kind     Kind
	Key      string
	Token    driver.Token
	TTL      time.Duration
	Outcome  Outcome
	Fence    int64
	From     time.Duration // before the TTL began to run, since the start of the log
	Returned time.Duration // since the start of the log
	// Their order among all calls and answers.
	Call, Return int64
}

func (o Op) String() string {
	return fmt.Sprintf("client %d: %s %s by %.4s -> %s fence %d (TTL from %v, answer at %v)", o.Client,
		[]string{"acquire", "renew", "release"}[o.Kind], o.Key, o.Token,
		[]string{"ok", "held", "not ours", "gone", "other", "unknown"}[o.Outcome], o.Fence, o.From, o.Returned)
}

// Log is a history. It is safe for concurrent use. Make it with NewLog.
type Log struct {
	start time.Time
	votes bool

	mu  sync.Mutex
	seq int64
	ops []Op
}

// NewLog returns an empty history that begins now. Where nodes vote, a refusal says
// nothing: of several who ask at one moment each may be refused.
func NewLog(votes bool) *Log { return &Log{start: time.Now(), votes: votes} }

// Len returns the number of operations recorded.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops)
}

// Driver returns d with all its answers recorded as client's.
func (l *Log) Driver(client int, d driver.Driver) driver.Driver {
	return recorder{Driver: d, l: l, client: client}
}

func (l *Log) call(client int, k Kind, h driver.Hold) Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	return Op{Client: client, Kind: k, Key: h.Key, Token: h.Token, TTL: h.TTL, Fence: h.Fence, From: time.Since(l.start), Call: l.seq}
}

func (l *Log) answer(o Op, out Outcome, g driver.Grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	o.Outcome, o.Return, o.Returned = out, l.seq, time.Since(l.start)
	if g.Fence > 0 {
		o.Fence = g.Fence
	}
	if g.TTL > 0 {
		o.TTL = g.TTL
	}
	if !g.From.IsZero() {
		o.From = g.From.Sub(l.start)
	}
	l.ops = append(l.ops, o)
}

type recorder struct {
	driver.Driver
	l      *Log
	client int
}

func (r recorder) Serves(iface any) (ok bool) {
	switch iface.(type) {
	case *driver.BatchRenewer:
		_, ok = driver.As[driver.BatchRenewer](r.Driver)
	case *driver.Queuer:
		_, ok = driver.As[driver.Queuer](r.Driver)
	case *driver.Waker:
		_, ok = driver.As[driver.Waker](r.Driver)
	case *driver.LossWatcher:
		_, ok = driver.As[driver.LossWatcher](r.Driver)
	case *driver.Limiter:
		_, ok = driver.As[driver.Limiter](r.Driver)
	}
	return ok
}

func (r recorder) Acquire(ctx context.Context, q driver.Request) (driver.Grant, error) {
	o := r.l.call(r.client, Acquire, driver.Hold{Request: q})
	g, err := r.Driver.Acquire(ctx, q)
	r.acquired(o, g, err)
	return g, err
}

func (r recorder) AcquireQueued(ctx context.Context, q driver.Request) (driver.Grant, error) {
	o := r.l.call(r.client, Acquire, driver.Hold{Request: q})
	g, err := r.Driver.(driver.Queuer).AcquireQueued(ctx, q)
	r.acquired(o, g, err)
	return g, err
}

func (r recorder) acquired(o Op, g driver.Grant, err error) {
	var held *driver.HeldError
	switch {
	case err == nil:
		r.l.answer(o, OK, g)
	case errors.As(err, &held) && held.Holder.Token != o.Token:
		r.l.answer(o, Held, driver.Grant{})
	case !driver.IsNotApplied(err):
		r.l.answer(o, Unknown, driver.Grant{})
	}
}

func (r recorder) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	o := r.l.call(r.client, Renew, h)
	g, err := r.Driver.Renew(ctx, h)
	r.renewed(o, g, err)
	return g, err
}

func (r recorder) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	ops := make([]Op, len(holds))
	for i, h := range holds {
		ops[i] = r.l.call(r.client, Renew, h)
	}
	errs := r.Driver.(driver.BatchRenewer).RenewBatch(ctx, holds)
	for i, err := range errs {
		r.renewed(ops[i], driver.Grant{}, err)
	}
	return errs
}

// A renewal of unknown outcome can only have put off the end of the TTL, which is
// not held against anybody who does not know of it.
func (r recorder) renewed(o Op, g driver.Grant, err error) {
	switch {
	case err == nil:
		g.Fence = o.Fence
		r.l.answer(o, OK, g)
	case errors.Is(err, driver.ErrNotOurs):
		r.l.answer(o, NotOurs, driver.Grant{})
	}
}

func (r recorder) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	o := r.l.call(r.client, Release, h)
	out, err := r.Driver.Release(ctx, h)
	switch {
	case err == nil:
		r.l.answer(o, map[driver.Released]Outcome{
			driver.ReleasedOK: OK, driver.ReleasedGone: Gone, driver.ReleasedOther: Other,
		}[out], driver.Grant{})
	case !driver.IsNotApplied(err):
		r.l.answer(o, Unknown, driver.Grant{})
	}
	return out, err
}

func (r recorder) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return r.Driver.(driver.Waker).Wake(ctx, key)
}

func (r recorder) WatchLoss(h driver.Hold) (<-chan struct{}, func()) {
	return r.Driver.(driver.LossWatcher).WatchLoss(h)
}

func (r recorder) Limits() driver.Limits { return r.Driver.(driver.Limiter).Limits() }

func (r recorder) Close() error {
	if c, ok := r.Driver.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}
