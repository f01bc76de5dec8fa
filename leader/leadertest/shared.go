package leadertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/solotick/solotick/leader"
)

// RunShared shows that electors which share a connection to a backend that pushes are
// candidates of their own: one leads, and when it is stopped the other does, and that is
// pushed to one that only looks. Elector makes them, of one election, over one driver, with
// the label and interval of cfg.
func RunShared(t *testing.T, elector func(cfg leader.Config) (*leader.Elector, error)) {
	t.Helper()
	elect := func(label string) *leader.Elector {
		e, err := elector(leader.Config{Label: label, ObserveInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	run := func(e *leader.Elector) (stop func()) {
		running, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- e.Run(running) }()
		return func() {
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	one, two := elect("one"), elect("two")
	stopOne := run(one)
	var seen []string
	var stopTwo func()
	for l, err := range elect("").Observe(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Term == 0 {
			continue
		}
		if seen = append(seen, l.Label); len(seen) == 2 {
			break
		}
		stopTwo = run(two)
		stopOne()
	}
	if len(seen) == 0 {
		t.Fatal("nobody was seen to lead")
	}
	stopTwo()
	if !slices.Equal(seen, []string{"one", "two"}) {
		t.Errorf("the leaders were %v, want one and then two", seen)
	}
}
