package idempotent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
)

// Key names a request. Two calls are the same request if all three are the same
// bytes.
type Key struct {
	Namespace string // as the scheduler's: keeps applications apart in one store
	Job       string // what is done, such as "create-order"; no job or kind of a scheduler's
	Name      string // the caller's idempotency key, such as an order id or a UUID
}

// String is the key for people.
func (k Key) String() string { return k.Job + "/" + k.Name }

func (k Key) run() store.Key { return store.Key{Class: store.ClassKey, Job: k.Job, Name: k.Name} }

func (k Key) check() error {
	for _, f := range []struct {
		name, value string
		most        int
	}{{"Namespace", k.Namespace, 128}, {"Job", k.Job, 128}, {"Name", k.Name, 1024}} {
		switch {
		case f.value == "":
			return fmt.Errorf("idempotent: Key.%s is empty: name it", f.name)
		case len(f.value) > f.most:
			return fmt.Errorf("idempotent: Key.%s has %d bytes, the most is %d: use a hash of it", f.name, len(f.value), f.most)
		case !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0):
			return fmt.Errorf("idempotent: Key.%s is not text: use UTF-8 without NUL", f.name)
		}
	}
	return nil
}

// Reply is the answer to a call of Once.
type Reply[T any] struct {
	Value T
	// Replayed says that an earlier call made the value, and that this one called
	// nothing.
	Replayed bool
	ID       store.ID // of the record
	Attempt  int      // that made the value, from 1
}

// Once calls fn if the key has no result yet, and stores the result with fn's
// writes in one transaction; every repeat is answered with the stored result. See
// [Guard.Once], of which it is the typed form: T goes through the codec (default
// [JSON]), and the first caller, too, gets what was stored.
func Once[T any](ctx context.Context, g *Guard, key Key, f Fingerprint, fn func(tx *gorm.DB) (T, error), opts ...Option) (Reply[T], error) {
	o := optionsOf(opts)
	if err := checkCodec(o.codec); err != nil {
		return Reply[T]{}, err
	}
	raw, err := g.once(ctx, key, f, o, o.codec.Name(), func(tx *gorm.DB) ([]byte, error) {
		v, err := fn(tx)
		if err != nil {
			return nil, err
		}
		return o.codec.Encode(v)
	})
	out := Reply[T]{Replayed: raw.Replayed, ID: raw.ID, Attempt: raw.Attempt}
	if err != nil {
		return out, err
	}
	if err := o.codec.Decode(raw.Value, &out.Value); err != nil {
		return out, fmt.Errorf("idempotent: decode the result of %s: %w", key, err)
	}
	return out, nil
}

// Once calls fn in a transaction if the key has no result yet, and commits fn's
// writes and its result (at most MaxResult bytes) together. It is for any request
// that can come twice: of an HTTP client, a message broker, a user who clicks
// again. The record is a run of class key in the store's executions.
//
//	found                     same fingerprint                    another fingerprint
//	nothing                   fn is called                        -
//	running, lease live       waits; with Reject ErrInProgress    ErrMismatch
//	running, lease ended      taken over: fn is called            ErrMismatch
//	succeeded                 the stored result, Replayed         ErrMismatch
//	failed for good           the stored *Failure                 ErrMismatch
//	waits for its next try    as running; called when due         ErrMismatch
//	indeterminate             the probe is asked; see AtMostOnce  ErrMismatch
//
// A mismatch is told before any wait. A wait ends with ctx, and then with an error
// that matches ErrInProgress and ctx's.
//
// While fn runs the lease is kept alive, and fn's context (that of tx) ends when
// it cannot be, with a cause that matches ErrLeaseLost. Nothing is committed
// then. fn is called again when the database refuses the transaction as
// busy, and by the next call after a crash; see [Guard.Do] for what it may do.
//
// An error of fn is returned as it is, and nothing of fn is committed. [Permanent]
// stores it, [Refuse] leaves no record at all; after any other error the next call
// is a new attempt. An error of the store matches store.ErrUnavailable: whether the
// call was made is then for the next call to find out. ErrFenced says that
// another call took over.
func (g *Guard) Once(ctx context.Context, key Key, f Fingerprint, fn func(tx *gorm.DB) ([]byte, error), opts ...Option) (Reply[[]byte], error) {
	return g.once(ctx, key, f, optionsOf(opts), bytesCodec, fn)
}

func (g *Guard) once(ctx context.Context, key Key, f Fingerprint, o options, codec string, fn func(tx *gorm.DB) ([]byte, error)) (Reply[[]byte], error) {
	if err := key.check(); err != nil {
		return Reply[[]byte]{}, err
	}
	if err := o.check(); err != nil {
		return Reply[[]byte]{}, err
	}
	c := call{guard: g, key: key, fingerprint: f, options: o, codec: codec, owner: store.NewOwner()}
	return c.run(ctx, fn)
}

