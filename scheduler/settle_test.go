package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/solotick/solotick/internal/journal"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// testJob prepares a job as a scheduler would.
func testJob(t rapid.TB, expr string, opts ...Option) *job {
	t.Helper()
	s, err := New(Config{Namespace: "test", Gate: GateNone}, Deps{Store: memstore.New(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(Cron("j", expr, func(context.Context, *Run) error { return nil }, opts...)); err != nil {
		t.Fatal(err)
	}
	return s.jobs.get("j")
}

// A window in which the sweep cannot have looked yet is refused, with the shortest that
// works, and a default is never such a one: the tick of an owner that died before its
// claim is then made up for by the latest of sweeps.
func TestShortestWindow(t *testing.T) {
	noop := func(context.Context, *Run) error { return nil }
	for _, lease := range []time.Duration{0, time.Second, 10 * time.Second, 10 * time.Minute} {
		cfg := Config{Namespace: "test", Gate: GateNone, Lease: lease}
		filled := cfg.withDefaults()
		least := filled.Lease + 2*time.Second
		for _, window := range []time.Duration{0, least, time.Hour} {
			j, err := prepare(&filled, Cron("j", "@every 1s", noop, CatchUp(window, 0)))
			if err != nil {
				t.Errorf("lease %v, window %v: %v", lease, window, err)
				continue
			}
			const tick = store.Millis(1_800_000_000_000)
			latest := tick.Add(settleGrace + filled.Lease + sweepJitter) // one lease and its jitter after a sweep that was too early
			what := j.settle(store.TickView{
				SettleJob: store.SettleJob{Job: "j", Seen: tick - 1, To: tick}, Now: latest,
				State: store.JobState{Job: "j", Settled: tick - 1, Revisions: []store.Revision{{Spec: j.marshalled, Hash: j.hash}}},
			}, false)
			if len(what.Ticks) != 1 || what.Ticks[0].State != store.StatePending {
				t.Errorf("lease %v, window %v: a tick that the sweep finds at last becomes %+v", lease, window, what)
			}
		}
		for _, window := range []time.Duration{1, 10 * time.Millisecond, least - 1} {
			err := cfg.CheckJob(Cron("j", "@every 1s", noop, CatchUp(window, 0)))
			if want := "scheduler: catch_up.window: " + window.String() + " is below " + least.String() + ": "; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("lease %v, window %v: %v", lease, window, err)
			}
		}
	}
}

// TestSettleAccountsForEveryTickOnce is the ledger's law on the decision itself:
// whatever is recorded, paused, overlapped, edited or far away, each expected
// tick is in exactly one place, and nothing else is.
func TestSettleAccountsForEveryTickOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const second = store.Millis(1000)
		every := rapid.SampledFrom([]string{"@every 1s", "@every 7s", "*/5 * * * * *", "0 * * * *", "30 2 * * *"}).Draw(t, "spec")
		j := testJob(t, every,
			OnMisfire(rapid.SampledFrom([]Misfire{MisfireFireOnce, MisfireFireAll, MisfireSkip}).Draw(t, "misfire")),
			OnOverlap(rapid.SampledFrom([]Overlap{OverlapSkip, OverlapBufferAll}).Draw(t, "overlap")),
			CatchUp(time.Duration(rapid.IntRange(12, 600).Draw(t, "window"))*time.Second, rapid.IntRange(1, 20).Draw(t, "most")))
		base := store.MillisOf(time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC))
		seen := base + store.Millis(rapid.Int64Range(0, 100_000).Draw(t, "seen"))
		to := seen + store.Millis(rapid.Int64Range(1, 3_000_000).Draw(t, "length"))
		now := to + second
		revisions := []store.Revision{{Spec: j.marshalled, Hash: j.hash, From: base}}
		if rapid.Bool().Draw(t, "edited") {
			old := testJob(t, "@every 11s")
			edit := seen + (to-seen)/2
			revisions = []store.Revision{
				{Spec: old.marshalled, Hash: old.hash, From: base},
				{Spec: j.marshalled, Hash: j.hash, From: edit},
			}
		}
		v := store.TickView{
			SettleJob: store.SettleJob{Job: "j", Seen: seen, To: to}, Now: now,
			State: store.JobState{Job: "j", Settled: seen, Revisions: revisions},
		}
		if rapid.Bool().Draw(t, "paused") {
			v.State.Paused = seen + store.Millis(rapid.Int64Range(0, int64(to-seen)).Draw(t, "paused since"))
		}
		var expected []store.Millis
		for _, st := range j.stretches(v.State, seen, to) {
			for at, ok := st.spec.Next(st.from.Time()); ok && store.MillisOf(at) <= st.to; at, ok = st.spec.Next(at) {
				expected = append(expected, store.MillisOf(at))
			}
		}
		where := map[store.Millis]int{}
		for _, tick := range expected {
			if rapid.IntRange(0, 3).Draw(t, "recorded") == 0 {
				v.Recorded = append(v.Recorded, store.TickRecord{Tick: tick, State: store.StateSucceeded})
				v.LastRun = tick
				where[tick]++
			}
		}
		if rapid.Bool().Draw(t, "run") {
			from := seen + store.Millis(rapid.Int64Range(0, int64(to-seen)).Draw(t, "run from"))
			v.Runs = []store.Span{{From: from, To: from + store.Millis(rapid.Int64Range(0, 100_000).Draw(t, "run for"))}}
		}

		got := j.settle(v, rapid.Bool().Draw(t, "fails fast"))

		for _, tick := range got.Ticks {
			where[tick.Key.Tick]++
		}
		for _, r := range got.Ranges {
			n := int64(0)
			for _, tick := range expected {
				if r.From <= tick && tick <= r.To {
					where[tick]++
					n++
				}
			}
			if n != r.Count {
				t.Errorf("range %+v counts %d ticks, there are %d", r, r.Count, n)
			}
			if r.Reason == store.ReasonNone || r.State != store.StateMissed && r.State != store.StateSkipped {
				t.Errorf("range %+v says nothing", r)
			}
		}
		for _, tick := range expected {
			if where[tick] != 1 {
				t.Errorf("tick %s is accounted for %d times", tick, where[tick])
			}
		}
		if len(where) != len(expected) {
			t.Errorf("%d ticks accounted for, %d expected", len(where), len(expected))
		}
		runs := 0
		for _, tick := range got.Ticks {
			if tick.State == store.StatePending {
				runs++
			}
		}
		if j.o.misfire == MisfireFireOnce && j.o.overlap == OverlapSkip && runs > 1 {
			t.Errorf("fire_once runs %d ticks", runs)
		}
	})
}

