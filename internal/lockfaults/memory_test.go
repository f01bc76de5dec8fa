package lockfaults

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
)

// The backend in memory has no processes but this one: lockers that share a space
// contend while one after the other is cut off or robbed.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	for name, space := range map[string]*memlock.Space{"plain": {}, "queue": {Queue: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 500 * time.Millisecond
			seed := seedOf(t)
			dice := rand.New(rand.NewPCG(seed, 1))
			r := record{stood: map[string][]span{}, taken: map[string][]span{}}
			var mu sync.Mutex
			note := func(e event) { mu.Lock(); defer mu.Unlock(); r.events = append(r.events, e) }

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			keys := []string{"a", "b"}
			folder := t.TempDir()
			ps := make([]*process, 3)
			for i := range ps {
				p := &process{orders: orders{Name: string(rune('x' + i)), Folder: folder}, held: map[string]*held{}, print: note}
				p.faulty = lockstest.NewFaulty(memlock.NewDriver(space))
				var err error
				if p.l, err = locks.New(p.faulty.Driver(), locks.Config{TTL: ttl, Margin: ttl / 5, RenewInterval: ttl / 4}); err != nil {
					t.Fatal(err)
				}
				p.work.Go(func() { p.watchClock(ctx) })
				for loop := range 2 {
					p.loops.Go(func() { p.loop(ctx, keys, rand.New(rand.NewPCG(seed, uint64(2*i+loop)))) })
				}
				ps[i] = p
			}
			for range 2 * rounds(t) {
				p := ps[dice.IntN(len(ps))]
				if dice.IntN(4) == 0 {
					taken := span{from: now()}
					if _, err := p.l.ForceRelease(ctx, "a"); err != nil {
						t.Error(err)
					}
					taken.to = now()
					r.taken["a"] = append(r.taken["a"], taken)
					continue
				}
				p.faulty.Cut()
				cut := time.NewTimer(ttl + rand.N(ttl))
				<-cut.C // real time: leases end meanwhile
				p.faulty.Heal()
			}
			stop()
			for _, p := range ps {
				p.loops.Wait()
				if err := p.l.Close(context.Background()); err != nil {
					t.Error(err)
				}
				p.work.Wait()
			}
			for _, e := range r.events {
				if e.What == "stalled" {
					r.stood[e.Proc] = append(r.stood[e.Proc], span{e.Asked, e.At})
				}
			}
			for _, problem := range r.check() {
				t.Errorf("LOCKFAULTS_SEED=%d: %s", seed, problem)
			}
			if f := r.measure(); f.grants < 3 {
				t.Errorf("only %d grants: this run shows little", f.grants)
			} else {
				t.Logf("FIGURES | memory %s | %v | %d | %d | %s |", name, ttl, f.grants, f.lostByTime, round(f.margin))
			}
		})
	}
}
