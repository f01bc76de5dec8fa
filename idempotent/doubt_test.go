package idempotent_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store"
)

// crash makes a call that dies after its outside effect.
func (w *world) crash(k idempotent.Key) {
	w.Helper()
	_, err := idempotent.Once(w.Context(), w.guard, k, idempotent.Fingerprint{}, func(*gorm.DB) (string, error) { return "", nil },
		idempotent.AtMostOnce(nil), idempotent.Lease(10*time.Minute),
		idempotent.Before(func(ctx context.Context, _ *idempotent.Attempt) error {
			w.silence(k)
			_, err := idempotent.Once(ctx, idempotent.New(w.store), k, idempotent.Fingerprint{}, func(*gorm.DB) (string, error) {
				w.Error("a call in doubt was repeated")
				return "", nil
			}, idempotent.AtMostOnce(nil))
			if !errors.Is(err, idempotent.ErrIndeterminate) {
				w.Errorf("after the crash: %v, want ErrIndeterminate", err)
			}
			return nil
		}))
	if !errors.Is(err, idempotent.ErrFenced) {
		w.Errorf("the one that came back: %v, want ErrFenced", err)
	}
	if e := w.record(k); e.State != store.StateIndeterminate {
		w.Errorf("the record is %v", e.State)
	}
}

func TestDoubtIsSettledByTheProbe(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int64
	pay := func(*gorm.DB) (string, error) { calls.Add(1); return "paid", nil }
	asked := ""
	probing := func(a idempotent.Answer, err error) idempotent.Option {
		return idempotent.AtMostOnce(func(_ context.Context, lost *idempotent.Attempt) (idempotent.Answer, error) {
			asked = lost.EffectKey("pay")
			return a, err
		})
	}
	once := func(k idempotent.Key, o idempotent.Option) (idempotent.Reply[string], error) {
		return idempotent.Once(t.Context(), w.guard, k, idempotent.Fingerprint{}, pay, o)
	}
	w.crash(order("done"))
	for _, o := range []idempotent.Option{probing(idempotent.Unknown(), nil), probing(idempotent.NotDone(), errors.New("no answer")), idempotent.AtMostOnce(nil)} {
		if _, err := once(order("done"), o); !errors.Is(err, idempotent.ErrIndeterminate) {
			t.Errorf("not known: %v, want ErrIndeterminate", err)
		}
	}
	if len(asked) != 32 {
		t.Errorf("the probe was asked about %q", asked)
	}
	for range 2 {
		r, err := once(order("done"), probing(idempotent.Done("found"), nil))
		if err != nil || r.Value != "found" || !r.Replayed || calls.Load() != 0 {
			t.Errorf("done: %+v, %v after %d calls", r, err, calls.Load())
		}
	}
	w.crash(order("not done"))
	r, err := once(order("not done"), probing(idempotent.NotDone(), nil))
	if err != nil || r.Value != "paid" || r.Replayed || r.Attempt != 2 || calls.Load() != 1 {
		t.Errorf("not done: %+v, %v after %d calls", r, err, calls.Load())
	}

	// An error that says nothing is a doubt as well; Refuse says that nothing happened.
	timeout := errors.New("the bank did not answer")
	before := func(err error) idempotent.Option {
		return idempotent.Before(func(context.Context, *idempotent.Attempt) error { return err })
	}
	_, err = idempotent.Once(t.Context(), w.guard, order("timeout"), idempotent.Fingerprint{}, pay, idempotent.AtMostOnce(nil), before(timeout))
	if !errors.Is(err, timeout) || !errors.Is(err, idempotent.ErrIndeterminate) || w.record(order("timeout")).State != store.StateIndeterminate {
		t.Errorf("an error: %v, the record is %v", err, w.record(order("timeout")).State)
	}
	_, err = idempotent.Once(t.Context(), w.guard, order("refused"), idempotent.Fingerprint{}, pay, idempotent.AtMostOnce(nil), before(idempotent.Refuse(timeout)))
	if !errors.Is(err, timeout) || errors.Is(err, idempotent.ErrIndeterminate) {
		t.Errorf("a refusal: %v", err)
	}

	// A person knows.
	e := w.record(order("timeout"))
	if err := w.guard.Resolve(t.Context(), ns, e.ID, idempotent.Unknown()); err != nil || w.record(order("timeout")).State != store.StateIndeterminate {
		t.Errorf("Resolve(Unknown) = %v", err)
	}
	if err := w.guard.Resolve(t.Context(), ns, e.ID, idempotent.NotDone()); err != nil || w.record(order("timeout")).State != store.StatePending {
		t.Errorf("Resolve(NotDone) = %v", err)
	}
	if kept, err := w.store.Attempts(t.Context(), ns, e.ID); err != nil || len(kept) != 1 || kept[0].End != store.EndIndeterminate || kept[0].Note == "" {
		t.Errorf("the attempt that was looked for is kept as %+v, %v", kept, err)
	}
	if err := w.guard.Resolve(t.Context(), ns, e.ID, idempotent.Done(nil)); !errors.Is(err, idempotent.ErrSettled) {
		t.Errorf("Resolve of a run that is open = %v, want ErrSettled", err)
	}
}

