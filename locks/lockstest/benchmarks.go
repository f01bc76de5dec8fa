package lockstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// Bench runs the benchmarks that compare backends: a cycle of acquire and release
// on one key, alone and in parallel on keys of their own; an attempt on a key that
// another process holds; a hand-over between two processes, which counts from the
// release to the next grant; and the renewal of 1000 leases.
func Bench(b *testing.B, h Harness) {
	if h.TTL == 0 {
		h.TTL = time.Second
	}
	h.TTL = max(h.TTL, time.Minute) // no renewal in between
	ctx := context.Background()

	b.Run("cycle", func(b *testing.B) {
		w := newBench(b, h)
		p, key := w.process(), w.key("k")
		b.ReportAllocs()
		for b.Loop() {
			lease, err := p.TryAcquire(ctx, key)
			if err != nil {
				b.Fatal(err)
			}
			if err := lease.Release(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cycle-parallel", func(b *testing.B) {
		w := newBench(b, h)
		p := w.process()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			key := locks.Key("lockstest", driver.NewToken().String())
			for pb.Next() {
				lease, err := p.TryAcquire(ctx, key)
				if err != nil {
					b.Error(err)
					return
				}
				if err := lease.Release(ctx); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
	b.Run("held", func(b *testing.B) {
		w := newBench(b, h)
		p, key := w.process(), w.key("k")
		w.try(w.process(), key)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.TryAcquire(ctx, key); !errors.Is(err, locks.ErrHeld) {
				b.Fatal(err)
			}
		}
	})
	b.Run("hand-over", func(b *testing.B) {
		w := newBench(b, h)
		ps, key := []process{w.process(), w.process()}, w.key("k")
		lease := w.try(ps[0], key)
		granted := make(chan *locks.Lease)
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			next := ps[(i+1)%2]
			looks := next.Calls(Acquire)
			go func() {
				l, err := next.Acquire(ctx, key)
				if err != nil {
					b.Error(err)
				}
				granted <- l
			}()
			for next.Calls(Acquire) < looks+2 { // looked, subscribed, looked again
				w.sleep(100 * time.Microsecond)
				if _, ok := driver.As[driver.Waker](next.inner); !ok && next.Calls(Acquire) > looks {
					break
				}
			}
			b.StartTimer()
			if err := lease.Release(ctx); err != nil {
				b.Fatal(err)
			}
			if lease = <-granted; lease == nil {
				b.FailNow()
			}
		}
	})
	b.Run("renew-1000", func(b *testing.B) {
		w := newBench(b, h)
		d := w.driver()
		holds := make([]driver.Hold, 1000)
		for i := range holds {
			holds[i] = w.grant(d, w.request(w.key(fmt.Sprint(i))))
		}
		b.ReportAllocs()
		for b.Loop() {
			batch, ok := driver.As[driver.BatchRenewer](d)
			if !ok {
				for _, hold := range holds {
					if _, err := d.Renew(ctx, hold); err != nil {
						b.Fatal(err)
					}
				}
				continue
			}
			for _, err := range batch.RenewBatch(ctx, holds) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
