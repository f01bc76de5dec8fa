package etcdlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
)

// bare is the protocol without a library: the same requests with the same client.
type bare struct {
	c     *clientv3.Client
	lease clientv3.LeaseID
}

func (p bare) acquire(ctx context.Context, dir, path string) error {
	resp, err := p.c.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(dir), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(path, "host:1", clientv3.WithLease(p.lease)), clientv3.OpGet(path)).Else(clientv3.OpGet(dir, clientv3.WithPrefix())).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("held")
	}
	return err
}

func (p bare) release(ctx context.Context, path string) error {
	_, err := p.c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(path), ">", 0)).Then(clientv3.OpDelete(path)).Commit()
	return err
}

// line puts a key, watches the one before it, and returns when that is gone.
func (p bare) line(ctx context.Context, dir, path string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := p.c.Txn(ctx).Then(clientv3.OpPut(path, "host:1", clientv3.WithLease(p.lease)),
		clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))).Commit()
	if err != nil {
		return err
	}
	kvs := resp.Responses[1].GetResponseRange().Kvs
	if len(kvs) < 2 {
		return nil
	}
	events := p.c.Watch(ctx, string(kvs[1].Key), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-events
	if there, err := p.c.Get(ctx, string(kvs[1].Key)); err != nil || len(there.Kvs) == 0 {
		return err
	}
	gone := <-events
	return gone.Err()
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

func openBare(b *testing.B, addr string) bare {
	b.Helper()
	c := console(b, addr)
	lease, err := c.Grant(b.Context(), 600)
	if err != nil {
		b.Fatal(err)
	}
	return bare{c, lease.ID}
}

// BenchmarkCycleRatio alternates our acquire and release with the bare ones.
func BenchmarkCycleRatio(b *testing.B) {
	server := testenv.Etcd(b, 1)[0]
	ctx := b.Context()
	p := openBare(b, server.Addr())
	l := locker(b, start(b, "", server.Addr()), locks.Config{TTL: time.Minute})
	defer l.Close(context.WithoutCancel(ctx))
	var ours, theirs []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		lease, err := l.TryAcquire(ctx, "k")
		if err == nil {
			err = lease.Release(ctx)
		}
		ours = append(ours, time.Since(began))
		began = time.Now()
		path := fmt.Sprint("bare/k/", i)
		if err == nil {
			err = p.acquire(ctx, "bare/k/", path)
		}
		if err == nil {
			err = p.release(ctx, path)
		}
		theirs = append(theirs, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "ratio")
	b.ReportMetric(float64(median(ours).Microseconds()), "ours-us")
	b.ReportMetric(float64(median(theirs).Microseconds()), "bare-us")
}

// BenchmarkHandOverRatio has several wait for one key and hold it for 1 ms each, ours
// and bare ones in turns. A hand-over is from the release called to the next holder.
func BenchmarkHandOverRatio(b *testing.B) {
	for _, waiters := range []int{2, 8, 64} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) { handOverRatio(b, waiters) })
	}
}

func handOverRatio(b *testing.B, waiters int) {
	server := testenv.Etcd(b, 1)[0]
	ctx := context.Background()
	var ours, bares []contender
	for i := range waiters + 1 {
		l := locker(b, start(b, "", server.Addr()), locks.Config{TTL: time.Minute})
		b.Cleanup(func() { l.Close(ctx) })
		ours = append(ours, func() (func() error, error) {
			lease, err := l.Acquire(ctx, "k")
			return func() error { return lease.Release(ctx) }, err
		})
		p, n := openBare(b, server.Addr()), 0
		bares = append(bares, func() (func() error, error) {
			n++
			path := fmt.Sprintf("bare/k/%d-%d", i, n)
			return func() error { return p.release(ctx, path) }, p.line(ctx, "bare/k/", path)
		})
	}
	contend(b, ours, waiters+10)
	contend(b, bares, waiters+10)
	var ratios []float64
	var a, z time.Duration
	for b.Loop() {
		a, z = contend(b, ours, 200), contend(b, bares, 200)
		ratios = append(ratios, float64(a)/float64(z))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(float64(a.Microseconds()), "ours-us")
	b.ReportMetric(float64(z.Microseconds()), "bare-us")
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
	return median(took[:handOvers])
}
