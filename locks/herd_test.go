package locks_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
)

// asked is a driver without a line or push that notes when it is asked.
type asked struct {
	driver.Driver
	note func()
}

func (d asked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	d.note()
	return d.Driver.Acquire(ctx, r)
}

// Processes that wait for one key and were started in one moment do not ask in one
// moment (medusajs/medusa 15143).
func TestContendersSpreadTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const contenders, bucket = 200, 10 * time.Millisecond
		space := new(memlock.Space)
		var mu sync.Mutex
		var times []time.Time
		note := func() {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
		}
		holder := newProcess(t, space, locks.Config{TTL: time.Hour})
		lease := holder.mustTry(t, "k")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range contenders {
			l, err := locks.New(asked{memlock.NewDriver(space), note}, locks.Config{TTL: ttl, Poll: 250 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				if _, err := l.Acquire(ctx, "k"); err == nil {
					t.Error("two hold the key")
				}
				if err := l.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		// The first look is theirs, at once; what comes after is ours.
		start := time.Now()
		const length = 10 * time.Second
		<-time.After(length)
		cancel()
		wg.Wait()
		mustRelease(t, lease)
		counts := make([]int, length/bucket)
		total := 0
		for _, at := range times {
			if i := int(at.Sub(start) / bucket); i > 0 && i < len(counts) {
				counts[i]++
				total++
			}
		}
		mean, most := float64(total)/float64(len(counts)), 0
		for _, n := range counts {
			most = max(most, n)
		}
		t.Logf("%d requests, %.1f in 10 ms, at most %d", total, mean, most)
		if total < contenders*20 || float64(most) >= 5*mean {
			t.Errorf("%d requests in all; %d in the fullest 10 ms, %.1f in the mean", total, most, mean)
		}
	})
}

// Of ten thousand hand-overs between processes none takes longer than a poll, with a
// backend that pushes hints and with one that does not.
func TestTenThousandHandOvers(t *testing.T) {
	for _, push := range []bool{true, false} {
		t.Run(fmt.Sprint("push ", push), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, poll = 10_000, 250 * time.Millisecond
				space := new(memlock.Space)
				var ps [2]*locks.Locker
				for i := range ps {
					d := memlock.NewDriver(space)
					if !push {
						d = asked{d, func() {}}
					}
					var err error
					if ps[i], err = locks.New(d, locks.Config{TTL: ttl, Poll: poll}); err != nil {
						t.Fatal(err)
					}
				}
				ctx := t.Context()
				lease, err := ps[0].TryAcquire(ctx, "k")
				if err != nil {
					t.Fatal(err)
				}
				var longest time.Duration
				for i := range n {
					next := make(chan *locks.Lease, 1)
					go func() {
						l, err := ps[(i+1)%2].Acquire(ctx, "k")
						if err != nil {
							t.Error(err)
						}
						next <- l
					}()
					synctest.Wait() // it has looked, and waits
					mustRelease(t, lease)
					released := time.Now()
					if lease = <-next; lease == nil {
						return
					}
					longest = max(longest, time.Since(released))
				}
				t.Logf("at most %v from the release to the next holder", longest)
				if longest > poll {
					t.Errorf("a hand-over took %v, and a poll comes after %v", longest, poll)
				}
				mustRelease(t, lease)
				for _, l := range ps {
					if err := l.Close(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
