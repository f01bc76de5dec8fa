package memstore_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		var ahead atomic.Int64
		s := memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
		return storetest.Harness{
			Open:    func(testing.TB) store.Store { return s },
			Advance: func(d time.Duration) { ahead.Add(int64(d)) },
		}
	})
}

// TestVirtualTime: in a bubble the store's clock is the bubble's, so a lease ends
// when the test says so.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, owner := memstore.New(), store.NewOwner()
		r, err := s.Register(t.Context(), "shop", []store.JobSpec{{Job: "report"}})
		if err != nil {
			t.Fatal(err)
		}
		if want := store.MillisOf(time.Now()); r.Now != want {
			t.Fatalf("the store's clock is %s, the bubble's %s", r.Now, want)
		}
		tick := r.Now.Add(time.Second)
		claim := store.ClaimRequest{Namespace: "shop", Owner: owner, Lease: time.Minute, Runs: []store.ClaimRun{{
			NewExecution: store.NewExecution{Key: store.Key{Class: store.ClassCron, Job: "report", Tick: tick}},
		}}}
		c, err := s.Claim(t.Context(), claim)
		if err != nil || c.Runs[0].Outcome != store.OutcomeEarly || c.Runs[0].Wait != time.Second {
			t.Fatalf("claim a second early: %+v, %v", c, err)
		}
		time.Sleep(c.Runs[0].Wait)
		if c, err = s.Claim(t.Context(), claim); err != nil || c.Runs[0].Outcome != store.OutcomeStarted {
			t.Fatalf("claim at the tick: %+v, %v", c, err)
		}
		dead := store.FetchRequest{Namespace: "shop", Owner: store.NewOwner(), Lease: time.Minute, Jobs: []string{"report"}, Limit: 1}
		for _, want := range []int{0, 1} {
			got, err := s.TakeOver(t.Context(), dead)
			if err != nil || len(got.Runs) != want {
				t.Fatalf("takeover: %d rows, %v, want %d", len(got.Runs), err, want)
			}
			time.Sleep(time.Minute + time.Millisecond)
		}
	})
}

// TestBadRequests: a request that makes no sense is refused with the field and
// the remedy, and changes nothing.
func TestBadRequests(t *testing.T) {
	s, owner, ctx := memstore.New(), store.NewOwner(), t.Context()
	if _, err := s.Register(ctx, "shop", []store.JobSpec{{Job: "report"}}); err != nil {
		t.Fatal(err)
	}
	taken := store.NewExecution{ID: store.NewID(1), Key: store.Key{Class: store.ClassKey, Job: "report", Name: "1"}}
	if _, err := s.Enqueue(ctx, "shop", []store.NewExecution{taken}); err != nil {
		t.Fatal(err)
	}
	reused := taken
	reused.Key.Name = "2"
	noClass := taken
	noClass.ID, noClass.Key.Class = store.ID{}, 0
	st, err := s.Survey(ctx, "shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := st.Jobs[0].Settled
	settle := func(what store.Settlement) error {
		r := store.SettleRequest{Namespace: "shop", Jobs: []store.SettleJob{{Job: "report", Seen: seen, To: seen + 9}}}
		_, err := s.Settle(ctx, r, func(store.TickView) store.Settlement { return what })
		return err
	}
	tick := func(at store.Millis, st store.State) store.Settlement {
		n := store.NewExecution{Key: store.Key{Class: store.ClassCron, Job: "report", Tick: at}}
		return store.Settlement{Ticks: []store.SettleTick{{NewExecution: n, State: st}}}
	}
	stretch := func(from, to store.Millis, count int64, st store.State) store.Settlement {
		return store.Settlement{Ranges: []store.TickRange{{From: from, To: to, Count: count, State: st}}}
	}
	fetch := store.FetchRequest{Namespace: "shop", Owner: owner, Lease: time.Minute, Jobs: []string{"report"}, Limit: 1}
	bad := func(change func(*store.FetchRequest)) func() error {
		r := fetch
		change(&r)
		return func() error { _, err := s.Fetch(ctx, r); return err }
	}
	for field, call := range map[string]func() error{
		"Owner":                 bad(func(r *store.FetchRequest) { r.Owner = store.Owner{} }),
		"Lease":                 bad(func(r *store.FetchRequest) { r.Lease = time.Microsecond }),
		"Jobs":                  bad(func(r *store.FetchRequest) { r.Jobs = nil }),
		"Limit":                 bad(func(r *store.FetchRequest) { r.Limit = 0 }),
		"ID":                    func() error { _, err := s.Enqueue(ctx, "shop", []store.NewExecution{reused}); return err },
		"Key.Class":             func() error { _, err := s.Enqueue(ctx, "shop", []store.NewExecution{noClass}); return err },
		"To is":                 func() error { return settle(store.Settlement{To: seen + 10}) },
		"lies outside":          func() error { return settle(tick(seen, store.StateMissed)) },
		"not a tick":            func() error { return settle(store.Settlement{Ticks: []store.SettleTick{{NewExecution: taken}}}) },
		"pending, skipped":      func() error { return settle(tick(seen+1, store.StateSucceeded)) },
		"use skipped or missed": func() error { return settle(stretch(seen+1, seen+2, 1, store.StatePending)) },
		"Count":                 func() error { return settle(stretch(seen+1, seen+2, 0, store.StateMissed)) },
		"range":                 func() error { return settle(stretch(seen+2, seen+1, 1, store.StateMissed)) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	rows, err := s.List(ctx, store.Filter{Namespace: "shop"})
	if err != nil || len(rows) != 1 || rows[0].State != store.StatePending {
		t.Errorf("rows afterwards: %+v, %v", rows, err)
	}
	if st, err = s.Survey(ctx, "shop", nil); err != nil || st.Jobs[0].Settled != seen {
		t.Errorf("jobs afterwards: %+v, %v", st.Jobs, err)
	}
}
