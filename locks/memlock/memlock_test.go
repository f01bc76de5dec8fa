package memlock_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness() lockstest.Harness { return harnessOn(new(memlock.Space)) }

func harnessOn(space *memlock.Space) lockstest.Harness {
	return lockstest.Harness{
		New:    func(testing.TB) driver.Driver { return memlock.NewDriver(space) },
		Delete: func(_ testing.TB, key string) { space.Delete(key) },
		Proxied: func(testing.TB) (d driver.Driver, cut, heal func()) {
			f := lockstest.NewFaulty(memlock.NewDriver(space))
			return f.Driver(), f.Cut, f.Heal
		},
	}
}

func TestConformance(t *testing.T) {
	h := harness()
	h.TTL = 10 * time.Second
	h.Virtual = true
	lockstest.Run(t, h)
}

// The same where waiters stand in line and losses are pushed.
func TestConformanceWithQueueAndPush(t *testing.T) {
	h := harnessOn(&memlock.Space{Queue: true, PushLoss: true})
	h.TTL = 10 * time.Second
	h.Virtual = true
	lockstest.Run(t, h)
}

// The same on real time, as every backend but this one has it.
func TestConformanceInRealTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	t.Parallel()
	h := harness()
	h.TTL = 500 * time.Millisecond
	lockstest.Run(t, h)
}

func TestNewAndPlugin(t *testing.T) {
	l, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := memlock.New(nil, &locks.Config{TTL: time.Second, RenewInterval: time.Second}); err == nil {
		t.Error("an unsafe configuration was accepted")
	}

	r, err := locks.NewRegistry(memlock.Plugin(nil))
	if err != nil {
		t.Fatal(err)
	}
	var ds [2]driver.Driver
	for i := range ds {
		if ds[i], err = r.Open(t.Context(), "memory", nil); err != nil {
			t.Fatal(err)
		}
	}
	req := driver.Request{Key: "k", Token: driver.NewToken(), TTL: time.Second}
	if _, err := ds[0].Acquire(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	req.Token = driver.NewToken()
	if _, err := ds[1].Acquire(context.Background(), req); err == nil {
		t.Error("two drivers of one plugin do not share its space")
	}
}

func BenchmarkLock(b *testing.B) { lockstest.Bench(b, harness()) }
