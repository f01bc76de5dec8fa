package scheduler

import (
	"context"
	"sync"
	"time"
)

// batcher groups requests that arrive while one is under way into the next, so
// that a burst costs one transaction and a single request waits for nobody. It
// has no goroutine while idle.
type batcher[Q, A any] struct {
	// do answers every request, in order.
	do  func(reqs []Q) []A
	max int

	mu       sync.Mutex
	pending  []batched[Q, A]
	busy     bool
	expected int       // requests that are on their way
	patience time.Time // how long to wait for them
}

// gatherFor is how long a request waits for others of its instant.
const gatherFor = 2 * time.Millisecond

// expect says that n requests will come at once.
func (b *batcher[Q, A]) expect(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected, b.patience = n, time.Now().Add(gatherFor)
}

type batched[Q, A any] struct {
	req    Q
	answer chan A
}

// ask returns the answer to req, or ctx's error; the request is then answered
// nonetheless, and the answer handed to forsaken (if not nil).
func (b *batcher[Q, A]) ask(ctx context.Context, req Q, forsaken func(A)) (A, error) {
	p := batched[Q, A]{req, make(chan A, 1)}
	b.mu.Lock()
	b.pending = append(b.pending, p)
	if !b.busy {
		b.busy = true
		go b.flush()
	}
	b.mu.Unlock()
	select {
	case a := <-p.answer:
		return a, nil
	case <-ctx.Done():
		if forsaken != nil {
			go func() { forsaken(<-p.answer) }()
		}
		var none A
		return none, ctx.Err()
	}
}

func (b *batcher[Q, A]) flush() {
	for {
		b.mu.Lock()
		for len(b.pending) > 0 && len(b.pending) < min(b.expected, b.max) && time.Now().Before(b.patience) {
			b.mu.Unlock()
			<-time.After(gatherFor / 10)
			b.mu.Lock()
		}
		b.expected = 0
		n := min(len(b.pending), b.max)
		batch := b.pending[:n:n]
		b.pending = b.pending[n:]
		if n == 0 {
			b.pending, b.busy = nil, false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		reqs := make([]Q, n)
		for i, p := range batch {
			reqs[i] = p.req
		}
		for i, a := range b.do(reqs) {
			batch[i].answer <- a
		}
	}
}
