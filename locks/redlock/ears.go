package redlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/hint"
	"github.com/solotick/solotick/internal/subscription"
)

const (
	// earLinger is how long subscriptions stay when nobody waits any more.
	earLinger = time.Second
	// subscribeLimit bounds the wait for nodes to confirm a subscription. An end of the
	// driver waits for no longer than that either.
	subscribeLimit = time.Second
	// together is within what time the nodes are expected to tell of one release.
	together = 5 * time.Millisecond
	// calm is after what time without a release of a key its hints are prompt again.
	calm = 2 * time.Second
	// refused is how long a node is left alone whose user may not subscribe.
	refused = time.Minute
	// hushed is how often a failing subscription is logged at most.
	hushed = time.Minute
)

var (
	// spread is how long after a release a process asks: not with all the others, and the
	// later the more releases of the key have not been for it.
	spread = backoff.Policy{Base: 20 * time.Millisecond, Max: 500 * time.Millisecond}
	// resubscribe spaces the tries to subscribe again.
	resubscribe = backoff.Policy{Base: 50 * time.Millisecond, Max: 5 * time.Second}
)

var errDeaf = errors.New("redlock: no node tells of releases")

// ears are what hears of releases: one subscription to each node, for all who wait in
// this process, while somebody waits. Each key has a channel of the name of its record,
// to which the release script of every node publishes. What a node does not tell, others
// do, and what none tells the waiters' own looks find.
type ears struct {
	d     *Driver
	hints hint.Source
	nodes []*ear

	mu      sync.Mutex
	news    chan struct{} // closed, and made anew, when a node has confirmed or failed
	coming  map[string]*coming
	logged  time.Time
	dropped map[string]*time.Timer
}

// ear is the subscription to one node.
type ear struct {
	number int
	rdb    redis.UniversalClient
	// sending is held over what is sent, so that the last word is the latest.
	sending sync.Mutex

	// ears.mu guards the rest.
	ps       *redis.PubSub   // nil while there is none
	on       map[string]bool // the channels that are confirmed
	failed   int             // tries, ever
	failures int             // those in a row
	next     time.Time       // no try before this
}

// coming are the hints about a key.
type coming struct {
	due  bool // one is on its way
	n    int  // in a row
	last time.Time
}

func newEars(d *Driver) *ears {
	e := &ears{d: d, news: make(chan struct{}), coming: map[string]*coming{}, dropped: map[string]*time.Timer{}}
	e.hints.Listen, e.hints.Linger = e.listen, earLinger
	for i, n := range d.nodes {
		e.nodes = append(e.nodes, &ear{number: i + 1, rdb: n.rdb, on: map[string]bool{}})
	}
	return e
}

// Wake implements [driver.Waker]. It returns when a majority of the nodes has confirmed
// the subscription, or no more of them will soon, and with an error where none has.
func (d *Driver) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	e := d.ears
	before := e.failed()
	told, end, _, err := e.hints.Add(ctx, key)
	if err != nil {
		return nil, nil, errClosed
	}
	stop := sync.OnceFunc(func() { end(); e.drop(key) })
	for _, n := range e.nodes {
		if !d.spawn(func() { e.subscribe(n, key) }) {
			stop()
			return nil, nil, errClosed
		}
	}
	limit := time.NewTimer(subscribeLimit)
	defer limit.Stop()
	for over := false; ; {
		on, off, news := e.state(key, before)
		switch {
		case on >= d.quorum, on > 0 && (over || on+off == len(e.nodes)):
			return told, stop, nil
		case over || on+off == len(e.nodes):
			stop()
			return nil, nil, errDeaf
		}
		select {
		case <-news:
		case <-limit.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
}

// failed counts the tries of each node that have failed.
func (e *ears) failed() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]int, len(e.nodes))
	for i, n := range e.nodes {
		all[i] = n.failed
	}
	return all
}

// state counts the nodes that tell of the key's releases, and those that will not soon:
// they have failed since before, or are left alone for now.
func (e *ears) state(key string, before []int) (on, off int, news <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, n := range e.nodes {
		switch {
		case n.on[key]:
			on++
		case n.failed > before[i], time.Until(n.next) > subscribeLimit:
			off++
		}
	}
	return on, off, e.news
}

// tellNews lets those who wait for a node's confirmation look. The caller holds mu.
func (e *ears) tellNews() {
	close(e.news)
	e.news = make(chan struct{})
}

