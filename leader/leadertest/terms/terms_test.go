package terms_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest/terms"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func own(process int, term, call, back int64) terms.Look {
	return terms.Look{Process: process, Kind: terms.Own, Term: term, Call: call, Return: back}
}

func told(term, call, back int64) terms.Look {
	return terms.Look{Process: 9, Kind: terms.Observed, Term: term, Call: call, Return: back}
}

func TestCheck(t *testing.T) {
	for name, h := range map[string]struct {
		bad   bool
		looks []terms.Look
	}{
		"one after the other": {looks: []terms.Look{
			own(1, 0, 0, 1), told(0, 2, 3), own(1, 5, 4, 5), told(5, 6, 7), own(1, 5, 8, 9), own(1, 0, 10, 11), told(5, 12, 13),
			told(0, 14, 15), own(2, 7, 16, 17), own(2, 7, 20, 21), told(7, 22, 23),
		}},
		"an end that is seen late": {looks: []terms.Look{own(1, 5, 0, 1), own(2, 6, 3, 4), own(1, 0, 5, 6)}},
		"a look that a freeze drew out": {looks: []terms.Look{
			own(1, 5, 0, 1), own(1, 5, 2, 9), own(2, 6, 4, 5), own(1, 0, 10, 11),
		}},
		"told before the winner believes it": {looks: []terms.Look{told(5, 1, 2), own(1, 5, 3, 4), own(1, 5, 5, 6)}},
		"a term that nobody heard of":        {looks: []terms.Look{own(1, 5, 0, 1), own(1, 0, 2, 3), told(6, 4, 5), own(2, 7, 6, 7)}},
		"a last look that is not the end":    {looks: []terms.Look{own(1, 5, 0, 1), told(0, 2, 3), own(2, 6, 4, 5)}},
		"from one term to the next":          {looks: []terms.Look{own(1, 5, 0, 1), own(1, 6, 2, 3)}},

		"two lead at one time": {bad: true, looks: []terms.Look{own(1, 5, 0, 1), own(2, 6, 2, 3), own(1, 5, 4, 5)}},
		"two lead one term":    {bad: true, looks: []terms.Look{own(1, 5, 0, 1), own(1, 0, 2, 3), own(2, 5, 4, 5)}},
		"a term comes back":    {bad: true, looks: []terms.Look{own(1, 5, 0, 1), own(1, 0, 2, 3), own(1, 5, 4, 5)}},
		"a lower term":         {bad: true, looks: []terms.Look{own(1, 5, 0, 1), own(1, 0, 2, 3), own(2, 4, 4, 5)}},
		"told of the one before": {bad: true, looks: []terms.Look{
			own(1, 5, 0, 1), own(1, 0, 2, 3), own(2, 6, 4, 5), told(5, 6, 7),
		}},
		"told of nobody while one leads": {bad: true, looks: []terms.Look{own(1, 5, 0, 1), told(0, 2, 3), own(1, 5, 4, 5)}},
		"told of a term from before":     {bad: true, looks: []terms.Look{own(1, 5, 0, 1), told(4, 2, 3)}},
		"an answer before its question":  {bad: true, looks: []terms.Look{own(1, 5, 2, 1)}},
	} {
		err := terms.Check(h.looks, time.Minute)
		if (err != nil) != h.bad {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "process 1") {
			t.Errorf("%s: the history is not shown: %v", name, err)
		}
	}
}

// fake is a lock that never ends, with numbers by a rule of its own; an open one is
// everybody's.
type fake struct {
	fence func(grants int64) int64
	open  bool

	mu     sync.Mutex
	held   driver.Token
	grants int64
}

func (f *fake) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.open && f.held != (driver.Token{}) && f.held != r.Token {
		return driver.Grant{}, &driver.HeldError{Holder: driver.Holder{Key: r.Key}}
	}
	f.held = r.Token
	f.grants++
	return driver.Grant{Fence: f.fence(f.grants)}, nil
}

func (f *fake) Renew(_ context.Context, h driver.Hold) (driver.Grant, error) {
	return driver.Grant{Fence: h.Fence}, nil
}

func (f *fake) Release(context.Context, driver.Hold) (driver.Released, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = driver.Token{}
	return driver.ReleasedOK, nil
}

// Real electors over a lock that repeats a number, counts backwards, or lets two in, are
// found out; over one that does not, they are not.
func TestElectors(t *testing.T) {
	rising := func(n int64) int64 { return n }
	for name, c := range map[string]struct {
		d   driver.Driver
		bad bool
	}{
		"memlock":               {d: memlock.NewDriver(nil)},
		"a sound one":           {d: &fake{fence: rising}},
		"a number that repeats": {bad: true, d: &fake{fence: func(int64) int64 { return 7 }}},
		"numbers that fall":     {bad: true, d: &fake{fence: func(n int64) int64 { return 1000 - n }}},
		"two may lead":          {bad: true, d: &fake{fence: rising, open: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := elect(t, c.d)
				if (err != nil) != c.bad {
					t.Errorf("Check = %v", err)
				}
			})
		})
	}
}

// elect lets two candidates lead one after the other a few times, and checks what they saw.
func elect(t *testing.T, d driver.Driver) error {
	t.Helper()
	var log terms.Log
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var electors []*leader.Elector
	for process := range 2 {
		l, err := locks.New(d, locks.Config{TTL: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.WithoutCancel(ctx)) }()
		e, err := leader.FromLocks(l, "leader:test", leader.Config{StandBack: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		electors = append(electors, e)
		wg.Go(func() { _ = e.Run(ctx) }) // how it ends is not what is looked at
		wg.Go(func() {
			for ctx.Err() == nil {
				log.Look(process, e)
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	for round := range 6 {
		time.Sleep(4 * time.Second)
		_ = electors[round%2].Resign(ctx) // of one that does not lead it does nothing
		_ = log.Observe(ctx, round%2, electors[round%2])
	}
	cancel()
	wg.Wait()
	return log.Check(time.Minute)
}