// Attempt is one attempt of a call of Once, for the function given to [Before] and
// for a [Probe]. It is a [Run], and safe for concurrent use.
type Attempt struct {
	exec    store.Execution
	settled atomic.Bool
	result  []byte
}

var _ Run = (*Attempt)(nil)

// ID of the record.
func (a *Attempt) ID() store.ID { return a.exec.ID }

// Key of the run.
func (a *Attempt) Key() store.Key { return a.exec.Key }

// Number counts the attempts from 1.
func (a *Attempt) Number() int { return a.exec.Attempt }

// Fence of this attempt: higher than that of each earlier one of the key. It does
// not order different keys.
func (a *Attempt) Fence() int64 { return a.exec.Fence }

// EffectKey is the idempotency key for a receiver outside: the same for every
// attempt of the key, and another for every step.
func (a *Attempt) EffectKey(step string) string { return EffectKey(a, step) }

// Ref implements Run.
func (a *Attempt) Ref() store.Ref { return a.exec.Ref() }

// MarkSettled implements Run.
func (a *Attempt) MarkSettled() { a.settled.Store(true) }

// Settled implements Run.
func (a *Attempt) Settled() bool { return a.settled.Load() }

// Result implements Run.
func (a *Attempt) Result() []byte { return a.result }

// Mode implements Run.
func (a *Attempt) Mode() store.Mode { return a.exec.Mode }

// KeyedRun is a run that knows its key: *scheduler.Run and [*Attempt].
type KeyedRun interface {
	Ref() store.Ref
	Key() store.Key
}

// EffectKey is the idempotency key of one step of a run for a receiver outside: 32
// hex digits, the same for every attempt of the run, and another for every other
// run and step. It is what (*scheduler.Run).EffectKey answers.
func EffectKey(run KeyedRun, step string) string {
	h := store.HashOf("effect", run.Ref().Namespace, run.Key().Hash().String(), step)
	return h.String()[:32]
}

// Option changes a call of Once.
type Option func(*options)

type options struct {
	codec       Codec
	lease       time.Duration
	reject      bool
	runNow      bool
	retryFailed bool
	retryDelay  time.Duration
	maxAttempts int
	onCrash     store.OnCrash
	probe       Probe
	before      func(context.Context, *Attempt) error
	cache       *cached
}

// DefaultLease is how long a key is held without a sign of life.
const DefaultLease = 10 * time.Second

func optionsOf(opts []Option) options {
	o := options{codec: JSON, lease: DefaultLease}
	for _, set := range opts {
		set(&o)
	}
	return o
}

func (o *options) check() error {
	switch {
	case o.lease < time.Second || o.lease > 10*time.Minute:
		return fmt.Errorf("idempotent: Lease of %v: use 1s to 10m", o.lease)
	case o.retryDelay < 0:
		return fmt.Errorf("idempotent: RetryDelay of %v: use 0 or more", o.retryDelay)
	case o.maxAttempts < 0:
		return fmt.Errorf("idempotent: MaxAttempts of %d: use 0, for no bound, or more", o.maxAttempts)
	}
	return o.cache.check()
}

// WithCodec sets how a typed result is stored. Default [JSON].
func WithCodec(c Codec) Option { return func(o *options) { o.codec = c } }

// Lease is how long the key is held after the last sign of life of the process
// that runs fn, and so how soon a dead one is taken over: 1 s to 10 min. It is
// renewed every third of it. Default [DefaultLease].
func Lease(d time.Duration) Option { return func(o *options) { o.lease = d } }

// Reject answers ErrInProgress at once where the default is to wait.
func Reject() Option { return func(o *options) { o.reject = true } }

// RunNow makes a new attempt of a run that waits for its next try before it is due.
func RunNow() Option { return func(o *options) { o.runNow = true } }

// RetryFailed makes a new attempt of a run that failed for good or was canceled.
func RetryFailed() Option { return func(o *options) { o.retryFailed = true } }

// RetryDelay is the time before the next attempt after an error of fn. Default 0:
// the next call is the next attempt.
func RetryDelay(d time.Duration) Option { return func(o *options) { o.retryDelay = d } }

// MaxAttempts bounds the attempts: the error of the last one is stored as
// [Permanent] does it, with code "attempts", and a process that dies in it leaves a
// [*Failure] with code "poison". Default 0, no bound. That of the first call of a
// key holds for crashes.
func MaxAttempts(n int) Option { return func(o *options) { o.maxAttempts = n } }

// Before is called before the transaction, while the lease is held: for what is
// slow or outside of the database, with its parts as steps (see [Step]) and the
// attempt's EffectKey for the receiver. Its errors count as fn's.
func Before(f func(ctx context.Context, a *Attempt) error) Option {
	return func(o *options) { o.before = f }
}

// label names this process for people.
var label = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = filepath.Base(os.Args[0])
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
})