// subscribe has the node tell of the key's releases, or not, as is wanted now. Where
// there is no connection, the one to come begins with it.
func (e *ears) subscribe(n *ear, key string) {
	n.sending.Lock()
	defer n.sending.Unlock()
	wanted := e.hints.Waits(key)
	e.mu.Lock()
	ps, on := n.ps, n.on[key]
	if !wanted {
		delete(n.on, key)
	}
	e.mu.Unlock()
	if ps == nil || wanted == on {
		return
	}
	ctx, cancel := context.WithTimeout(e.d.ctx, subscribeLimit)
	defer cancel()
	channel := e.d.prefix + key
	// An error ends the connection, which its reader sees.
	if wanted {
		_ = ps.Subscribe(ctx, channel)
	} else {
		_ = ps.Unsubscribe(ctx, channel)
	}
}

// drop ends the subscription to a key in a while, unless somebody waits for it again.
func (e *ears) drop(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.dropped[key]; t != nil {
		t.Reset(earLinger)
		return
	}
	e.dropped[key] = time.AfterFunc(earLinger, func() {
		waited := e.hints.Waits(key)
		e.mu.Lock()
		delete(e.dropped, key)
		if !waited {
			delete(e.coming, key)
		}
		e.mu.Unlock()
		for _, n := range e.nodes {
			e.d.spawn(func() { e.subscribe(n, key) })
		}
	})
}

// heard has those who wait for the key look, once for what several nodes tell, and
// not when all other processes do.
func (e *ears) heard(key string) {
	if !e.hints.Waits(key) {
		return // the subscription is about to end, and what is kept of the key has gone
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.coming[key]
	if c == nil {
		c = new(coming)
		e.coming[key] = c
	}
	if c.due {
		return
	}
	if time.Since(c.last) > calm {
		c.n = 0
	}
	c.due = true
	time.AfterFunc(together+spread.Delay(c.n), func() {
		e.mu.Lock()
		c.due, c.last = false, time.Now()
		c.n++
		e.mu.Unlock()
		e.hints.Tell(key)
	})
}

// listen keeps the subscriptions until ctx ends.
func (e *ears) listen(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range e.nodes {
		all.Go(func() { e.keep(ctx, n) })
	}
	all.Wait()
}

// keep subscribes to a node again and again.
func (e *ears) keep(ctx context.Context, n *ear) {
	for {
		channels := e.channels()
		e.mu.Lock()
		pause := time.Until(n.next)
		e.mu.Unlock()
		if len(channels) == 0 {
			pause = earLinger / 10 // nobody waits, and this will end, or somebody will
		}
		if backoff.Wait(ctx, pause) != nil {
			return
		}
		if len(channels) == 0 {
			continue
		}
		worked, err := e.session(ctx, n)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			continue
		}
		e.mu.Lock()
		n.failed++
		if worked {
			n.failures = 0
		}
		pause = resubscribe.Delay(n.failures)
		if redis.HasErrorPrefix(err, "NOPERM") {
			pause = backoff.Jitter(refused, 0.1)
		}
		n.failures++
		n.next = time.Now().Add(pause)
		loud := time.Since(e.logged) > hushed
		if loud {
			e.logged = time.Now()
		}
		e.tellNews()
		e.mu.Unlock()
		if loud {
			e.d.log.Warn("redlock: a subscription to releases failed; where the other nodes do not tell either, waiters poll until it is back", "node", n.number, "error", err)
		}
	}
}

// channels are those on which the keys that are waited for are told of.
func (e *ears) channels() []string {
	all := e.hints.Keys()
	for i, key := range all {
		all[i] = e.d.prefix + key
	}
	return all
}

// session is one connection, until it fails or ctx ends.
func (e *ears) session(ctx context.Context, n *ear) (worked bool, err error) {
	ps := n.rdb.Subscribe(ctx) // without a channel no connection is made yet
	shut := func() { _ = ps.Close() }
	defer shut()
	defer context.AfterFunc(ctx, shut)() // ends a read under way
	e.mu.Lock()
	n.ps = ps
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		n.ps = nil
		clear(n.on)
	}()
	// Who has come before is in the list, and who comes later finds ps.
	channels := e.channels()
	if len(channels) == 0 {
		return true, nil
	}
	return subscription.Receive(ctx, ps, subscription.Handler{
		Within: subscribeLimit,
		Changed: func(channel string, subscribed bool) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if key := strings.TrimPrefix(channel, e.d.prefix); subscribed {
				n.on[key] = true
			} else {
				delete(n.on, key)
			}
			e.tellNews()
		},
		Message: func(channel, _ string) { e.heard(strings.TrimPrefix(channel, e.d.prefix)) },
	}, channels...)
}
