package leadertest_test

import (
	"context"
	"sync"
)

// wire is the way to a native backend. While it is cut, requests get no answer.
type wire struct {
	mu  sync.Mutex
	cut bool
}

func (w *wire) Cut() (heal func()) {
	set := func(cut bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut = cut
	}
	set(true)
	return func() { set(false) }
}

// pass blocks until ctx ends while the wire is cut.
func (w *wire) pass(ctx context.Context) error {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return nil
}
