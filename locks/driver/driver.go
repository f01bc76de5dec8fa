// Package driver is the seam between the portable lock (package locks) and a
// lock backend.
//
// A backend implements [Driver], three methods, and whatever optional interface
// it can serve: [BatchRenewer], [Queuer], [Waker], [Watcher], [LossWatcher],
// [LossTeller], [Inspector], [Limiter], io.Closer. The portable lock looks for them
// with [As]. Everything that is the same on every backend (renewal, loss,
// deadlines, waiting, the queue inside a process, error wrapping) lives in package
// locks and is not a driver's job.
//
// What a driver must guarantee:
//   - Mutual exclusion: while a grant's TTL runs, by the backend's own clock,
//     no other token is granted the key.
//   - A grant is idempotent in its token: Acquire repeated with the token that
//     holds the key answers with the same fence and a fresh TTL, never Held.
//   - The fence grows strictly with every new grant of a key, also after
//     release, expiry and restart of the holder. Renewal does not raise it.
//   - Renew and Release act only where key, token and fence are all still
//     those of the hold.
//   - No method blocks longer than its context.
//
// What it need not do: retry, time leases on the caller's side, queue callers
// of one process, or wrap errors.
package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Driver is a lock backend. Implementations are safe for concurrent use.
type Driver interface {
	// Acquire asks for the key once, without waiting for a holder to go.
	//
	// A nil error is a grant. *HeldError means that another token holds the key.
	// An error wrapped by NotApplied means that nothing changed at the backend, or that
	// the driver takes back by itself what did: the token is not used again.
	// Any other error is unknown: the grant may exist, and the caller settles it
	// by repeating with the same token or by releasing.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew starts the hold's TTL anew. A nil error means renewed; ErrNotOurs
	// means that the key is definitely no longer this hold's; anything else is
	// unknown. Of the Grant, From counts, and TTL where less was given than by
	// Acquire.
	Renew(ctx context.Context, h Hold) (Grant, error)

	// Release gives the key back if it is still the hold's. It is idempotent: a
	// second call answers Gone (or Other) and changes nothing. An error means
	// that the outcome is unknown. A hold whose Fence is 0 (an acquire of
	// unknown outcome) is released by key and token alone.
	Release(ctx context.Context, h Hold) (Released, error)
}

// BatchRenewer renews many holds in one request, each for the TTL that Acquire gave
// it. The result has one entry per hold, in order, with the meaning of Renew's error.
type BatchRenewer interface {
	RenewBatch(ctx context.Context, holds []Hold) []error
}

// Waker pushes a hint when a key may have become free. Hints may be lost or
// spurious; the portable lock polls beside them.
type Waker interface {
	// Wake delivers hints for key on the channel (capacity 1, never closed)
	// until stop is called. Subscribing happens before it returns, and ctx bounds
	// no more than that.
	Wake(ctx context.Context, key string) (hint <-chan struct{}, stop func(), err error)
}

// Watcher pushes changes of who holds a key, for those who do not wait for it.
type Watcher interface {
	// Watch delivers a hint on the channel (capacity 1, never closed) after the holder of
	// key may have changed, also by the end of a TTL, until stop is called or ctx ends. It
	// has begun when it returns, and an outage ends it for no longer than it lasts, with
	// a hint.
	Watch(ctx context.Context, key string) (hint <-chan struct{}, stop func(), err error)
}

// Inspector tells who holds what.
type Inspector interface {
	// Inspect returns the holder of key, or ErrFree.
	Inspect(ctx context.Context, key string) (Holder, error)
	// List returns the held keys that begin with prefix, in key order, at most
	// limit of them.
	List(ctx context.Context, prefix string, limit int) ([]Holder, error)
	// ForceRelease ends whatever grant the key has and raises the fence, so that
	// the holder thrown out is refused by everything that checks fences.
	ForceRelease(ctx context.Context, key string) (Released, error)
}

// Surveyor is an Inspector that looks at several keys by one request.
type Surveyor interface {
	// Survey returns the holders of those of the keys that are held, in any order.
	// Their Remaining and Waiters may be left out.
	Survey(ctx context.Context, keys []string) ([]Holder, error)
}

// Partial is a driver with methods that it may not be able to serve: a wrapper
// around any driver, or a driver of which an option turns something off.
type Partial interface {
	// Serves reports whether the optional interface that iface points to, such as
	// (*Queuer)(nil), may be used.
	Serves(iface any) bool
}

// As returns d as the optional interface T, if it has and serves it.
func As[T any](d Driver) (T, bool) {
	if p, ok := d.(Partial); ok && !p.Serves((*T)(nil)) {
		var none T
		return none, false
	}
	t, ok := d.(T)
	return t, ok
}

// Limiter declares what a backend cannot do, so that it is refused at
// construction or before a request is sent.
type Limiter interface {
	Limits() Limits
}

// Limits of a backend. Zero values mean no limit.
type Limits struct {
	MinTTL      time.Duration // shortest TTL the backend honours
	Granularity time.Duration // TTLs must be a multiple of this
	MaxKeyBytes int           // longest key, if less than 512
}

// Token is the owner of one grant: 128 random bits, compared whole.
type Token [16]byte

