package redlock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// Driver is the lock backend. Make it with [NewDriver]; it is safe for concurrent
// use. Close ends its goroutines.
type Driver struct {
	nodes   []*node
	quorum  int
	prefix  string
	maxTTL  time.Duration
	trust   bool          // nodes as they are when they are seen first
	ordered bool          // fences grow: the second round
	timeout time.Duration // of a request to a node; 0 for one that fits the TTL
	owned   bool          // Close closes the clients
	log     *slog.Logger
	check   sync.Once
	checked sync.WaitGroup

	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	ears  *ears
	hands *hands

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
	grants map[driver.Token]*grant
	sweep  int // the number of grants at which those that have ended are forgotten
}

// grant is what this process knows of a grant it has asked for.
type grant struct {
	key string
	// Driver.mu guards the rest.
	asked *asked    // nil when every node has answered
	fence int64     // 0 before it is decided
	until time.Time // when it ends if it is not renewed
}

// asked is the acquire at the nodes, by node.
type asked struct {
	ended   []chan struct{} // closed when the acquire there has ended
	unclear []bool          // it ended without an answer; read after ended
	left    int             // how many have not; guarded by Driver.mu
	cancel  func()          // of the requests
}

// wait waits until the acquire at the node has ended, which nodeTimeout bounds, and
// reports whether it may still arrive there.
func (a *asked) wait(at int) (unclear bool) {
	if a == nil {
		return false
	}
	<-a.ended[at]
	return a.unclear[at]
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
	_ driver.Waker        = (*Driver)(nil)
)

var (
	errClosed    = errors.New("the driver is closed")
	errTakenBack = errors.New("the request was taken back")
)

// minTTL leaves room for the requests to a node that is slow.
const minTTL = 200 * time.Millisecond

// Limits implements [driver.Limiter].
func (d *Driver) Limits() driver.Limits {
	return driver.Limits{MinTTL: minTTL, Granularity: time.Millisecond}
}

func (d *Driver) keys(key string, token driver.Token) []string {
	k := d.prefix + key
	return []string{k, k + "\x00f", k + "\x00x" + token.String()}
}

// drift is what the clocks of the nodes may differ in rate from ours over a TTL.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// spawn runs work that outlives its caller, unless the driver is closed.
func (d *Driver) spawn(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.hands.do(f)
	return true
}

// Acquire implements [driver.Driver] by one request to each node, all at once, and
// a second one that settles the fence. It returns when a majority has granted; the
// other nodes are asked to the end in the background. Without a majority it gives
// back what it got on every node.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	switch {
	case ctx.Err() != nil:
		return driver.Grant{}, driver.NotApplied(context.Cause(ctx))
	case r.TTL > d.maxTTL:
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("redlock: acquire: a TTL of %v is beyond max_ttl, %v, after which a restarted node counts again; raise it", r.TTL, d.maxTTL))
	}
	d.checkOnce()
	// Where those who ask at once share the nodes, nobody has a majority: they take
	// back and come again after random pauses, until somebody has it.
	split := backoff.Policy{Base: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for try := 0; ; try++ {
		g, back, err := d.attempt(ctx, r)
		if back == nil || try == maxSplits {
			return g, err
		}
		select {
		case answered := <-back:
			if !answered || backoff.Wait(ctx, split.Delay(try)) != nil {
				return g, err // a release under way must not meet a new grant
			}
		case <-ctx.Done():
			return g, err
		case <-d.ctx.Done():
			return g, err
		}
	}
}

// maxSplits bounds how often an acquire comes again after a split vote.
const maxSplits = 6

