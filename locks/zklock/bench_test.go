package zklock_test

import (
	"context"
	"slices"
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
	b.Run("hand-over", func(b *testing.B) {
		var ratios []float64
		second, err := zklock.New(ctx, []string{server.Addr}, &locks.Config{TTL: 6 * time.Second}, zklock.WithPrefix(prefix))
		if err != nil {
			b.Fatal(err)
		}
		defer second.Close(ctx)
		ls := []*locks.Locker{l, second}
		lease, err := l.Acquire(ctx, "k")
		if err != nil {
			b.Fatal(err)
		}
		turn := 0
		ours := func() time.Duration {
			turn++
			got := make(chan *locks.Lease)
			go func() {
				next, err := ls[turn%2].Acquire(ctx, "k")
				if err != nil {
					b.Error(err)
				}
				got <- next
			}()
			for len(c.line(prefix, "k")) < 2 {
				continue
			}
			<-time.After(2 * time.Millisecond) // until it watches
			start := time.Now()
			if err := lease.Release(ctx); err != nil {
				b.Fatal(err)
			}
			lease = <-got
			return time.Since(start)
		}
		dir := zklock.KeyPath(prefix, "bare-queue")
		if _, err := c.Create(dir, nil, 0, worldACL); err != nil && err != zk.ErrNodeExists {
			b.Fatal(err)
		}
		other := dialConsole(b, server.Addr)
		bare := func() time.Duration {
			path, err := c.Create(dir+"/lock-", nil, zk.FlagEphemeralSequential, worldACL)
			if err != nil {
				b.Fatal(err)
			}
			_, _, gone, err := other.GetW(path)
			if err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			deleted := make(chan error, 1)
			go func() { deleted <- c.Delete(path, -1) }()
			<-gone
			if err := <-deleted; err != nil {
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
		if err := lease.Release(ctx); err != nil {
			b.Fatal(err)
		}
	})
}