// NewToken draws a token from the system's random source.
func NewToken() Token {
	var t Token
	rand.Read(t[:]) // never fails since Go 1.24
	return t
}

// String is the token in lower-case hex, 32 characters.
func (t Token) String() string { return hex.EncodeToString(t[:]) }

// Request asks for a key.
type Request struct {
	Key   string        // whole key, such as lock:shop:cron:report: 1 to 512 bytes of UTF-8 without control characters
	Token Token         // owner of the grant asked for
	TTL   time.Duration // life of the grant, counted by the backend
	Label string        // host, pid and the like, for people only; at most 200 bytes
	// Answered, where it is not nil, is told by AcquireQueued of its looks: nil when the
	// backend said that the key is held, the error when it did not answer.
	Answered func(err error)
}

// Tell calls Answered, if there is one.
func (r Request) Tell(err error) {
	if r.Answered != nil {
		r.Answered(err)
	}
}

// Queuer keeps waiters at the backend, in the order in which they came, and
// pushes the grant to the next one: a hand-over without a race and without a
// poll. A backend that has it is asked by it whenever a caller waits.
type Queuer interface {
	// AcquireQueued waits in line until the key is granted or ctx ends. The errors
	// are those of Acquire, but for HeldError, and that ctx's error is returned as it
	// is. Whatever the reason, a call that fails leaves the line, with a time limit
	// of its own, or returns an error that is not marked NotApplied, so that the
	// caller settles it by a Release with Fence 0. To have left for certain is
	// NotApplied(ctx.Err()), which spares that request.
	//
	// The call may last for days, and the caller cannot tell a long line from a
	// silent backend: the driver must, within a few seconds, and return an error. Until
	// then, and once it stands in line, it tells Request.Answered, in turn, and not after
	// it has returned. Where ctx ends the wait, the caller is told that the key is held
	// only if that was the last answer. A grant that was waited for sets Grant.From.
	AcquireQueued(ctx context.Context, r Request) (Grant, error)
}

// LossWatcher tells at once that a hold has ended, where the backend pushes that:
// a deleted key, an ended session. Renewal stays the authority.
type LossWatcher interface {
	// WatchLoss returns a channel that is closed when the backend says that the hold
	// is over. It never is for a mere loss of connection. Stop ends the watch.
	WatchLoss(h Hold) (lost <-chan struct{}, stop func())
}

// LossTeller is LossWatcher by a call, for backends whose processes hold thousands of
// keys: a channel, and a place in a goroutine's select, cost about 250 bytes more for
// each hold. Where a driver is both, the call is used.
type LossTeller interface {
	// TellLoss calls lost, at most once, where the channel of WatchLoss would be
	// closed. The call may come under locks of the driver's: it neither blocks nor
	// calls the driver.
	TellLoss(h Hold, lost func()) (stop func())
}

// Grant is a key given for a time.
type Grant struct {
	Fence int64         // greater than every earlier grant's of this key; at least 1
	TTL   time.Duration // what the backend really gave; zero means as asked
	// From is a moment of this process (with monotonic reading) at which the TTL had
	// not begun to run yet, where that is not the sending of the request: a queued
	// grant may be made any time after the waiter's last sign of life. Zero means
	// when the request was sent.
	From time.Time
}

// Hold identifies a grant to renew or release.
type Hold struct {
	Request
	Fence int64
}

// Holder describes a held key to people and programs.
type Holder struct {
	Key       string
	Label     string
	Token     Token
	Fence     int64
	Since     time.Time     // by the backend's clock; zero if not known
	Remaining time.Duration // zero if not known
	Waiters   int           // those in line at the backend; zero also if not known
}

// Released is the answer to a release.
type Released int

// The answers to a release.
const (
	ReleasedOK    Released = iota + 1 // it was ours and is free now
	ReleasedGone                      // nobody held it: it had ended before
	ReleasedOther                     // somebody else holds it; nothing was changed
)

// String names the answer.
func (r Released) String() string {
	switch r {
	case ReleasedOK:
		return "released"
	case ReleasedGone:
		return "already gone"
	case ReleasedOther:
		return "held by another"
	}
	return fmt.Sprintf("Released(%d)", int(r))
}

var (
	// ErrNotOurs says that a hold has definitely ended.
	ErrNotOurs = errors.New("driver: the hold is no longer ours")
	// ErrFree is Inspect's answer for a key that nobody holds.
	ErrFree = errors.New("driver: nobody holds the key")
)

// HeldError says that another token holds the key.
type HeldError struct{ Holder Holder }

func (e *HeldError) Error() string {
	return fmt.Sprintf("driver: %q is held by %q", e.Holder.Key, e.Holder.Label)
}

// NotApplied marks an error after which the backend is known to be unchanged,
// such as a refused connection: there is nothing to settle.
func NotApplied(err error) error {
	if err == nil {
		return nil
	}
	return &notApplied{err}
}

// IsNotApplied reports whether err was marked by NotApplied.
func IsNotApplied(err error) bool {
	var n *notApplied
	return errors.As(err, &n)
}

type notApplied struct{ err error }

func (e *notApplied) Error() string { return e.err.Error() }
func (e *notApplied) Unwrap() error { return e.err }