// attempt asks once. Where the vote was split, it returns what tells whether all
// has been taken back.
func (d *Driver) attempt(ctx context.Context, r driver.Request) (driver.Grant, <-chan bool, error) {
	start := time.Now()
	g, votes, err := d.canvass(r)
	if err != nil {
		return driver.Grant{}, nil, driver.NotApplied(err)
	}
	t := tally{holders: map[driver.Token]int{}}
	for t.yes < d.quorum && t.yes+len(d.nodes)-t.total >= d.quorum {
		select {
		case v := <-votes:
			t.count(v)
			continue
		case <-ctx.Done():
		case <-d.ctx.Done():
		}
		d.takeBack(r, g)
		return driver.Grant{}, nil, takenBack(cause(ctx, d.ctx))
	}
	if t.yes < d.quorum {
		back := d.takeBack(r, g)
		err := d.verdict(t)
		if len(t.errs) > 0 || t.yes == 0 || t.decided(d.quorum) {
			back = nil
		}
		return driver.Grant{}, back, err
	}
	fence := d.decide(r.Token, g, t.fence)
	end := start.Add(r.TTL - drift(r.TTL))
	settled := d.settle(ctx, r, t.granting, votes, len(d.nodes)-t.total, fence)
	if !settled || !time.Now().Before(end) && !mutation.On("redlock-valid-until") {
		d.takeBack(r, g)
		return driver.Grant{}, nil, takenBack(fmt.Errorf("a majority granted the key, and did not confirm the fence within the TTL: %w", errNoQuorum))
	}
	d.mu.Lock()
	g.until = end
	d.mu.Unlock()
	return driver.Grant{Fence: fence}, nil, nil
}

var errNoQuorum = errors.New("no answer of a majority of the nodes")

func cause(ctxs ...context.Context) error {
	for _, ctx := range ctxs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errClosed
}

// tally counts votes.
type tally struct {
	total, yes, answered int
	granting             []int
	fence                int64
	held                 *driver.Holder
	holders              map[driver.Token]int
	errs                 []error
}

func (t *tally) count(v vote) {
	t.total++
	switch {
	case v.granted && v.err == nil:
		t.yes++
		t.answered++
		t.granting = append(t.granting, v.at)
		t.fence = max(t.fence, v.fence)
	case v.held != nil:
		t.answered++
		t.holders[v.held.Token]++
		if t.held == nil || t.holders[v.held.Token] > t.holders[t.held.Token] {
			t.held = v.held
		}
	default:
		t.errs = append(t.errs, fmt.Errorf("node %d: %w", v.at+1, v.err))
	}
}

// decided reports whether somebody has a majority.
func (t *tally) decided(quorum int) bool {
	for _, n := range t.holders {
		if n >= quorum {
			return true
		}
	}
	return false
}

// verdict is the error of an acquire without a majority. Somebody holds the key
// where a node says so and the nodes that did not answer could not have decided it.
func (d *Driver) verdict(t tally) error {
	if t.held != nil && len(t.errs) < d.quorum {
		h := *t.held
		if !t.decided(d.quorum) {
			h.Token, h.Fence = driver.Token{}, 0 // of one who may not get it either
		}
		return &driver.HeldError{Holder: h}
	}
	return takenBack(errors.Join(append([]error{errNoQuorum}, t.errs...)...))
}

// takenBack is the error of an acquire that the driver takes back itself, for as long
// as the TTL. It must not be repeated with its token: what is taken back then could be
// the new grant.
func takenBack(err error) error {
	err = fmt.Errorf("redlock: acquire: %w", err)
	if mutation.On("redlock-taken-back") {
		return err
	}
	return driver.NotApplied(err)
}

// canvass asks every node, whatever becomes of the caller.
func (d *Driver) canvass(r driver.Request) (*grant, <-chan vote, error) {
	n := len(d.nodes)
	votes := make(chan vote, n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed
	}
	a := &asked{ended: make([]chan struct{}, n), unclear: make([]bool, n), left: n}
	g := &grant{key: r.Key, asked: a}
	if old := d.grants[r.Token]; old != nil {
		g.fence, g.until = old.fence, old.until
	}
	if len(d.grants) >= d.sweep {
		now := time.Now()
		for token, old := range d.grants {
			if old.fence > 0 && !now.Before(old.until) {
				delete(d.grants, token)
			}
		}
		d.sweep = 2*len(d.grants) + 64
	}
	d.grants[r.Token] = g
	ctx, cancel := context.WithTimeout(d.ctx, d.nodeTimeout(r.TTL))
	a.cancel = cancel
	for at := range d.nodes {
		ended := make(chan struct{})
		a.ended[at] = ended
		d.hands.do(func() {
			defer d.answered(g, a)
			defer close(ended)
			v := d.ask(ctx, at, r)
			a.unclear[at] = v.err != nil
			votes <- v
		})
	}
	return g, votes, nil
}

