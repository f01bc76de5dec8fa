package leadertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
)

func testOneLeads(t *testing.T, h Harness) {
	f := start(t, h, 5, leader.Config{})
	r, term := f.next(0, bound)
	f.quiet(3*h.TTL, "a leader is there and well")
	if got := r.Elector.Term(); got != term || term.Err() != nil {
		t.Errorf("after 3 TTLs the leader has term %v (%v), want the one it won", got, term.Err())
	}
	leaders := 0
	for _, r := range f.runners {
		if r.Elector.Term() != nil {
			leaders++
		}
		if err := r.Elector.Err(); err != nil {
			t.Errorf("candidate %d is not healthy: %v", r.n, err)
		}
	}
	if leaders != 1 {
		t.Errorf("%d candidates lead, want 1", leaders)
	}
	if err := r.Elector.Run(t.Context()); !errors.Is(err, leader.ErrStarted) {
		t.Errorf("a second Run = %v, want ErrStarted", err)
	}
}

func testResignHandsOver(t *testing.T, h Harness) {
	const rounds = 5
	f := start(t, h, rounds+1, leader.Config{StandBack: 2 * h.TTL})
	r, term := f.next(0, bound)
	for range rounds {
		begun := time.Now()
		if err := r.Elector.Resign(t.Context()); err != nil {
			t.Fatalf("Resign = %v", err)
		}
		if !errors.Is(term.Err(), leader.ErrResigned) {
			t.Errorf("the resigned term's error is %v, want ErrResigned", term.Err())
		}
		if r.Elector.Term() != nil {
			t.Error("a candidate leads after it has resigned")
		}
		successor, next := f.next(term.Number(), h.TTL+bound)
		if took := time.Since(begun); took > h.Handover && h.Around != nil || took > h.Handover+bound {
			t.Errorf("the successor came after %v, want within %v", took, h.Handover)
		}
		if successor == r {
			t.Error("the candidate that resigned was elected again although it stands back")
		}
		r, term = successor, next
	}
	for _, r := range f.runners {
		if r.Elector.Term() == nil {
			if err := r.Elector.Resign(t.Context()); err != nil {
				t.Errorf("Resign without a term = %v", err)
			}
		}
	}
}

func testResignWaitsForWork(t *testing.T, h Harness) {
	f := start(t, h, 2, leader.Config{Grace: time.Minute})
	r, term := f.next(0, bound)
	work, done := term.Context(t.Context())
	resigned := make(chan error, 1)
	go func() { resigned <- r.Elector.Resign(context.Background()) }()

	f.await(work.Done(), bound, "the end of the work's context")
	if cause := context.Cause(work); !errors.Is(cause, leader.ErrResigned) {
		t.Errorf("the work's context ended by %v, want ErrResigned", cause)
	}
	f.quiet(2*h.TTL, "the work of the resigning leader has not returned")
	f.none(term.Number(), "the work of the resigning leader has not returned")
	done()
	if err := <-resigned; err != nil {
		t.Errorf("Resign = %v", err)
	}
	f.next(term.Number(), h.Handover+bound)

	late, done := term.Context(t.Context())
	defer done()
	if cause := context.Cause(late); !errors.Is(cause, leader.ErrResigned) {
		t.Errorf("a context made after the term is ended by %v, want ErrResigned", cause)
	}
}

// A leader that hands over takes no new work, keeps the term for the work that it has,
// and does not end that.
func testHandOverLetsWorkEnd(t *testing.T, h Harness) {
	f := start(t, h, 2, leader.Config{StandBack: 2 * h.TTL})
	r, term := f.next(0, bound)
	work, done := term.Context(t.Context())
	changed := r.Elector.Changed()
	over := make(chan error, 1)
	go func() { over <- r.Elector.HandOver(context.Background()) }()
	f.await(changed, bound, "the change when the hand-over began")
	if got := r.Elector.Term(); got != nil {
		t.Errorf("a leader that hands over shows term %d, want none", got.Number())
	}
	late, end := term.Context(t.Context())
	if cause := context.Cause(late); !errors.Is(cause, leader.ErrResigned) {
		t.Errorf("new work in a hand-over: %v, want ErrResigned", cause)
	}
	end()
	f.quiet(2*h.TTL, "the work of the leader that hands over has not returned")
	f.none(term.Number(), "the work of the leader that hands over has not returned")
	if work.Err() != nil {
		t.Errorf("the work of a leader that hands over was ended: %v", context.Cause(work))
	}
	done()
	if err := <-over; err != nil {
		t.Errorf("HandOver = %v", err)
	}
	successor, next := f.next(term.Number(), h.Handover+bound)
	if successor == r {
		t.Error("the leader that handed over was elected again although it stands back")
	}
	if err := r.Elector.HandOver(t.Context()); err != nil {
		t.Errorf("HandOver without a term = %v", err)
	}
	// Work that does not end is cut short by Resign.
	work, done = next.Context(t.Context())
	go func() { over <- successor.Elector.HandOver(context.Background()) }()
	go func() { <-work.Done(); done() }()
	if err := successor.Elector.Resign(t.Context()); err != nil {
		t.Errorf("Resign in a hand-over = %v", err)
	}
	<-over
	f.next(next.Number(), 2*h.TTL+h.Handover+bound)
}

