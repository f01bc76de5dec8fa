package lockstest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaultyServesWhatItsDriverServes(t *testing.T) {
	type batch = driver.BatchRenewer
	type look = driver.Inspector
	full := memlock.NewDriver(&memlock.Space{Queue: true, PushLoss: true})
	for name, d := range map[string]driver.Driver{
		"none": struct{ driver.Driver }{full},
		"batch": struct {
			driver.Driver
			batch
		}{full, full.(batch)},
		"batch and look": struct {
			driver.Driver
			batch
			look
		}{full, full.(batch), full.(look)},
		"as a space is":         memlock.NewDriver(nil),
		"with a queue":          memlock.NewDriver(&memlock.Space{Queue: true}),
		"with losses pushed":    memlock.NewDriver(&memlock.Space{PushLoss: true}),
		"all":                   full,
		"a failing one of them": lockstest.NewFaulty(memlock.NewDriver(nil)).Driver(),
	} {
		if has, want := served(lockstest.NewFaulty(d).Driver()), served(d); has != want {
			t.Errorf("%s: the failing driver serves %v, the driver %v", name, has, want)
		}
	}
	if served(full) == served(memlock.NewDriver(nil)) {
		t.Error("the options of a Space change nothing")
	}
}

func served(d driver.Driver) (is [6]bool) {
	_, is[0] = driver.As[driver.BatchRenewer](d)
	_, is[1] = driver.As[driver.Queuer](d)
	_, is[2] = driver.As[driver.Waker](d)
	_, is[3] = driver.As[driver.LossWatcher](d)
	_, is[4] = driver.As[driver.Inspector](d)
	_, is[5] = driver.As[driver.Limiter](d)
	return is
}

func TestKindsOfFault(t *testing.T) {
	for name, c := range map[string]struct {
		fault      lockstest.Fault
		err        error
		applied    bool
		notApplied bool // and known to be
		took       time.Duration
	}{
		"none":    {applied: true},
		"refuse":  {fault: lockstest.Fault{Kind: lockstest.Refuse}, err: lockstest.ErrInjected, notApplied: true},
		"before":  {fault: lockstest.Fault{Kind: lockstest.ErrorBefore}, err: lockstest.ErrInjected},
		"after":   {fault: lockstest.Fault{Kind: lockstest.ErrorAfter}, err: lockstest.ErrInjected, applied: true},
		"delay":   {fault: lockstest.Fault{Kind: lockstest.Delay, Delay: time.Second}, applied: true, took: time.Second},
		"late":    {fault: lockstest.Fault{Kind: lockstest.Delay, Delay: time.Hour}, err: context.DeadlineExceeded, took: 5 * time.Second},
		"silence": {fault: lockstest.Fault{Kind: lockstest.BlackHole}, err: context.DeadlineExceeded, took: 5 * time.Second},
		"swallow": {fault: lockstest.Fault{Kind: lockstest.Swallow}, err: context.DeadlineExceeded, applied: true, took: 5 * time.Second},
		"deaf":    {fault: lockstest.Fault{Kind: lockstest.Deaf}, err: lockstest.ErrInjected, took: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				space := new(memlock.Space)
				f := lockstest.NewFaulty(memlock.NewDriver(space))
				f.Arm(lockstest.Acquire, c.fault)
				time.AfterFunc(time.Minute, f.Heal)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start := time.Now()
				r := driver.Request{Key: "k", Token: driver.NewToken(), TTL: time.Hour}
				_, err := f.Driver().Acquire(ctx, r)
				if !errors.Is(err, c.err) || driver.IsNotApplied(err) != c.notApplied {
					t.Errorf("Acquire = %v, want %v", err, c.err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if applied := space.Len() == 1; applied != c.applied {
					t.Errorf("applied = %v, want %v", applied, c.applied)
				}
				if n := f.Calls(lockstest.Acquire); n != 1 || f.AllCalls() != 1 {
					t.Errorf("%d calls counted", n)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

func TestFaultsEndByThemselves(t *testing.T) {
	f := lockstest.NewFaulty(memlock.NewDriver(nil))
	d := f.Driver()
	f.Arm(lockstest.Release, lockstest.Fault{Kind: lockstest.ErrorBefore, Times: 2})
	for i, want := range []bool{false, false, true, true} {
		if _, err := d.Release(t.Context(), driver.Hold{Request: driver.Request{Key: "k"}}); (err == nil) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
}
