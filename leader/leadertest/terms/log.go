package terms

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/solotick/solotick/leader"
)

// Kind is what was looked at.
type Kind int

// The kinds of look.
const (
	Own      Kind = iota // the process's own term
	Observed             // what the backend tells of who leads
)

// Look is one look of a process: at some moment between Call and Return, by a clock that
// all processes share, this was the term.
type Look struct {
	Process      int
	Kind         Kind
	Term         int64 // 0 for none
	Call, Return int64
}

// Log is a history of processes in one program. It is safe for concurrent use, and its
// zero value is empty. Its clock is the order of calls and answers.
type Log struct {
	mu    sync.Mutex
	now   int64
	looks []Look
}

func (l *Log) call() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	return l.now
}

func (l *Log) add(look Look) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now++
	look.Return = l.now
	l.looks = append(l.looks, look)
}

// Looks returns what was recorded.
func (l *Log) Looks() []Look {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Look(nil), l.looks...)
}

// Check is [Check] of what was recorded.
func (l *Log) Check(limit time.Duration) error { return Check(l.Looks(), limit) }

// Look records a look at the elector's own term, and returns its number.
func (l *Log) Look(process int, e *leader.Elector) int64 {
	call := l.call()
	term := number(e)
	l.add(Look{process, Own, term, call, 0})
	return term
}

// Observe asks the backend who leads, through the elector, and records what it tells.
// An error is no answer.
func (l *Log) Observe(ctx context.Context, process int, e *leader.Elector) error {
	call := l.call()
	got, err := e.Leader(ctx)
	if err != nil && !errors.Is(err, leader.ErrNoLeader) {
		return err
	}
	l.add(Look{process, Observed, got.Term, call, 0})
	return nil
}

func number(e *leader.Elector) int64 {
	if t := e.Term(); t != nil {
		return t.Number()
	}
	return 0
}

// Follow looks at the elector's own term at every change, and every so often while it
// leads, until ctx ends, and once more then. Each look is passed to add with times of the
// clock now; looks that show no term again are left out.
func Follow(ctx context.Context, e *leader.Elector, every time.Duration, now func() int64, add func(Look)) {
	last := int64(-1)
	look := func() {
		call := now()
		term := number(e)
		if term != 0 || term != last {
			add(Look{Kind: Own, Term: term, Call: call, Return: now()})
		}
		last = term
	}
	for {
		changed := e.Changed()
		look()
		var again <-chan time.Time
		if last != 0 {
			again = time.After(every)
		}
		select {
		case <-ctx.Done():
			look()
			return
		case <-changed:
		case <-again:
		}
	}
}
