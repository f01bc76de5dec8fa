package storetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

// faulty is a wrapped store with a registered job and the request for its tick.
func faulty(t *testing.T) (*storetest.Faulty, store.ClaimRequest) {
	t.Helper()
	f := storetest.NewFaulty(memstore.New())
	r, err := f.Register(t.Context(), "shop", []store.JobSpec{{Job: "report"}})
	if err != nil {
		t.Fatal(err)
	}
	n := store.NewExecution{ID: store.NewID(r.Now), Key: store.Key{Class: store.ClassCron, Job: "report", Tick: r.Now + 1}}
	return f, store.ClaimRequest{
		Namespace: "shop", Owner: store.NewOwner(), Lease: time.Minute, Runs: []store.ClaimRun{{NewExecution: n}},
	}
}

func recorded(t *testing.T, f *storetest.Faulty, r store.ClaimRequest) bool {
	t.Helper()
	_, err := f.Find(t.Context(), "shop", r.Runs[0].Key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func TestFaultyErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fault    storetest.Fault
		want     error
		recorded bool
	}{
		"before":   {storetest.Fault{}, store.ErrUnavailable, false},
		"after":    {storetest.Fault{Applied: true}, store.ErrUnavailable, true},
		"own":      {storetest.Fault{Err: store.ErrSchema}, store.ErrSchema, false},
		"own late": {storetest.Fault{Err: store.ErrSchema, Applied: true}, store.ErrSchema, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, r := faulty(t)
			f.Arm(c.fault, storetest.Claim)
			if _, err := f.Claim(t.Context(), r); !errors.Is(err, c.want) {
				t.Errorf("claim: got %v, want %v", err, c.want)
			}
			if got := recorded(t, f, r); got != c.recorded {
				t.Errorf("recorded: got %v, want %v", got, c.recorded)
			}
			f.Heal(storetest.Claim)
			got, err := f.Claim(t.Context(), r)
			if err != nil || got.Runs[0].Outcome != store.OutcomeStarted {
				t.Errorf("claim after healing: %+v, %v", got, err)
			}
		})
	}
}

func TestFaultyTimesAndCounts(t *testing.T) {
	f, r := faulty(t)
	f.Arm(storetest.Fault{Times: 2})
	for i, bad := range []bool{true, true, false} {
		if _, err := f.Claim(t.Context(), r); (err != nil) != bad {
			t.Errorf("claim %d: %v", i, err)
		}
	}
	if _, err := f.Now(t.Context()); !errors.Is(err, storetest.ErrInjected) {
		t.Errorf("the fault is for two calls of each method: got %v", err)
	}
	if got := f.Calls(storetest.Claim); got != 3 {
		t.Errorf("calls of Claim: got %d, want 3", got)
	}
	if got := f.Counts(); len(got) != 3 || got[storetest.Register] != 1 || got[storetest.Now] != 1 {
		t.Errorf("counts: got %v", got)
	}
	f.ResetCalls()
	if got := f.Calls(storetest.Claim); got != 0 {
		t.Errorf("calls after a reset: got %d", got)
	}
}

func TestFaultyDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := faulty(t)
		f.Arm(storetest.Fault{Delay: 3 * time.Second, Slow: true}, storetest.Claim)
		begin := time.Now()
		got, err := f.Claim(t.Context(), r)
		if err != nil || got.Runs[0].Outcome != store.OutcomeStarted || time.Since(begin) != 3*time.Second {
			t.Errorf("slow claim: %+v, %v after %v", got, err, time.Since(begin))
		}
		f.Arm(storetest.Fault{Delay: time.Hour}, storetest.Claim)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		if _, err := f.Claim(ctx, r); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("claim past its deadline: %v", err)
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("the deadline was a second, the call took %v", d)
		}
	})
}