// memory is a cache; its faults are switched on by the tests.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	locks  map[string]bool
	gets   int
	bend   func(key string, value []byte) ([]byte, error) // what Get answers
	lock   func() (unlock func(context.Context), err error)
	deaf   bool // Put is lost
}

func newMemory() *memory { return &memory{values: map[string][]byte{}, locks: map[string]bool{}} }

func (m *memory) Get(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gets++
	if m.bend != nil {
		return m.bend(key, m.values[key])
	}
	return m.values[key], nil
}

func (m *memory) Put(_ context.Context, key string, value []byte, _ time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.deaf {
		m.values[key] = value
	}
	return nil
}

func (m *memory) TryLock(_ context.Context, key string, _ time.Duration) (func(context.Context), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lock != nil {
		return m.lock()
	}
	if m.locks[key] {
		return nil, nil
	}
	m.locks[key] = true
	return func(context.Context) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.locks, key)
	}, nil
}

func caching(m *memory) idempotent.Option {
	return idempotent.WithCache(idempotent.CacheConfig{Cache: m, Secret: []byte("0123456789abcdef"), Timeout: time.Minute})
}

func TestCacheSparesTheDatabase(t *testing.T) {
	w := newWorld(t)
	m := newMemory()
	var calls atomic.Int64
	first, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), caching(m))
	if err != nil || first.Replayed {
		t.Fatalf("the first: %+v, %v", first, err)
	}
	w.line.begin = func() { t.Error("a repeat began a transaction") }
	r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), caching(m))
	if err != nil || !r.Replayed || r.Value != first.Value || r.ID != first.ID || r.Attempt != 1 {
		t.Errorf("the repeat: %+v, %v", r, err)
	}
	w.line.begin = nil
	// A mismatch and a failure are for the database to tell.
	if _, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 2), buy(&calls, "a"), caching(m)); !errors.Is(err, idempotent.ErrMismatch) {
		t.Errorf("another fingerprint: %v, want ErrMismatch", err)
	}
	if len(m.locks) != 0 {
		t.Errorf("%d locks were left behind", len(m.locks))
	}
}

// Whatever the cache does, there is one effect, and everybody gets its result.
func TestCacheIsNeverTheDecider(t *testing.T) {
	lied := func(string, []byte) ([]byte, error) { return nil, nil }
	for name, spoil := range map[string]func(m *memory){
		"well":    func(*memory) {},
		"empty":   func(m *memory) { m.deaf = true },
		"broken":  func(m *memory) { m.bend = func(string, []byte) ([]byte, error) { return nil, errors.New("down") } },
		"forgets": func(m *memory) { m.bend = lied },
		"locks all": func(m *memory) {
			m.lock = func() (func(context.Context), error) { return func(context.Context) {}, nil }
		},
		"locks none":  func(m *memory) { m.lock = func() (func(context.Context), error) { return nil, nil } },
		"lock broken": func(m *memory) { m.lock = func() (func(context.Context), error) { return nil, errors.New("down") } },
		"garbage": func(m *memory) {
			m.bend = func(string, []byte) ([]byte, error) { return []byte("0123456789abcdef0123456789abcdef{}"), nil }
		},
		"another's": func(m *memory) {
			m.bend = func(string, []byte) ([]byte, error) { // the first value that it has, whatever the key
				for _, v := range m.values {
					return v, nil
				}
				return nil, nil
			}
		},
		"flips a bit": func(m *memory) {
			m.bend = func(_ string, v []byte) ([]byte, error) {
				if v = append([]byte(nil), v...); len(v) > 0 {
					v[len(v)/2] ^= 1
				}
				return v, nil
			}
		},
		"forged": func(m *memory) {
			m.bend = func(string, []byte) ([]byte, error) { // signed with another secret
				return append(make([]byte, 32), `{"result":"anNvbgo5OTk="}`...), nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := newMemory()
			var calls atomic.Int64
			if _, err := idempotent.Once(t.Context(), w.guard, order("other"), printOf(t, 1), buy(&calls, "other"), caching(m)); err != nil {
				t.Fatal(err)
			}
			spoil(m)
			calls.Store(0)
			var wg sync.WaitGroup
			var values [8]int64
			for i := range values {
				wg.Go(func() {
					r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), caching(m))
					if err != nil {
						t.Error(err)
					}
					values[i] = r.Value
				})
			}
			wg.Wait()
			r, err := idempotent.Once(t.Context(), w.guard, order("a"), printOf(t, 1), buy(&calls, "a"), caching(m))
			if err != nil || !r.Replayed || calls.Load() != 1 || w.effects("a") != 1 {
				t.Errorf("the repeat: %+v, %v after %d calls, %d effects", r, err, calls.Load(), w.effects("a"))
			}
			for _, v := range values {
				if v != r.Value || v == 0 {
					t.Errorf("one was answered %d, another %d", v, r.Value)
				}
			}
		})
	}
}
