package etcdlock_test

import (
	"context"
	"fmt"
	"slices"
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
func (p bare) line(ctx context.Context, dir, path string, inLine func()) error {
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
	inLine()
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

// BenchmarkHandOverRatio alternates hand-overs between two of ours with bare ones:
// from the release called to the next holder.
func BenchmarkHandOverRatio(b *testing.B) {
	server := testenv.Etcd(b, 1)[0]
	ctx := b.Context()
	admin := console(b, server.Addr())
	bares := []bare{openBare(b, server.Addr()), openBare(b, server.Addr())}
	ps := []process{start(b, "ours", server.Addr()), start(b, "ours", server.Addr())}
	r := request("k")
	r.TTL = time.Minute
	h := grant(b, ps[0], r)
	if err := bares[0].acquire(ctx, "bare/k/", "bare/k/0"); err != nil {
		b.Fatal(err)
	}
	var ours, theirs []time.Duration
	for i := 0; b.Loop(); i++ {
		r := request("k")
		r.TTL = time.Minute
		next := ps[(i+1)%2]
		sent := next.sent.txns.Load()
		c := queue(ctx, next, r)
		until(b, "it waits", func() bool { return next.sent.txns.Load() >= sent+2 && count(b, admin, "ours/") == 2 })
		<-time.After(time.Millisecond)
		began := time.Now()
		release(b, ps[i%2], h)
		q := <-c
		if q.err != nil {
			b.Fatal(q.err)
		}
		ours, h = append(ours, q.at.Sub(began)), q.hold

		waits, got := make(chan struct{}), make(chan time.Time, 1)
		go func() {
			if err := bares[(i+1)%2].line(ctx, "bare/k/", fmt.Sprint("bare/k/", i+1), func() { close(waits) }); err != nil {
				b.Error(err)
			}
			got <- time.Now()
		}()
		<-waits
		<-time.After(time.Millisecond)
		began = time.Now()
		if err := bares[i%2].release(ctx, fmt.Sprint("bare/k/", i)); err != nil {
			b.Fatal(err)
		}
		theirs = append(theirs, (<-got).Sub(began))
	}
	b.ReportMetric(float64(median(ours))/float64(median(theirs)), "ratio")
	b.ReportMetric(float64(median(ours).Microseconds()), "ours-us")
	b.ReportMetric(float64(median(theirs).Microseconds()), "bare-us")
}
