package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/solotick/solotick/store"
)

// TestStoredNumbers pins the numbers that rows are stored with.
func TestStoredNumbers(t *testing.T) {
	if got, want := fmt.Sprint(store.States()), "[pending running succeeded failed canceled skipped missed indeterminate]"; got != want {
		t.Errorf("states: got %s", got)
	}
	for i, s := range store.States() {
		if int(s) != i+1 {
			t.Errorf("%v is stored as %d, want %d", s, s, i+1)
		}
	}
	if store.CrashRerun != 0 || store.CrashFail != 1 || store.CrashNextTick != 2 || store.CrashIndeterminate != 3 {
		t.Error("a crash policy has another number")
	}
	if store.ClassCron != 1 || store.ClassManual != 2 || store.ClassBackfill != 3 || store.ClassKey != 4 {
		t.Error("a class has another number")
	}
}

func TestParseState(t *testing.T) {
	for _, s := range store.States() {
		if got, ok := store.ParseState(s.String()); !ok || got != s {
			t.Errorf("ParseState(%q): %v, %v", s, got, ok)
		}
	}
	for _, name := range []string{"", "Running", "running ", "State(9)", "0"} {
		if got, ok := store.ParseState(name); ok || got != 0 {
			t.Errorf("ParseState(%q): %v, %v", name, got, ok)
		}
	}
	if got := store.State(9).String(); got != "State(9)" {
		t.Errorf("String of no state: %q", got)
	}
}

// TestStateKinds: every state is open, ran, or neither (skipped and missed).
func TestStateKinds(t *testing.T) {
	for _, s := range store.States() {
		open := s == store.StatePending || s == store.StateRunning
		idle := s == store.StateSkipped || s == store.StateMissed
		if s.Open() != open || s.Ran() != (!open && !idle) {
			t.Errorf("%v: open %v, ran %v", s, s.Open(), s.Ran())
		}
	}
}

func TestOutcomeString(t *testing.T) {
	want := []string{
		"Outcome(?)", "started", "enqueued", "duplicate", "busy", "skipped", "early", "superseded", "Outcome(?)",
	}
	for i, w := range want {
		if got := store.Outcome(i).String(); got != w {
			t.Errorf("outcome %d: got %q, want %q", i, got, w)
		}
	}
	if got := store.Outcome(-1).String(); got != "Outcome(?)" {
		t.Errorf("outcome -1: got %q", got)
	}
}

func TestJobState(t *testing.T) {
	var j store.JobState
	if j.Current() != (store.Revision{}) || j.PausedAt(5) {
		t.Error("a job without schedule and pause has one")
	}
	j.Revisions = []store.Revision{{Number: 1}, {Number: 2}}
	if j.Current().Number != 2 {
		t.Errorf("in force is %d, want the last", j.Current().Number)
	}
	for _, c := range []struct {
		from, until, at store.Millis
		want            bool
	}{
		{10, 0, 9, false},
		{10, 0, 10, true},
		{10, 0, 1 << 40, true},
		{10, 20, 9, false},
		{10, 20, 19, true},
		{10, 20, 20, false},
		{0, 20, 5, false},
	} {
		j.Paused, j.PausedUntil = c.from, c.until
		if got := j.PausedAt(c.at); got != c.want {
			t.Errorf("paused from %d until %d, at %d: got %v", c.from, c.until, c.at, got)
		}
	}
}

func TestRefAndLedger(t *testing.T) {
	x := store.Execution{
		Namespace: "shop", ID: store.NewID(1), Attempt: 3, Owner: store.NewOwner(), Fence: 9, Timeout: time.Second,
	}
	if got := x.Ref(); got != (store.Ref{Namespace: "shop", ID: x.ID, Attempt: 3, Owner: x.Owner, Fence: 9}) {
		t.Errorf("ref: %+v", got)
	}
	if got := (store.Ledger{Pending: 1, Running: 2, Ran: 4, Skipped: 8, Missed: 16}).Total(); got != 31 {
		t.Errorf("total: %d", got)
	}
	all := []error{store.ErrUnavailable, store.ErrFenced, store.ErrNotFound, store.ErrSchema}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("%v and %v are mixed up", a, b)
			}
		}
	}
}
