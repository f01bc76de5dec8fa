package leadertest_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/leader/leadertest"
	locks "github.com/solotick/solotick/locks/driver"
)

// hall is a backend that queues candidates, as etcd and ZooKeeper do: the first of
// them leads until it resigns or is not heard of for its TTL.
type hall struct {
	mu        sync.Mutex
	elections map[string]*ballot
}

type ballot struct {
	queue   []locks.Token // candidates in order; the first leads if number is its
	leader  driver.Term
	number  int64
	since   time.Time
	expires time.Time
	changed chan struct{}
}

func (h *hall) with(name string, do func(e *ballot)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.elections == nil {
		h.elections = map[string]*ballot{}
	}
	e := h.elections[name]
	if e == nil {
		e = &ballot{changed: make(chan struct{})}
		h.elections[name] = e
	}
	if e.leader.Number != 0 && !time.Now().Before(e.expires) {
		e.vacate()
	}
	do(e)
}

func (e *ballot) vacate() {
	e.leader = driver.Term{}
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *ballot) drop(token locks.Token) {
	e.queue = slices.DeleteFunc(e.queue, func(q locks.Token) bool { return q == token })
}

// desk is one candidate's connection to the hall.
type desk struct {
	hall *hall
	wire *wire
}

func (d *desk) Campaign(ctx context.Context, c driver.Candidate, answered func()) (driver.Grant, error) {
	for queued := false; ; {
		session, cancel := context.WithTimeout(ctx, c.TTL)
		err := d.wire.pass(session)
		cancel()
		if err != nil { // the session is over, and its place in the queue with it
			d.hall.with(c.Election, func(e *ballot) { e.drop(c.Token) })
			return driver.Grant{}, err
		}
		answered()
		var changed chan struct{}
		var wait time.Duration
		var grant driver.Grant
		d.hall.with(c.Election, func(e *ballot) {
			if !queued {
				e.queue = append(e.queue, c.Token)
				queued = true
			}
			if e.leader.Number == 0 && e.queue[0] == c.Token {
				e.queue = e.queue[1:]
				e.number++
				e.leader = driver.Term{Candidate: c, Number: e.number}
				e.since, e.expires = time.Now(), time.Now().Add(c.TTL)
				grant.Number = e.number
			}
			changed, wait = e.changed, max(time.Until(e.expires), 10*time.Millisecond)
		})
		if grant.Number != 0 {
			return grant, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return driver.Grant{}, ctx.Err()
		}
		t.Stop()
	}
}

func (d *desk) Keep(ctx context.Context, t driver.Term) (driver.Grant, error) {
	if err := d.wire.pass(ctx); err != nil {
		return driver.Grant{}, err
	}
	err := locks.ErrNotOurs
	d.hall.with(t.Election, func(e *ballot) {
		if e.leader.Number == t.Number && e.leader.Token == t.Token {
			e.expires, err = time.Now().Add(t.TTL), nil
		}
	})
	return driver.Grant{Number: t.Number}, err
}

func (d *desk) Resign(ctx context.Context, t driver.Term) (locks.Released, error) {
	if err := d.wire.pass(ctx); err != nil {
		return 0, err
	}
	out := locks.ReleasedGone
	d.hall.with(t.Election, func(e *ballot) {
		e.drop(t.Token)
		switch {
		case e.leader.Number == 0:
		case e.leader.Token == t.Token:
			out = locks.ReleasedOK
			e.vacate()
		default:
			out = locks.ReleasedOther
		}
	})
	return out, nil
}

func (d *desk) Leader(ctx context.Context, name string) (locks.Holder, error) {
	if err := d.wire.pass(ctx); err != nil {
		return locks.Holder{}, err
	}
	h, err := locks.Holder{}, locks.ErrFree
	d.hall.with(name, func(e *ballot) {
		if e.leader.Number != 0 {
			h, err = locks.Holder{Key: name, Label: e.leader.Label, Token: e.leader.Token, Fence: e.leader.Number, Since: e.since}, nil
		}
	})
	return h, err
}

// bare has the three methods and nothing else.
type bare struct{ driver.Driver }

// pushing also tells the leader at once that its term is over.
type pushing struct{ *desk }

func (d pushing) Ended(t driver.Term) (<-chan struct{}, func()) {
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		for {
			var changed chan struct{}
			over := false
			d.hall.with(t.Election, func(e *ballot) { changed, over = e.changed, e.leader.Number != t.Number })
			if over {
				close(ended)
				return
			}
			select {
			case <-changed:
			case <-stop:
				return
			}
		}
	}()
	return ended, sync.OnceFunc(func() { close(stop) })
}

func (d pushing) Watch(_ context.Context, name string) (<-chan struct{}, func(), error) {
	hint, stop := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			var changed chan struct{}
			d.hall.with(name, func(e *ballot) { changed = e.changed })
			select {
			case <-changed:
				select {
				case hint <- struct{}{}:
				default:
				}
			case <-stop:
				return
			}
		}
	}()
	return hint, sync.OnceFunc(func() { close(stop) }), nil
}

func TestNative(t *testing.T) {
	for name, make := range map[string]func(*desk) driver.Driver{
		"Bare":    func(d *desk) driver.Driver { return bare{d} },
		"Pushing": func(d *desk) driver.Driver { return pushing{d} },
	} {
		t.Run(name, func(t *testing.T) {
			halls := each(func(*testing.T) *hall { return new(hall) })
			leadertest.Run(t, leadertest.Harness{
				TTL:       3 * time.Second,
				Handover:  100 * time.Millisecond,
				Around:    synctest.Test,
				NoObserve: name == "Bare",
				New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
					w := new(wire)
					t.Cleanup(func() {
						halls(t).with(election, func(e *ballot) {
							if len(e.queue) > 0 {
								t.Errorf("%d candidacies were left behind", len(e.queue))
							}
						})
					})
					e, err := leader.New(make(&desk{halls(t), w}), election, cfg)
					if err != nil {
						t.Fatal(err)
					}
					return leadertest.Candidate{Elector: e, Cut: w.Cut}
				},
				Depose: func(t *testing.T, election string) {
					halls(t).with(election, func(e *ballot) { e.vacate() })
				},
			})
		})
	}
}