// TestStretchesWithUnreadableSchedule: a schedule that a newer build stored must
// not stop this one from settling the rest.
func TestStretchesWithUnreadableSchedule(t *testing.T) {
	j := testJob(t, "@every 1s")
	state := store.JobState{Revisions: []store.Revision{
		{Spec: "what a later release writes", Hash: "x", From: 1000},
		{Spec: j.marshalled, Hash: j.hash, From: 50_000},
	}}
	got := j.stretches(state, 10_000, 60_000)
	if len(got) != 1 || got[0].from != 50_000 || got[0].to != 60_000 {
		t.Errorf("stretches %+v", got)
	}
}

func TestClockLearnsOnlyFromEvidence(t *testing.T) {
	c := clock{offset: 700 * time.Millisecond}
	sent := time.Now()
	c.observe(sent, store.MillisOf(time.Now()))
	if d := c.skew(); d < 690*time.Millisecond || d > 701*time.Millisecond {
		t.Errorf("skew %v, want about 700 ms", d)
	}
	if d := time.Until(c.now()); d < -10*time.Millisecond || d > 10*time.Millisecond {
		t.Errorf("corrected time is off by %v", d)
	}
	was := c.skew()
	c.observe(time.Now().Add(-500*time.Millisecond), store.MillisOf(time.Now().Add(-200*time.Millisecond)))
	if c.skew() != was {
		t.Error("an answer that the present correction explains changed it")
	}
	c.observe(time.Now().Add(-time.Minute), store.MillisOf(time.Now().Add(time.Hour)))
	if c.skew() != was {
		t.Error("an answer that took a minute was believed")
	}
}

func TestRetryDelayGrowsAndIsBounded(t *testing.T) {
	j := testJob(t, "@daily", Retry(50, time.Second, time.Minute))
	for attempt := 1; attempt < 40; attempt++ {
		want := min(time.Second<<min(attempt-1, 20), time.Minute)
		if d := j.retryDelay(attempt); d < want*79/100 || d > want*121/100 {
			t.Errorf("attempt %d: %v, want about %v", attempt, d, want)
		}
	}
}

// TestFirstSettlementOnlyTries: a replica that knows of no write since the store was away
// decides nothing of what others may have run meanwhile, and then leaves them a moment.
func TestFirstSettlementOnlyTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Namespace: "test", Gate: GateNone, Journal: t.TempDir()}, Deps{Store: memstore.New(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		noop := func(context.Context, *Run) error { return nil }
		if err := s.Add(Cron("runs", "@every 1s", noop, WhenStoreDown(StoreDownRun)), Cron("waits", "@every 1s", noop)); err != nil {
			t.Fatal(err)
		}
		if s.journal, err = journal.Open(s.cfg.Journal, s.cfg.Namespace, s.owner.String()); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.journal.Close() }()
		runs, waits := s.jobs.get("runs"), s.jobs.get("waits")
		want := func(when string, tries, awaits bool) {
			t.Helper()
			if got := s.onlyTries(runs, time.Now()); got != tries {
				t.Errorf("%s: a settlement only tries: %t, want %t", when, got, tries)
			}
			if got := s.awaitsJournals(runs); got != awaits {
				t.Errorf("%s: the sweep waits for journals: %t, want %t", when, got, awaits)
			}
			if s.onlyTries(waits, time.Now().Add(-time.Hour)) || s.awaitsJournals(waits) {
				t.Errorf("%s: a job that does not run without the store waits", when)
			}
		}
		want("before any outage", false, false)
		late := time.Now().Add(-2 * time.Second)
		for range 2 { // of the same settlement
			if !s.onlyTries(runs, late) {
				t.Error("a settlement that waited for the store decides at once")
			}
		}
		if s.onlyTries(runs, late.Add(time.Millisecond)) {
			t.Error("on a slow store no settlement ever decides")
		}
		want("in time again", false, false)
		away := fmt.Errorf("no answer: %w", store.ErrUnavailable)
		s.storeAnswered("claim", away)
		want("away", true, true)
		time.Sleep(2*s.storeTimeout() + time.Second)
		s.storeAnswered("survey", nil)
		want("read again", true, false)
		s.storeAnswered("settle", nil)
		want("written again", false, true)
		time.Sleep(s.othersLearn())
		want("a moment later", false, false)
		s.storeAnswered("survey", away)
		s.storeAnswered("survey", nil)
		want("away once more", true, false)
	})
}
