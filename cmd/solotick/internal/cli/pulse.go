package cli

import (
	"context"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// pulse keeps a run's lease alive while its command works. It is the command's
// right to go on.
type pulse struct {
	store  store.Store
	exec   store.Execution
	lease  time.Duration
	lost   chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	deadline leaseclock.Deadline
	asked    bool // somebody asked to cancel the run
}

// startPulse beats every third of the lease until stop; sent is the moment before
// the lease was asked for.
func startPulse(ctx context.Context, st store.Store, exec store.Execution, lease time.Duration, sent leaseclock.Instant) *pulse {
	ctx, cancel := context.WithCancel(ctx)
	p := &pulse{
		store: st, exec: exec, lease: lease, lost: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
		deadline: leaseclock.NewDeadline(sent, lease, lease/5),
	}
	go p.beat(ctx)
	return p
}

func (p *pulse) stop() {
	p.cancel()
	<-p.done
}

// Lost implements child.Right.
func (p *pulse) Lost() <-chan struct{} { return p.lost }

// Remaining implements child.Right.
func (p *pulse) Remaining() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline.Remaining()
}

func (p *pulse) canceled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *pulse) beat(ctx context.Context) {
	defer close(p.done)
	next := p.lease / 3
	for {
		if backoff.Wait(ctx, backoff.Jitter(next, 0.1)) != nil {
			return
		}
		sent := leaseclock.Now()
		answer, err := p.ask(ctx)
		if err != nil {
			next = p.lease / 15 // not lost until the deadline says so
			continue
		}
		next = p.lease / 3
		p.mu.Lock()
		p.asked = answer.CancelRequested
		if !answer.Lost {
			p.deadline = leaseclock.NewDeadline(sent, p.lease, p.lease/5)
		}
		p.mu.Unlock()
		if answer.Lost || answer.CancelRequested {
			close(p.lost)
			return
		}
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