func TestFaultyBlackHole(t *testing.T) {
	for _, applied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f, r := faulty(t)
			f.Arm(storetest.Fault{BlackHole: true, Applied: applied}, storetest.Claim)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			if _, err := f.Claim(ctx, r); !errors.Is(err, store.ErrUnavailable) || time.Since(begin) != time.Minute {
				t.Errorf("claim into the hole: %v after %v", err, time.Since(begin))
			}
			if got := recorded(t, f, r); got != applied {
				t.Errorf("recorded: got %v, want %v", got, applied)
			}
			outcome := make(chan store.Outcome)
			go func() {
				got, err := f.Claim(t.Context(), r)
				if err != nil {
					t.Errorf("healed claim: %v", err)
					got.Runs = make([]store.ClaimedRun, 1)
				}
				outcome <- got.Runs[0].Outcome
			}()
			synctest.Wait()
			select {
			case <-outcome:
				t.Error("the hole answered before it was healed")
			default:
			}
			f.Heal()
			if got := <-outcome; got != store.OutcomeStarted {
				t.Errorf("healed claim: outcome %v", got)
			}
		})
	}
}

// TestFaultyConforms: without a fault the wrapper is a store like any other.
func TestFaultyConforms(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		s := memstore.New()
		return storetest.Harness{Open: func(testing.TB) store.Store { return storetest.NewFaulty(s) }}
	})
}

func TestMethods(t *testing.T) {
	f := storetest.NewFaulty(memstore.New())
	f.Arm(storetest.Fault{})
	ctx := t.Context()
	calls := map[storetest.Method]func() error{
		storetest.Register:  func() error { _, err := f.Register(ctx, "", nil); return err },
		storetest.Claim:     func() error { _, err := f.Claim(ctx, store.ClaimRequest{}); return err },
		storetest.Enqueue:   func() error { _, err := f.Enqueue(ctx, "", nil); return err },
		storetest.Fetch:     func() error { _, err := f.Fetch(ctx, store.FetchRequest{}); return err },
		storetest.TakeOver:  func() error { _, err := f.TakeOver(ctx, store.FetchRequest{}); return err },
		storetest.Heartbeat: func() error { _, err := f.Heartbeat(ctx, store.HeartbeatRequest{}); return err },
		storetest.Finish:    func() error { _, err := f.Finish(ctx, nil); return err },
		storetest.Survey:    func() error { _, err := f.Survey(ctx, "", nil); return err },
		storetest.Settle:    func() error { _, err := f.Settle(ctx, store.SettleRequest{}, nil); return err },
		storetest.Revive:    func() error { _, err := f.Revive(ctx, store.ReviveRequest{}); return err },
		storetest.SetPause:  func() error { _, err := f.SetPause(ctx, store.Pause{}); return err },
		storetest.Cancel:    func() error { _, err := f.Cancel(ctx, "", store.ID{}); return err },
		storetest.Retry:     func() error { _, err := f.Retry(ctx, "", store.ID{}, ""); return err },
		storetest.Attempts:  func() error { _, err := f.Attempts(ctx, "", store.ID{}); return err },
		storetest.Prune:     func() error { _, err := f.Prune(ctx, store.PruneRequest{}); return err },
		storetest.Sizes:     func() error { _, err := f.Sizes(ctx); return err },
		storetest.Get:       func() error { _, err := f.Get(ctx, "", store.ID{}); return err },
		storetest.Find:      func() error { _, err := f.Find(ctx, "", store.Key{}); return err },
		storetest.List:      func() error { _, err := f.List(ctx, store.Filter{}); return err },
		storetest.Ranges:    func() error { _, err := f.Ranges(ctx, "", "", 0, 0); return err },
		storetest.Ledger:    func() error { _, err := f.Ledger(ctx, "", "", 0, 0); return err },
		storetest.Now:       func() error { _, err := f.Now(ctx); return err },
	}
	for _, m := range storetest.Methods() {
		if err := calls[m](); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("%s: got %v, want the injected fault", m, err)
		}
		if f.Calls(m) != 1 {
			t.Errorf("%s: %d calls counted", m, f.Calls(m))
		}
	}
	if len(calls) != len(storetest.Methods()) {
		t.Errorf("%d methods listed, %d known here", len(storetest.Methods()), len(calls))
	}
}
