package leadertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest/terms"
)

// Harness is what a backend provides.
type Harness struct {
	// New makes a candidate, connected on its own as another process would be, and
	// cleans up after the test. All candidates of a test share one backend. Tests run
	// in parallel unless Around is set.
	New func(t *testing.T, election string, cfg leader.Config) Candidate
	// TTL is the TTL of the terms, which New must see to when it is not taken from
	// the Config. Some tests last several of it.
	TTL time.Duration
	// Handover bounds the time from a resignation to the next term: a few round
	// trips where the backend pushes, and its poll elsewhere. It must be below TTL.
	Handover time.Duration
	// Depose ends the term of an election at the backend behind its holder's back.
	// Nil leaves out the tests that need it.
	Depose func(t *testing.T, election string)
	// Pushed says that changes of the leader are pushed to those who observe.
	Pushed bool
	// Priorities says that electors are over locks, so that one can be preferred.
	Priorities bool
	// NoObserve says that the backend cannot tell who leads.
	NoObserve bool
	// Around runs the body of each test; synctest.Test fits a backend in memory.
	// Nil calls the body.
	Around func(t *testing.T, body func(t *testing.T))
}

// Candidate is an elector that was not started yet, and its way to the backend.
type Candidate struct {
	Elector *leader.Elector
	// Cut loses every request from now on, without an answer and without effect,
	// until heal is called. Nil leaves out the tests that need it.
	Cut func() (heal func())
}

// bound is how long anything may take beside what the tests allow for: scheduling
// on a busy machine, and the pause of a campaign that failed.
const bound = 30 * time.Second

// takeover bounds how long after the end of its TTL a dead leader's term is taken:
// no backend pushes that, and candidates look at different moments.
const takeover = 2 * time.Second

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		body func(t *testing.T, h Harness)
	}{
		{"OneLeads", testOneLeads},
		{"ResignHandsOver", testResignHandsOver},
		{"ResignWaitsForWork", testResignWaitsForWork},
		{"HandOverLetsWorkEnd", testHandOverLetsWorkEnd},
		{"PreferredLeads", testPreferredLeads},
		{"StopHandsOver", testStopHandsOver},
		{"FollowerStopsQuietly", testFollowerStopsQuietly},
		{"DeadLeaderIsReplaced", testDeadLeaderIsReplaced},
		{"OutageIsOutlived", testOutageIsOutlived},
		{"DeposedIsTold", testDeposedIsTold},
		{"ChangesAreObserved", testChangesAreObserved},
		{"TermsAreOneHistory", testTermsAreOneHistory},
	} {
		t.Run(c.name, func(t *testing.T) {
			if h.Around == nil {
				t.Parallel() // what takes long is waiting
				c.body(t, h)
				return
			}
			h.Around(t, func(t *testing.T) { c.body(t, h) })
		})
	}
}

// field is the candidates of one test and what they were seen to do.
type field struct {
	*testing.T
	h       Harness
	runners []*runner

	watch    context.Context
	endWatch context.CancelFunc
	watchers sync.WaitGroup

	log terms.Log

	mu      sync.Mutex
	seen    []seen // every term, in the order in which they were seen to begin
	fresh   chan struct{}
	deposed bool // from without: until the holder finds out, two may lead
}

type seen struct {
	by   int
	term *leader.Term
	at   time.Time
}

// runner is a candidate that runs.
type runner struct {
	Candidate
	n    int
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run; read after done
}

// start makes and runs n candidates of one election, all with one label: labels
// must not decide anything.
func start(t *testing.T, h Harness, n int, cfg leader.Config) *field {
	t.Helper()
	f := &field{T: t, h: h, fresh: make(chan struct{})}
	f.watch, f.endWatch = context.WithCancel(context.WithoutCancel(t.Context()))
	for range n {
		f.join(cfg)
	}
	t.Cleanup(func() {
		for _, r := range f.runners {
			r.stop()
		}
		for _, r := range f.runners {
			<-r.done
		}
		f.endWatch()
		f.watchers.Wait()
		f.check()
	})
	return f
}