// answered forgets the acquire once all nodes have answered it: a grant may be held
// for long, and beside many others.
func (d *Driver) answered(g *grant, a *asked) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.left--; a.left > 0 {
		return
	}
	a.cancel()
	if !slices.Contains(a.unclear, true) {
		g.asked = nil
	}
}

// decide fixes the fence of the grant: the one it has, where it is repeated.
func (d *Driver) decide(token driver.Token, g *grant, fence int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.fence == 0 {
		g.fence = fence
	}
	return g.fence
}

// settle is the second round: it writes the fence to every node that granted, also
// to those that do so late, and reports whether a majority has it.
func (d *Driver) settle(ctx context.Context, r driver.Request, granting []int, votes <-chan vote, missing int, fence int64) bool {
	acks := make(chan bool, len(d.nodes))
	confirm := func(at int) {
		ctx, cancel := context.WithTimeout(d.ctx, d.nodeTimeout(r.TTL))
		defer cancel()
		val, err := d.nodes[at].do(ctx, confirmScript, d.keys(r.Key, r.Token), r.Token.String(), fence, r.TTL.Milliseconds())
		acks <- err == nil && val == int64(1)
	}
	for _, at := range granting {
		if !d.ordered {
			break
		}
		if !d.spawn(func() { confirm(at) }) {
			return false
		}
	}
	d.spawn(func() {
		for range missing {
			select {
			case v := <-votes:
				switch {
				case !v.granted || v.err != nil:
					acks <- false
				case d.ordered:
					confirm(v.at)
				}
			case <-d.ctx.Done():
				return
			}
		}
	})
	if !d.ordered {
		return true
	}
	yes, left := 0, len(granting)+missing
	for yes < d.quorum && yes+left >= d.quorum {
		select {
		case ok := <-acks:
			left--
			if ok {
				yes++
			}
		case <-ctx.Done():
			return false
		case <-d.ctx.Done():
			return false
		}
	}
	return yes >= d.quorum
}

// takeBack gives back on every node, when the acquire there has ended, and again
// where that is not answered, until the TTL has passed. It tells whether the first
// try was answered everywhere.
func (d *Driver) takeBack(r driver.Request, g *grant) <-chan bool {
	d.mu.Lock()
	delete(d.grants, r.Token)
	a := g.asked
	d.mu.Unlock()
	end := time.Now().Add(r.TTL)
	first := make(chan bool, len(d.nodes))
	for at := range d.nodes {
		d.spawn(func() {
			for try := 0; time.Now().Before(end); try++ {
				unclear := a.wait(at)
				_, err := d.releaseOn(d.ctx, at, driver.Hold{Request: r}, unclear)
				if try == 0 {
					first <- err == nil && !unclear
				}
				if err == nil || backoff.Wait(d.ctx, backoff.Policy{Max: time.Second}.Delay(try)) != nil {
					return
				}
			}
		})
	}
	all := make(chan bool, 1)
	d.spawn(func() {
		answered := true
		for range d.nodes {
			select {
			case ok := <-first:
				answered = answered && ok
			case <-d.ctx.Done():
				return
			}
		}
		all <- answered
	})
	return all
}

func (d *Driver) forget(token driver.Token) {
	d.mu.Lock()
	delete(d.grants, token)
	d.mu.Unlock()
}

