package leadertest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/leader"
)

// What leaders believe and what the backend tells of them is one history of one election,
// whatever ends their terms.
func testTermsAreOneHistory(t *testing.T, h Harness) {
	rounds, seed := 3, uint64(time.Now().UnixNano())
	if h.Around != nil { // virtual time costs nothing
		rounds = 30
	}
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	f := start(t, h, 5, leader.Config{StandBack: h.TTL})
	left := len(f.runners)
	if !h.NoObserve {
		for _, r := range f.runners {
			f.watchers.Go(func() { f.observe(r) })
		}
	}
	r, term := f.next(0, bound)
	for n := range rounds {
		f.quiet(time.Duration(dice.Int64N(int64(h.TTL))), "a leader is there and well")
		heal := func() {}
		switch end := (n + dice.IntN(3)) % 3; {
		case end == 0:
			if r.Cut != nil {
				heal = f.cut(r)
			}
			fallthrough
		case end == 1 || left == 2:
			// Of one that is cut off it cannot be given back: it ends with its TTL.
			if err := r.Elector.Resign(t.Context()); err != nil && (end != 0 || r.Cut == nil) {
				t.Errorf("Resign = %v", err)
			}
		default:
			r.stop()
			f.await(r.done, bound, "the return of Run")
			left--
		}
		r, term = f.next(term.Number(), 2*h.TTL+bound)
		heal()
	}
}

// observe asks who leads, often, until the test ends.
func (f *field) observe(r *runner) {
	for f.watch.Err() == nil {
		if err := f.log.Observe(f.watch, r.n, r.Elector); errors.Is(err, leader.ErrUnsupported) {
			f.Error(err)
			return
		}
		_ = backoff.Wait(f.watch, backoff.Jitter(f.h.TTL/40, 0.5)) // its end is seen above
	}
}