// A preferred candidate gets the lead back, when the work of the leader has ended, and
// whoever comes next keeps it only until the preferred one is there again.
func testPreferredLeads(t *testing.T, h Harness) {
	if !h.Priorities {
		t.Skip("the backend has no priorities")
	}
	f := start(t, h, 2, leader.Config{Priority: 1})
	low, term := f.next(0, bound)
	work, done := term.Context(t.Context())
	high := f.join(leader.Config{Priority: 5})
	f.await(f.gone(low), 10*h.TTL+bound, "the end of the lead of one that is outranked")
	f.quiet(2*h.TTL, "the work of the one that is outranked has not returned")
	if work.Err() != nil {
		t.Errorf("the work of one that is outranked was ended: %v", context.Cause(work))
	}
	done()
	first, got := f.next(term.Number(), h.TTL+bound)
	if first != high {
		t.Errorf("candidate %d leads, want %d, which is preferred", first.n, high.n)
	}
	f.quiet(3*h.TTL, "the preferred one leads")
	high.stop()
	f.await(high.done, bound, "the return of Run")
	next, after := f.next(got.Number(), 2*h.TTL+bound)
	if next == high {
		t.Error("one that was stopped leads")
	}
	again := f.join(leader.Config{Priority: 9})
	if last, _ := f.next(after.Number(), 10*h.TTL+bound); last != again {
		t.Errorf("candidate %d leads, want %d, which is preferred", last.n, again.n)
	}
}

// gone is closed when the candidate shows no term.
func (f *field) gone(r *runner) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for {
			changed := r.Elector.Changed()
			if r.Elector.Term() == nil {
				return
			}
			<-changed
		}
	}()
	return c
}

func testStopHandsOver(t *testing.T, h Harness) {
	f := start(t, h, 3, leader.Config{})
	r, term := f.next(0, bound)
	begun := time.Now()
	r.stop()
	f.await(r.done, bound, "the return of Run")
	if r.err != nil {
		t.Errorf("Run = %v", r.err)
	}
	if !errors.Is(term.Err(), leader.ErrStopped) {
		t.Errorf("the stopped term's error is %v, want ErrStopped", term.Err())
	}
	if err := r.Elector.Err(); !errors.Is(err, leader.ErrNotRunning) {
		t.Errorf("health after Run = %v, want ErrNotRunning", err)
	}
	f.next(term.Number(), h.TTL+bound)
	if took := time.Since(begun); took > h.Handover && h.Around != nil || took > h.Handover+bound {
		t.Errorf("the successor came after %v, want within %v", took, h.Handover)
	}
}

// A follower that is stopped must not be told that it stopped leading
// (client-go issue 1187).
func testFollowerStopsQuietly(t *testing.T, h Harness) {
	f := start(t, h, 2, leader.Config{})
	lead, term := f.next(0, bound)
	follower := f.runners[1-lead.n]
	follower.stop()
	f.await(follower.done, bound, "the return of the follower's Run")
	if follower.err != nil {
		t.Errorf("the follower's Run = %v", follower.err)
	}
	f.quiet(h.TTL, "only a follower was stopped")
	if lead.Elector.Term() != term {
		t.Error("the leader lost its term when a follower stopped")
	}
}

func testDeadLeaderIsReplaced(t *testing.T, h Harness) {
	f := start(t, h, 3, leader.Config{Grace: time.Minute})
	r, term := f.next(0, bound)
	work, done := term.Context(t.Context())
	defer done()
	f.cut(r)
	died := time.Now()
	f.await(work.Done(), h.TTL+bound, "the end of the work's context")
	if took := time.Since(died); took >= h.TTL && h.Around != nil {
		t.Errorf("the work was told %v after the cut, want sooner than the TTL of %v", took, h.TTL)
	}
	for _, err := range []error{context.Cause(work), term.Err(), r.Elector.Err()} {
		if !errors.Is(err, leader.ErrUnavailable) || errors.Is(err, leader.ErrDeposed) {
			t.Errorf("the term of a leader cut off ended by %v, want ErrUnavailable", err)
		}
	}
	successor, _ := f.next(term.Number(), h.TTL+takeover+bound)
	if successor == r {
		t.Error("a candidate was elected that cannot reach the backend")
	}
	if took := time.Since(died); took > h.TTL+takeover && h.Around != nil {
		t.Errorf("the successor came after %v, want within %v", took, h.TTL+takeover)
	}
}