// releaseOn gives back on one node. Where an acquire may still be on its way there,
// it is made to do nothing when it arrives.
func (d *Driver) releaseOn(ctx context.Context, at int, h driver.Hold, late bool) (driver.Released, error) {
	mark := int64(0)
	if late {
		mark = h.TTL.Milliseconds()
	}
	if mutation.On("redlock-late-acquire") {
		mark = 0
	}
	call, cancel := context.WithTimeout(ctx, d.nodeTimeout(h.TTL))
	defer cancel()
	val, err := d.nodes[at].do(call, releaseScript, d.keys(h.Key, h.Token), h.Token.String(), strconv.FormatInt(h.Fence, 10), mark)
	if err != nil {
		return 0, err
	}
	n, _ := val.(int64)
	return driver.Released(n), nil
}

// Release implements [driver.Driver] by one request to each node. It returns when
// the answer is clear; the other nodes are asked to the end in the background.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if ctx.Err() != nil {
		return 0, driver.NotApplied(context.Cause(ctx))
	}
	d.mu.Lock()
	var a *asked
	g := d.grants[h.Token]
	if g != nil {
		g.until = time.Time{} // nothing is made anew from here on
		a = g.asked
	}
	d.mu.Unlock()
	// Of a grant that is not known here, an acquire may be on its way, unless it has a
	// fence: then it is somebody else's, and long settled.
	late := g == nil && h.Fence == 0
	type answer struct {
		out driver.Released
		err error
	}
	answers := make(chan answer, len(d.nodes))
	for at := range d.nodes {
		if !d.spawn(func() {
			out, err := d.releaseOn(d.ctx, at, h, a.wait(at) || late)
			answers <- answer{out, err}
		}) {
			return 0, driver.NotApplied(errClosed)
		}
	}
	var count [driver.ReleasedOther + 1]int
	var errs []error
	for range d.nodes {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			if count[a.out]++; count[a.out] >= d.quorum {
				d.forget(h.Token)
				return a.out, nil
			}
		case <-ctx.Done():
			return 0, fmt.Errorf("redlock: release: %w", context.Cause(ctx))
		}
	}
	// No majority of one mind: ours on some nodes and gone or another's on others.
	ok, gone, other := count[driver.ReleasedOK], count[driver.ReleasedGone], count[driver.ReleasedOther]
	switch {
	case ok+gone+other < d.quorum:
		return 0, fmt.Errorf("redlock: release: %w", errors.Join(append([]error{errNoQuorum}, errs...)...))
	case ok > 0 && ok+gone >= d.quorum:
		d.forget(h.Token)
		return driver.ReleasedOK, nil
	case other > 0:
		d.forget(h.Token)
		return driver.ReleasedOther, nil
	}
	d.forget(h.Token)
	return driver.ReleasedGone, nil
}

// Close ends work in the background. What was not given back on a node ends there
// with its TTL. It closes the clients only where the driver has made them.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.stop()
	d.ears.hints.Close()
	var errs []error
	if d.owned {
		for _, n := range d.nodes {
			errs = append(errs, n.rdb.Close())
		}
	}
	d.work.Wait()
	return errors.Join(errs...)
}

// parse reads a record. One that is not ours holds the key all the same.
func parse(key, text string, ttl int64) driver.Holder {
	h := driver.Holder{Key: key, Remaining: max(time.Duration(ttl)*time.Millisecond, 0)}
	if ttl == 0 {
		h.Remaining = 1 // ends within the millisecond; zero stands for "not known"
	}
	f := strings.SplitN(text, " ", 5)
	if len(f) < 5 || len(f[0]) != 2*len(h.Token) {
		h.Label = text[:min(len(text), 200)]
		return h
	}
	if _, err := hex.Decode(h.Token[:], []byte(f[0])); err != nil {
		h.Label = text[:min(len(text), 200)]
		return h
	}
	h.Fence, _ = strconv.ParseInt(f[1], 10, 64)
	if us, err := strconv.ParseInt(f[3], 10, 64); err == nil {
		h.Since = time.UnixMicro(us).UTC()
	}
	h.Label = f[4]
	return h
}
