package zklock_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/zklock"
)

// BenchmarkAgainstBare alternates a cycle of the Locker with the same requests
// by the client library alone: create, list and read, delete. It reports the median
// of the ratios.
func BenchmarkAgainstBare(b *testing.B) {
	server := testenv.SharedZooKeeper(b)
	prefix := "/" + server.Name
	ctx := context.Background()
	l, err := zklock.New(ctx, []string{server.Addr}, &locks.Config{TTL: 6 * time.Second}, zklock.WithPrefix(prefix))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(ctx)
	c := dialConsole(b, server.Addr)
	b.Run("cycle", func(b *testing.B) {
		var ratios []float64
		ours := func() time.Duration {
			start := time.Now()
			lease, err := l.TryAcquire(ctx, "k")
			if err != nil {
				b.Fatal(err)
			}
			if err := lease.Release(ctx); err != nil {
				b.Fatal(err)
			}
			return time.Since(start)
		}
		ours() // makes the nodes above
		dir := zklock.KeyPath(prefix, "bare")
		if _, err := c.Create(dir, nil, 0, worldACL); err != nil && err != zk.ErrNodeExists {
			b.Fatal(err)
		}
		bare := func() time.Duration {
			start := time.Now()
			path, err := c.Create(dir+"/lock-", nil, zk.FlagEphemeralSequential, worldACL)
			if err != nil {
				b.Fatal(err)
			}
			listed := make(chan error, 1)
			go func() {
				_, _, err := c.Children(dir)
				listed <- err
			}()
			_, _, _, err = c.GetW(path)
			if err := <-listed; err != nil {
				b.Fatal(err)
			}
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Delete(path, -1); err != nil {
				b.Fatal(err)
			}
			return time.Since(start)
		}
		for b.Loop() {
			x, y := ours(), bare()
			ratios = append(ratios, float64(x)/float64(y))
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], "x-bare")
	})
}

// BenchmarkHandOverRatio has several wait for one key and hold it for 1 ms each, ours
// and bare ones in turns. A hand-over is from the release called to the next holder.
func BenchmarkHandOverRatio(b *testing.B) {
	for _, waiters := range []int{2, 8, 64} {
		b.Run(strconv.Itoa(waiters), func(b *testing.B) { handOverRatio(b, waiters) })
	}
}

func handOverRatio(b *testing.B, waiters int) {
	server := testenv.SharedZooKeeper(b)
	prefix := "/" + server.Name
	ctx := context.Background()
	var ours, bares []contender
	for range waiters + 1 {
		l, err := zklock.New(ctx, []string{server.Addr}, &locks.Config{TTL: 6 * time.Second}, zklock.WithPrefix(prefix))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { l.Close(ctx) })
		ours = append(ours, func() (func() error, error) {
			lease, err := l.Acquire(ctx, "k")
			return func() error { return lease.Release(ctx) }, err
		})
		c := dialConsole(b, server.Addr)
		bares = append(bares, func() (func() error, error) {
			path, err := c.lineUp("/bare")
			return func() error { return c.Delete(path, -1) }, err
		})
	}
	if _, err := dialConsole(b, server.Addr).Create("/bare", nil, 0, worldACL); err != nil && err != zk.ErrNodeExists {
		b.Fatal(err)
	}
	contend(b, ours, waiters+10)
	contend(b, bares, waiters+10)
	var ratios []float64
	var x, y time.Duration
	for b.Loop() {
		x, y = contend(b, ours, 200), contend(b, bares, 200)
		ratios = append(ratios, float64(x)/float64(y))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(float64(x.Microseconds()), "ours-us")
	b.ReportMetric(float64(y.Microseconds()), "bare-us")
}

// lineUp is the protocol without a library: a node, and a watch of the one before it.
func (c console) lineUp(dir string) (path string, err error) {
	path, err = c.Create(dir+"/lock-", nil, zk.FlagEphemeralSequential, worldACL)
	if err != nil {
		return "", err
	}
	line, _, err := c.Children(dir)
	if err != nil {
		return "", err
	}
	slices.Sort(line)
	i, _ := slices.BinarySearch(line, path[len(dir)+1:])
	if i == 0 {
		return path, nil
	}
	_, _, gone, err := c.GetW(dir + "/" + line[i-1])
	switch err {
	case nil:
		<-gone
	case zk.ErrNoNode:
		err = nil
	}
	return path, err
}

// contender waits for the key and returns how to give it back.
type contender func() (release func() error, err error)

// contend passes the key on so many times and returns the median of the hand-overs.
func contend(b *testing.B, all []contender, handOvers int) time.Duration {
	b.Helper()
	var (
		mu       sync.Mutex
		released time.Time
		took     []time.Duration
		wg       sync.WaitGroup
	)
	for _, c := range all {
		wg.Go(func() {
			for over := false; !over; {
				release, err := c()
				at := time.Now()
				if err != nil {
					b.Error(err)
					return
				}
				hold := time.NewTimer(time.Millisecond)
				<-hold.C
				mu.Lock()
				if !released.IsZero() {
					took = append(took, at.Sub(released))
				}
				over = len(took) >= handOvers
				released = time.Now()
				mu.Unlock()
				if err := release(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	took = took[:handOvers]
	slices.Sort(took)
	return took[len(took)/2]
}
