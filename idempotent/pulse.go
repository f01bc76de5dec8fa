package idempotent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// pulse keeps the lease of an attempt alive. Its context ends, with a cause, when
// that fails: by a timer of its own, so that a request that hangs changes nothing.
type pulse struct {
	store   beater
	exec    store.Execution
	lease   time.Duration
	over    context.CancelCauseFunc
	stopped context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	deadline leaseclock.Deadline
	timer    *time.Timer
}

type beater interface {
	Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error)
}

// startPulse beats every third of the lease until stop; sent is the moment before
// the lease was asked for.
func startPulse(ctx context.Context, st beater, exec store.Execution, lease time.Duration, sent leaseclock.Instant) (context.Context, *pulse) {
	work, over := context.WithCancelCause(ctx)
	beats, stopped := context.WithCancel(work)
	p := &pulse{store: st, exec: exec, lease: lease, over: over, stopped: stopped, done: make(chan struct{})}
	p.mu.Lock()
	p.deadline = leaseclock.NewDeadline(sent, lease, lease/5)
	p.timer = time.AfterFunc(p.deadline.Remaining(), p.watch)
	p.mu.Unlock()
	go p.beat(beats)
	return work, p
}

// stop ends the beats, and the context.
func (p *pulse) stop() {
	p.stopped()
	<-p.done
	p.mu.Lock()
	p.timer.Stop()
	p.mu.Unlock()
	p.over(nil)
}

func (p *pulse) watch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.deadline.Remaining(); left > 0 {
		p.timer.Reset(left)
		return
	}
	p.over(fmt.Errorf("%w: %s could not be renewed in time", ErrLeaseLost, p.exec.Key))
}

func (p *pulse) beat(ctx context.Context) {
	defer close(p.done)
	next := p.lease / 3
	for backoff.Wait(ctx, backoff.Jitter(next, 0.1)) == nil {
		sent := leaseclock.Now()
		answer, err := p.ask(ctx)
		switch {
		case err != nil:
			next = p.lease / 15 // not lost until the deadline says so
			continue
		case answer.Lost:
			p.over(fmt.Errorf("%w: %s was taken over", ErrLeaseLost, p.exec.Key))
			return
		case answer.CancelRequested:
			p.over(ErrCanceled)
			return
		}
		next = p.lease / 3
		p.mu.Lock()
		p.deadline = leaseclock.NewDeadline(sent, p.lease, p.lease/5)
		p.mu.Unlock()
	}
}

func (p *pulse) ask(ctx context.Context) (store.BeatAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.lease/5)
	defer cancel()
	h, err := p.store.Heartbeat(ctx, store.HeartbeatRequest{
		Namespace: p.exec.Namespace, Owner: p.exec.Owner, Lease: p.lease,
		Beats: []store.Beat{{ID: p.exec.ID, Attempt: p.exec.Attempt}},
	})
	if err != nil {
		return store.BeatAnswer{}, err
	}
	return h.Beats[0], nil
}
