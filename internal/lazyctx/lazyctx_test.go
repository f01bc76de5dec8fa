package lazyctx_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/lazyctx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errOther = errors.New("other")

type key struct{}

// TestLikeTheOthers compares with the contexts of the standard library, whoever looks first
// and however.
func TestLikeTheOthers(t *testing.T) {
	looks := map[string]func(context.Context){
		"nobody":     func(context.Context) {},
		"asks":       func(ctx context.Context) { _ = ctx.Err() },
		"waits":      func(ctx context.Context) { ctx.Done() },
		"asks value": func(ctx context.Context) { ctx.Value(key{}) },
		"derives": func(ctx context.Context) {
			_, cancel := context.WithCancel(ctx)
			cancel()
		},
	}
	ends := map[string]struct {
		end   func(parent, own, other func())
		err   error // of a context with all of them
		cause error
	}{
		"nothing":  {func(_, _, _ func()) {}, nil, nil},
		"parent":   {func(parent, _, _ func()) { parent() }, context.Canceled, errParent},
		"own":      {func(_, own, _ func()) { own() }, context.Canceled, context.Canceled},
		"other":    {func(_, _, other func()) { other() }, context.Canceled, errOther},
		"deadline": {func(_, _, _ func()) { time.Sleep(time.Minute) }, context.DeadlineExceeded, context.DeadlineExceeded},
	}
	for who, look := range looks {
		for what, e := range ends {
			t.Run(who+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, endParent := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
					defer endParent(nil)
					other, endOther := context.WithCancel(t.Context())
					defer endOther()
					with := lazyctx.With(parent, other, errOther)
					defer with.Cancel()
					ctx := lazyctx.WithTimeout(with, time.Second)
					defer ctx.Cancel()
					look(ctx)
					if end, ok := ctx.Deadline(); !ok || time.Until(end) != time.Second {
						t.Errorf("deadline in %v, %v", time.Until(end), ok)
					}
					e.end(func() { endParent(errParent) }, ctx.Cancel, endOther)
					synctest.Wait()
					if err := ctx.Err(); !errors.Is(err, e.err) || e.err == nil && err != nil {
						t.Errorf("error %v, want %v", err, e.err)
					}
					if err := context.Cause(ctx); !errors.Is(err, e.cause) || e.cause == nil && err != nil {
						t.Errorf("cause %v, want %v", err, e.cause)
					}
					select {
					case <-ctx.Done():
						if e.err == nil {
							t.Error("done")
						}
					default:
						if e.err != nil {
							t.Error("not done")
						}
					}
					if got := ctx.Value(key{}); got != "value" {
						t.Errorf("value %v", got)
					}
				})
			})
		}
	}
}

var errParent = errors.New("parent")

// TestWaiterIsWoken: who waits hears of every end.
func TestWaiterIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, endParent := context.WithCancel(t.Context())
		other, endOther := context.WithCancel(t.Context())
		defer endOther()
		defer endParent()
		byParent, byOther, byTime, own := lazyctx.With(parent, t.Context(), errOther), lazyctx.With(t.Context(), other, errOther),
			lazyctx.WithTimeout(t.Context(), time.Second), lazyctx.WithTimeout(t.Context(), time.Hour)
		var woken sync.WaitGroup
		for _, ctx := range []*lazyctx.Context{byParent, byOther, byTime, own} {
			defer ctx.Cancel()
			woken.Go(func() {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				<-child.Done()
			})
		}
		synctest.Wait()
		endParent()
		endOther()
		own.Cancel()
		woken.Wait()
		if err := context.Cause(byOther); !errors.Is(err, errOther) {
			t.Errorf("cause %v", err)
		}
	})
}

// TestCostsNothingUnlessWaitedFor counts what a request makes that is answered at once.
func TestCostsNothingUnlessWaitedFor(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := testing.AllocsPerRun(100, func() {
		ctx := lazyctx.WithTimeout(parent, time.Second)
		if ctx.Err() != nil {
			t.Error("ended")
		}
		ctx.Cancel()
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