// join adds a candidate and runs it.
func (f *field) join(cfg leader.Config) *runner {
	f.Helper()
	cfg.TTL = f.h.TTL
	if cfg.Label == "" {
		cfg.Label = "same:1"
	}
	c := f.h.New(f.T, f.election(), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	r := &runner{Candidate: c, n: len(f.runners), stop: cancel, done: make(chan struct{})}
	f.mu.Lock()
	f.runners = append(f.runners, r)
	f.mu.Unlock()
	go func() {
		defer close(r.done)
		r.err = c.Elector.Run(ctx)
	}()
	f.watchers.Go(func() { f.follow(f.watch, r) })
	return r
}

func (f *field) election() string { return "leader:" + f.Name() }

// follow notes the terms of one candidate.
func (f *field) follow(ctx context.Context, r *runner) {
	var last *leader.Term
	for {
		changed := r.Elector.Changed()
		f.log.Look(r.n, r.Elector)
		if t := r.Elector.Term(); t != nil && t != last {
			last = t
			f.began(r, t)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			f.log.Look(r.n, r.Elector)
			return
		}
	}
}

func (f *field) began(r *runner, t *leader.Term) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.runners {
		if other == r || f.deposed {
			continue
		}
		f.log.Look(other.n, other.Elector)
		f.log.Look(r.n, r.Elector)
		// Both began before the first question; if the answers come in this order,
		// both stood at that moment.
		if o := other.Elector.Term(); o != nil && t.Err() == nil {
			f.Errorf("candidates %d and %d lead at one time, terms %d and %d", r.n, other.n, t.Number(), o.Number())
		}
	}
	f.seen = append(f.seen, seen{by: r.n, term: t, at: time.Now()})
	close(f.fresh)
	f.fresh = make(chan struct{})
}

// check looks at the whole story.
func (f *field) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	holder := map[int64]int{}
	last := map[int]int64{}
	for _, s := range f.seen {
		n := s.term.Number()
		if by, twice := holder[n]; twice {
			f.Errorf("term %d was held by candidate %d and by candidate %d", n, by, s.by)
		}
		holder[n] = s.by
		if n <= last[s.by] {
			f.Errorf("candidate %d won term %d after term %d: terms must rise", s.by, n, last[s.by])
		}
		last[s.by] = n
		if n < 1 {
			f.Errorf("a term has the number %d, want 1 or more", n)
		}
	}
	if f.deposed {
		return
	}
	if err := f.log.Check(bound); err != nil {
		f.Error(err)
	}
}

// next waits for a term above after.
func (f *field) next(after int64, within time.Duration) (*runner, *leader.Term) {
	f.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	for {
		f.mu.Lock()
		for _, s := range f.seen {
			if s.term.Number() > after {
				f.mu.Unlock()
				return f.runners[s.by], s.term
			}
		}
		fresh := f.fresh
		f.mu.Unlock()
		select {
		case <-fresh:
		case <-limit.C:
			f.Fatalf("no term above %d within %v; health of candidate 0: %v", after, within, f.runners[0].Elector.Health())
		}
	}
}

// await waits for a channel to be closed.
func (f *field) await(c <-chan struct{}, within time.Duration, what string) {
	f.Helper()
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-c:
	case <-limit.C:
		f.Fatalf("%s: not within %v", what, within)
	}
}

// none checks that nobody has won a term above after, however early.
func (f *field) none(after int64, why string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		if s.term.Number() > after {
			f.Errorf("%s: candidate %d won term %d", why, s.by, s.term.Number())
		}
	}
}

// quiet checks that nobody wins a term for a time.
func (f *field) quiet(d time.Duration, why string) {
	f.Helper()
	f.mu.Lock()
	fresh, n := f.fresh, len(f.seen)
	f.mu.Unlock()
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-fresh:
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Errorf("%s: candidate %d won term %d", why, f.seen[n].by, f.seen[n].term.Number())
	case <-limit.C:
	}
}

// cut cuts off the runners, or skips the test when the harness cannot.
func (f *field) cut(runners ...*runner) (heal func()) {
	f.Helper()
	var heals []func()
	for _, r := range runners {
		if r.Cut == nil {
			f.Skip("the harness cannot cut a candidate off")
		}
		heals = append(heals, r.Cut())
	}
	all := sync.OnceFunc(func() {
		for _, heal := range heals {
			heal()
		}
	})
	f.Cleanup(all)
	return all
}
