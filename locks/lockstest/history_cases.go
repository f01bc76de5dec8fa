package lockstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest/internal/history"
)

// historyCases run processes that contend while requests fail, connections fall
// silent and processes die, and check what was answered.
var historyCases = []testCase{
	testCase{name: "fault/histories are linearizable and no two hold at once", run: linearizable}.asLong(),
}

func linearizable(b *bench) {
	seeds, length := []uint64{1, 2, 3, 4, 5, 6}, 40*b.h.TTL
	if !b.h.Virtual {
		seeds, length = []uint64{rand.Uint64()}, 10*b.h.TTL
	}
	for _, seed := range seeds {
		newTrial(b, seed).run(length)
	}
}

// trial is one run.
type trial struct {
	*bench
	seed uint64
	log  *history.Log
	keys []string

	mu    sync.Mutex
	dice  *rand.Rand
	last  map[string]*locks.Lease
	won   int
	procs []*victim
	all   []*victim
	wg    sync.WaitGroup
}

// victim is a process that things happen to.
type victim struct {
	*Faulty
	l   *locks.Locker
	ctx context.Context
	die context.CancelFunc
}

func newTrial(b *bench, seed uint64) *trial {
	b.Helper()
	r := &trial{bench: b, seed: seed, log: history.NewLog(b.h.Votes), last: make(map[string]*locks.Lease), dice: rand.New(rand.NewPCG(seed, 1))}
	for _, name := range []string{"a", "b"} {
		r.keys = append(r.keys, locks.Key("lockstest", b.run, "history", name, fmt.Sprint(seed)))
	}
	return r
}

func (r *trial) roll(n int) int { r.mu.Lock(); defer r.mu.Unlock(); return r.dice.IntN(n) }

// part is up to d, but not nothing.
func (r *trial) part(d time.Duration) time.Duration {
	return time.Duration(1+r.roll(1000)) * d / 1000
}

func (r *trial) run(length time.Duration) {
	r.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for range 3 {
		r.procs = append(r.procs, r.start(ctx))
	}
	end := time.Now().Add(length)
	// A slow machine needs longer for as much.
	for kills := 3; time.Now().Before(end) || r.grants() < enough && time.Now().Before(end.Add(r.patience())); {
		r.pass(ctx, r.part(r.h.TTL))
		i := r.roll(len(r.procs))
		v := r.procs[i]
		switch n := r.roll(8); {
		case n < 5:
			v.Arm(Method(r.roll(3)), Fault{Kind: Kind(1 + r.roll(int(Swallow))), Delay: r.part(r.h.TTL / 2), Times: 1 + r.roll(3)})
		case n < 7: // a pause, or a partition
			v.Cut()
			r.pass(ctx, r.part(2*r.h.TTL))
			v.Heal()
		case kills > 0:
			kills--
			v.Cut()
			v.die()
			r.procs[i] = r.start(ctx)
		}
	}
	stop()
	r.wg.Wait()
	for _, v := range r.all { // every call has its answer then
		v.Heal()
		if err := v.l.Close(r.within(time.Minute)); err != nil {
			r.Errorf("seed %d: Close: %v", r.seed, err)
		}
	}
	if r.won < enough {
		r.Errorf("seed %d: only %d grants: this run shows little", r.seed, r.won)
	}
	if err := r.log.Check(2 * time.Minute); err != nil {
		r.Errorf("seed %d: %v", r.seed, err)
	}
}

// enough is how many grants a run needs to show anything.
const enough = 15

func (r *trial) grants() int { r.mu.Lock(); defer r.mu.Unlock(); return r.won }

// pass lets d pass, or what is left of ctx.
func (r *trial) pass(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (r *trial) start(ctx context.Context) *victim {
	r.Helper()
	v := &victim{Faulty: NewFaulty(r.h.New(r))}
	v.ctx, v.die = context.WithCancel(ctx)
	var err error
	v.l, err = locks.New(r.log.Driver(len(r.all), v.Driver()), locks.Config{
		TTL: r.h.TTL, Margin: r.h.TTL / 5, RenewInterval: r.h.TTL / 4, Poll: r.h.TTL / 10,
	})
	if err != nil {
		r.Fatalf("locks.New: %v", err)
	}
	r.all = append(r.all, v)
	for range 2 {
		r.wg.Go(func() {
			for v.ctx.Err() == nil {
				r.work(v)
				r.pass(v.ctx, r.part(r.h.TTL/2))
			}
			v.die()
		})
	}
	return v
}

// work is one acquire, and what follows it.
func (r *trial) work(v *victim) {
	ctx, cancel := context.WithTimeout(v.ctx, r.part(2*r.h.TTL))
	defer cancel()
	ask := v.l.Acquire
	if r.roll(2) == 0 {
		ask = v.l.TryAcquire
	}
	lease, err := ask(ctx, r.keys[r.roll(len(r.keys))])
	if err != nil {
		return
	}
	r.granted(lease)
	hold := r.part(r.h.TTL / 2)
	if r.roll(6) == 0 {
		hold *= 4
	}
	r.pass(v.ctx, hold)
	if v.ctx.Err() == nil { // the dead give nothing back
		_ = lease.Release(ctx)
	}
}

func (r *trial) granted(lease *locks.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.won++
	if before := r.last[lease.Key()]; before != nil {
		if before.Valid() && lease.Valid() {
			r.Errorf("seed %d: two hold %q: fences %d and %d", r.seed, lease.Key(), before.Fence(), lease.Fence())
		}
		if before.Fence() >= lease.Fence() && lease.Valid() {
			r.Errorf("seed %d: fence %d after %d", r.seed, lease.Fence(), before.Fence())
		}
	}
	r.last[lease.Key()] = lease
}
