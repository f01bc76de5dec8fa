// Command shared-leadership runs three replicas in one process, which share 30 jobs with
// gate leader out: each leads a third of them. Then one stops, and the other two share
// its jobs.
//
//	go run ./examples/shared-leadership
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "shared-leadership:", err)
		os.Exit(1)
	}
}

const (
	replicas = 3
	jobs     = 30
)

// board notes which replica ran a job last.
type board struct {
	mu  sync.Mutex
	ran map[string]string
}

func (b *board) note(job, replica string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ran[job] = replica
}

// shares counts the jobs of each replica.
func (b *board) shares() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[string]int{}
	for _, replica := range b.ran {
		n[replica]++
	}
	return n
}

func run(ctx context.Context, out io.Writer) (err error) {
	st, space, b := memstore.New(), new(memlock.Space), &board{ran: map[string]string{}}
	var running []*scheduler.Scheduler
	defer func() {
		for _, s := range running {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	for i := range replicas {
		name := fmt.Sprint("replica ", i)
		locker, err := memlock.New(space, &locks.Config{TTL: time.Second, Label: name}) // or any other lock backend
		if err != nil {
			return err
		}
		defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }()
		s, err := newScheduler(st, locker)
		if err != nil {
			return err
		}
		for n := range jobs {
			job := fmt.Sprint("job-", n)
			err := s.Add(scheduler.Cron(job, "@every 1s", func(context.Context, *scheduler.Run) error {
				b.note(job, name)
				return nil
			}))
			if err != nil {
				return err
			}
		}
		if err := s.Start(ctx); err != nil {
			return err
		}
		running = append(running, s)
	}
	if err := b.until(ctx, replicas, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "replica 0 stops")
	if err := running[0].Stop(ctx); err != nil {
		return err
	}
	return b.until(ctx, replicas-1, out)
}

// until waits until the jobs are run by so many replicas, and shows by which.
func (b *board) until(ctx context.Context, n int, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		shares := b.shares()
		all, least := 0, jobs
		for _, n := range shares {
			all, least = all+n, min(least, n)
		}
		if len(shares) == n && all == jobs && least >= jobs/n/2 {
			var names []string
			for name := range shares {
				names = append(names, name)
			}
			slices.Sort(names)
			for _, name := range names {
				fmt.Fprintf(out, "%s leads %d of %d jobs\n", name, shares[name], jobs)
			}
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the jobs are run by %v", shares)
		}
	}
}

func newScheduler(st store.Store, locker *locks.Locker) (*scheduler.Scheduler, error) {
	shares, err := leader.NewShares(locker, locks.Key("shop", "leader"), leader.SharesConfig{Partitions: 24})
	if err != nil {
		return nil, err
	}
	return scheduler.New(scheduler.Config{Namespace: "shop", Gate: scheduler.GateLeader}, scheduler.Deps{Store: st, Shares: shares})
}
