package leader_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
)

const key = "lock:test:leader"

func locker(t *testing.T, space *memlock.Space) *locks.Locker {
	t.Helper()
	l, err := memlock.New(space, &locks.Config{TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return l
}

func elector(t *testing.T, l *locks.Locker, cfg leader.Config) *leader.Elector {
	t.Helper()
	e, err := leader.FromLocks(l, key, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// run runs an elector until stop is called, or the test ends.
func run(t *testing.T, e *leader.Elector) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return stop
}

func TestBadSettingsAreRefusedWithoutARequest(t *testing.T) {
	l := locker(t, nil)
	for _, c := range []struct {
		locker *locks.Locker
		key    string
		cfg    leader.Config
		want   string
	}{
		{nil, key, leader.Config{}, "locker: is nil"},
		{l, "", leader.Config{}, "key"},
		{l, "a\nb", leader.Config{}, "control character"},
		{l, key, leader.Config{TTL: -1}, "ttl: -1ns is negative"},
		{l, key, leader.Config{TTL: time.Microsecond}, "ttl: 1µs leaves no room"},
		{l, key, leader.Config{Label: "a\nb"}, "label"},
		{l, key, leader.Config{Label: strings.Repeat("x", 1000)}, "label"},
		{l, key, leader.Config{StandBack: -1}, "stand_back"},
		{l, key, leader.Config{Priority: 10}, "priority: 10 is not in 0 to 9"},
		{l, key, leader.Config{RequestTimeout: time.Millisecond}, "request_timeout: 1ms is below 10ms"},
		{l, key, leader.Config{ObserveInterval: time.Millisecond}, "observe_interval"},
	} {
		_, err := leader.FromLocks(c.locker, c.key, c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "leader: ") {
			t.Errorf("FromLocks(%q, %+v) = %v, want an error of leader that has %q", c.key, c.cfg, err, c.want)
		}
	}
	if _, err := leader.New(nil, "x", leader.Config{}); err == nil {
		t.Error("New took a nil driver")
	}
	if err := (leader.Config{}).Validate(); err != nil {
		t.Errorf("the zero Config does not validate: %v", err)
	}
}

func TestChangesReachEveryListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := elector(t, locker(t, nil), leader.Config{StandBack: time.Second})
		if h := e.Health(); !errors.Is(h.Err, leader.ErrNotRunning) || !h.Since.IsZero() || e.Term() != nil {
			t.Errorf("before Run the health is %+v, the term %v", h, e.Term())
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var terms [3][]int64
		for i := range terms {
			wg.Go(func() {
				for {
					changed := e.Changed()
					if term := e.Term(); term != nil {
						if n := len(terms[i]); n == 0 || terms[i][n-1] != term.Number() {
							terms[i] = append(terms[i], term.Number())
						}
					}
					select {
					case <-changed:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		stop := run(t, e)
		for range 10 {
			synctest.Wait()
			if e.Term() == nil || e.Err() != nil {
				t.Fatalf("no term: %v", e.Health())
			}
			if err := e.Resign(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
		if err := stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
		cancel()
		wg.Wait()
		for i := range terms {
			if len(terms[i]) != 11 {
				t.Errorf("listener %d saw the terms %v, want 11 of them", i, terms[i])
			}
		}
	})
}

func TestClosedLockerEndsTheTermAndNotTheCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, nil)
		e := elector(t, l, leader.Config{})
		run(t, e)
		synctest.Wait()
		term := e.Term()
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if !errors.Is(term.Err(), leader.ErrStopped) {
			t.Errorf("the term ended by %v, want ErrStopped", term.Err())
		}
		if err := e.Err(); !errors.Is(err, leader.ErrUnavailable) || !errors.Is(err, locks.ErrClosed) {
			t.Errorf("health = %v, want ErrUnavailable because of ErrClosed", err)
		}
	})
}

// A resignation that nobody waits for any more still happens.
func TestResignGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := elector(t, locker(t, nil), leader.Config{Grace: 10 * time.Second})
		run(t, e)
		synctest.Wait()
		term := e.Term()
		_, done := term.Context(t.Context())
		defer done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if err := e.Resign(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("Resign = %v after %v", err, time.Since(begun))
		}
		if err := e.Resign(t.Context()); err != nil || time.Since(begun) != 10*time.Second {
			t.Errorf("a second Resign = %v after %v, want nil when the grace is over", err, time.Since(begun))
		}
		if _, err := e.Leader(t.Context()); !errors.Is(err, leader.ErrNoLeader) {
			t.Errorf("Leader = %v, want ErrNoLeader", err)
		}
	})
}

// counting counts the requests of one process.
type counting struct {
	driver.Driver
	n *atomic.Int64
}

func (c counting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	c.n.Add(1)
	return c.Driver.Acquire(ctx, r)
}

func (c counting) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	c.n.Add(1)
	return c.Driver.Renew(ctx, h)
}

func TestIdleElectionIsCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		var sent [2]atomic.Int64
		for i := range sent {
			l, err := locks.New(counting{memlock.NewDriver(space), &sent[i]}, locks.Config{TTL: 9 * time.Second, Poll: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
			e := elector(t, l, leader.Config{})
			stop := run(t, e)
			defer func() { _ = stop() }()
			synctest.Wait() // so that the first one leads
		}
		time.Sleep(time.Minute)
		// Renewals every 3 s, spread by 10 %; looks every 1.8 to 3.6 s.
		for i, most := range [2]int64{23, 35} {
			if n := sent[i].Load(); n > most {
				t.Errorf("process %d sent %d requests in a minute, want at most %d", i, n, most)
			} else {
				t.Logf("process %d sent %d requests in a minute", i, n)
			}
		}
	})
}
