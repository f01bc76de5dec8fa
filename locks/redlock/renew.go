package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// Renew implements [driver.Driver] by one request to each node.
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := d.RenewBatch(ctx, []driver.Hold{h})[0]; err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// The answers of a node to a renewal.
const (
	renewOther   = 0
	renewDone    = 1
	renewNothing = 2
	renewUnknown = 3
)

// RenewBatch implements [driver.BatchRenewer] by one pipeline to each node. A hold
// is renewed where a majority of nodes still had it. A node that had nothing of it
// gets it anew in the background, while the hold is valid.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	fill := func(err error) []error {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	switch {
	case len(holds) == 0:
		return errs
	case ctx.Err() != nil:
		return fill(driver.NotApplied(context.Cause(ctx)))
	}
	start := time.Now()
	answers := make(chan nodeAnswer, len(d.nodes))
	timeout := time.Duration(0)
	for _, h := range holds {
		timeout = max(timeout, d.nodeTimeout(h.TTL))
	}
	all := make([]int, len(holds))
	for i := range all {
		all[i] = i
	}
	for at := range d.nodes {
		if !d.spawn(func() {
			call, cancel := context.WithTimeout(d.ctx, timeout)
			defer cancel()
			answers <- nodeAnswer{at, d.renewOn(call, at, holds, all, false)}
		}) {
			return fill(driver.NotApplied(errClosed))
		}
	}
	poll := newPoll(len(d.nodes), len(holds))
	for poll.got < len(d.nodes) && !poll.decided(d.quorum) {
		select {
		case a := <-answers:
			poll.add(a)
		case <-ctx.Done():
			return fill(fmt.Errorf("redlock: renew: %w", context.Cause(ctx)))
		case <-d.ctx.Done():
			return fill(fmt.Errorf("redlock: renew: %w", errClosed))
		}
	}
	for i, h := range holds {
		switch {
		case poll.yes[i] >= d.quorum:
			d.prolong(h, start)
		case poll.no[i] > len(d.nodes)-d.quorum:
			errs[i] = driver.ErrNotOurs
		default:
			errs[i] = fmt.Errorf("redlock: renew: %w", errors.Join(append([]error{errNoQuorum}, poll.errs...)...))
		}
	}
	d.spawn(func() { d.complete(poll, answers, holds, errs) })
	return errs
}

type nodeAnswer struct {
	at      int
	answers []answer
}

type answer struct {
	kind int64
	err  error
}

// poll counts the nodes' answers for each hold.
type poll struct {
	got     int
	yes, no []int
	empty   [][]int // by node: the holds that it had nothing of
	errs    []error
}

func newPoll(nodes, holds int) *poll {
	return &poll{yes: make([]int, holds), no: make([]int, holds), empty: make([][]int, nodes)}
}

func (p *poll) add(a nodeAnswer) {
	p.got++
	for i, x := range a.answers {
		switch x.kind {
		case renewDone:
			p.yes[i]++
		case renewOther:
			p.no[i]++
		case renewNothing:
			p.no[i]++
			p.empty[a.at] = append(p.empty[a.at], i)
		}
	}
	if len(a.answers) > 0 && a.answers[0].err != nil {
		p.errs = append(p.errs, fmt.Errorf("node %d: %w", a.at+1, a.answers[0].err))
	}
}

// decided reports whether no answer to come changes anything.
func (p *poll) decided(quorum int) bool {
	nodes := len(p.empty)
	for i := range p.yes {
		if p.yes[i] < quorum && p.no[i] <= nodes-quorum {
			return false
		}
	}
	return true
}

func (d *Driver) renewOn(ctx context.Context, at int, holds []driver.Hold, which []int, create bool) []answer {
	rs := make([]request, len(which))
	for i, at := range which {
		h := holds[at]
		made := "0"
		if create {
			made = "1"
		}
		rs[i] = request{d.keys(h.Key, h.Token), []any{h.Token.String(), h.Fence, h.TTL.Milliseconds(), h.Label, made}}
	}
	out := make([]answer, len(which))
	answers, err := d.nodes[at].pipe.run(ctx, renewScript, rs...)
	if err != nil {
		for i := range out {
			out[i] = answer{renewUnknown, err}
		}
		return out
	}
	for i, cmd := range answers {
		kind, err := cmd.Int64()
		if err != nil {
			kind = renewUnknown
		}
		out[i] = answer{kind, err}
	}
	return out
}

// prolong notes until when a renewed hold lasts. A grant that this process has not
// made, or has begun to give back, is none to make anew.
func (d *Driver) prolong(h driver.Hold, start time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.grants[h.Token]; g != nil && !g.until.IsZero() {
		g.until = start.Add(h.TTL - drift(h.TTL))
	}
}

// valid reports whether the hold is ours beyond doubt for another d.
func (d *Driver) valid(h driver.Hold, another time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.grants[h.Token]
	if mutation.On("redlock-no-late-renewal") {
		return g != nil
	}
	return g != nil && time.Now().Add(another).Before(g.until)
}

// complete hears the other nodes, and makes the records of what was renewed anew
// where they are missing. What was lost is given back where it is left.
func (d *Driver) complete(p *poll, answers <-chan nodeAnswer, holds []driver.Hold, errs []error) {
	for p.got < len(d.nodes) {
		select {
		case a := <-answers:
			p.add(a)
		case <-d.ctx.Done():
			return
		}
	}
	for i, err := range errs {
		if errors.Is(err, driver.ErrNotOurs) {
			d.mu.Lock()
			g := d.grants[holds[i].Token]
			d.mu.Unlock()
			if g != nil && g.key == holds[i].Key && g.fence == holds[i].Fence {
				d.takeBack(holds[i].Request, g)
			}
		}
	}
	for at, empty := range p.empty {
		var which []int
		var timeout time.Duration
		for _, i := range empty {
			// The request must have ended before the hold can.
			if t := d.nodeTimeout(holds[i].TTL); errs[i] == nil && d.valid(holds[i], t) {
				which = append(which, i)
				timeout = max(timeout, t)
			}
		}
		if len(which) > 0 {
			ctx, cancel := context.WithTimeout(d.ctx, timeout)
			d.renewOn(ctx, at, holds, which, true)
			cancel()
		}
	}
}
