package zkleader_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/zkleader"
	"github.com/solotick/solotick/locks/zklock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

// Two electors over one driver, and so in one session, are two candidates; who leads is
// pushed to one that only looks. leader/leadertest has the rest.
func TestElection(t *testing.T) {
	space := testenv.SharedZooKeeper(t)
	d, err := zklock.NewDriver(t.Context(), []string{space.Addr}, zklock.WithPrefix("/"+space.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	elector := func(label string) *leader.Elector {
		e, err := zkleader.New(d, "leader:shop", leader.Config{Label: label, ObserveInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := func(e *leader.Elector) (stop func()) {
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
	one, two := elector("one"), elector("two")
	stopOne := stop(one)
	var seen []string
	var stopTwo func()
	for l, err := range elector("").Observe(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Term == 0 {
			continue
		}
		if seen = append(seen, l.Label); len(seen) == 2 {
			break
		}
		stopTwo = stop(two)
		stopOne()
	}
	stopTwo()
	if len(seen) != 2 || seen[0] != "one" || seen[1] != "two" {
		t.Errorf("the leaders were %v, want one and then two", seen)
	}
	if _, err := zkleader.New(nil, "leader:shop", leader.Config{}); err == nil {
		t.Error("New took a nil driver")
	}
}
