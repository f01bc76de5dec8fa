package lockstest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaultyHasTheInterfacesOfItsDriver(t *testing.T) {
	full := memlock.NewDriver(nil)
	type batch = driver.BatchRenewer
	type wake = driver.Waker
	type look = driver.Inspector
	b, w, l := full.(batch), full.(wake), full.(look)
	for name, d := range map[string]driver.Driver{
		"none": struct{ driver.Driver }{full},
		"batch": struct {
			driver.Driver
			batch
		}{full, b},
		"wake": struct {
			driver.Driver
			wake
		}{full, w},
		"look": struct {
			driver.Driver
			look
		}{full, l},
		"batch and wake": struct {
			driver.Driver
			batch
			wake
		}{full, b, w},
		"batch and look": struct {
			driver.Driver
			batch
			look
		}{full, b, l},
		"wake and look": struct {
			driver.Driver
			wake
			look
		}{full, w, l},
		"all": full,
	} {
		f := lockstest.NewFaulty(d).Driver()
		has := func(d driver.Driver) (is [3]bool) {
			_, is[0] = d.(batch)
			_, is[1] = d.(wake)
			_, is[2] = d.(look)
			return is
		}
		if has(f) != has(d) {
			t.Errorf("%s: the failing driver has %v, the driver %v", name, has(f), has(d))
		}
	}
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