func testOutageIsOutlived(t *testing.T, h Harness) {
	outage, rounds := 2*h.TTL, 1
	if h.Around != nil { // virtual time costs nothing
		outage, rounds = 10*time.Minute, 3
	}
	f := start(t, h, 3, leader.Config{})
	_, term := f.next(0, bound)
	for _, r := range f.runners { // one that has no answer yet has been without since before the cut
		f.healthy(r, bound)
	}
	for round := range rounds {
		cut := time.Now() // a request that is under way may fail before cut returns
		heal := f.cut(f.runners...)
		f.await(term.Done(), h.TTL+bound, "the end of the term")
		f.quiet(outage, "no candidate can reach the backend")
		for _, r := range f.runners {
			if h.Around == nil { // one in line learns of it from its driver, within a few seconds
				f.unhealthy(r, bound)
			}
			health := r.Elector.Health()
			if !errors.Is(health.Err, leader.ErrUnavailable) {
				t.Errorf("round %d: candidate %d's health in the outage is %v, want ErrUnavailable", round, r.n, health.Err)
			}
			if since := health.Since.Sub(cut); since < 0 || since > h.TTL+bound {
				t.Errorf("round %d: candidate %d has been unavailable since %v after the cut", round, r.n, since)
			}
		}
		heal()
		healed := time.Now()
		_, term = f.next(term.Number(), 2*h.TTL+bound)
		for _, r := range f.runners {
			f.healthy(r, 2*h.TTL+bound)
			if since := r.Elector.Health().Since; since.Before(healed) {
				t.Errorf("round %d: candidate %d says it has been healthy since before the outage's end", round, r.n)
			}
		}
	}
}

func testDeposedIsTold(t *testing.T, h Harness) {
	if h.Depose == nil {
		t.Skip("the harness cannot depose")
	}
	f := start(t, h, 2, leader.Config{})
	_, term := f.next(0, bound)
	work, done := term.Context(t.Context())
	defer done()
	f.mu.Lock()
	f.deposed = true
	f.mu.Unlock()
	h.Depose(t, f.election())
	f.await(work.Done(), h.TTL+bound, "the end of the deposed leader's context")
	if cause := context.Cause(work); !errors.Is(cause, leader.ErrDeposed) || errors.Is(cause, leader.ErrUnavailable) {
		t.Errorf("the deposed leader was told %v, want ErrDeposed", cause)
	}
	f.next(term.Number(), 2*h.TTL+bound)
}

func testChangesAreObserved(t *testing.T, h Harness) {
	if h.NoObserve {
		t.Skip("the backend cannot tell who leads")
	}
	f := start(t, h, 2, leader.Config{Label: "replica:7"})
	every := 10 * time.Millisecond
	if h.Pushed {
		every = time.Hour
	}
	idle := h.New(t, f.election(), leader.Config{TTL: h.TTL, ObserveInterval: every})
	vacant := h.New(t, f.election()+":vacant", leader.Config{TTL: h.TTL})
	if l, err := vacant.Elector.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
		t.Errorf("Leader of a vacant election = %+v, %v, want ErrNoLeader", l, err)
	}
	r, term := f.next(0, bound)
	ctx, cancel := context.WithTimeout(t.Context(), 5*h.TTL+bound)
	defer cancel()
	var last int64
	for l, err := range idle.Elector.Observe(ctx) {
		switch {
		case err != nil:
			t.Fatalf("Observe: %v", err)
		case l.Term == 0:
			continue
		case l.Term <= last:
			t.Fatalf("term %d was observed after term %d", l.Term, last)
		case l.Label != "replica:7" || l.Election != f.election():
			t.Errorf("observed %+v, want the label and the election of the leader", l)
		}
		if last == 0 {
			if l.Term != term.Number() {
				t.Errorf("observed term %d, want %d", l.Term, term.Number())
			}
			r.stop()
		} else {
			_, next := f.next(last, bound)
			if l.Term != next.Number() {
				t.Errorf("observed term %d after %d, want %d", l.Term, last, next.Number())
			}
			return
		}
		last = l.Term
	}
	t.Fatalf("the observer saw no term after %d", last)
}

// healthy waits until a candidate's health is good.
func (f *field) healthy(r *runner, within time.Duration) {
	f.Helper()
	f.health(r, within, func(err error) bool { return err == nil })
}

// unhealthy waits until it is not.
func (f *field) unhealthy(r *runner, within time.Duration) {
	f.Helper()
	f.health(r, within, func(err error) bool { return err != nil })
}

func (f *field) health(r *runner, within time.Duration, is func(error) bool) {
	f.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		changed := r.Elector.Changed()
		if is(r.Elector.Err()) {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			f.Fatalf("candidate %d: health %v after %v", r.n, r.Elector.Err(), within)
		}
	}
}
