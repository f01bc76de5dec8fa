package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks/driver"
)

const (
	// maxPipelines bounds the pipelines to one node that are under way. A second one
	// is sent only where the first stalls, as on a connection that has fallen silent:
	// it has not come back when one that waits has half of its time left, or in a
	// second.
	maxPipelines = 2
	maxStall     = time.Second
	// maxBatch bounds the requests of one pipeline.
	maxBatch = 4096
	// afterCallers is how much longer than its callers a pipeline is waited for, so
	// that they hear of their own time limit and not of the connection's.
	afterCallers = 10 * time.Millisecond
	// shortest is how long a pipeline is waited for at least, also where its callers
	// have waited for their turn: to give up is to close the connection.
	shortest = minNodeTimeout
)

// pipe carries the requests of this process to one node: what comes while a pipeline
// is under way goes together into the next. So a node that is late costs one
// connection for each time limit and not one for each request. A lone request is sent
// on its caller's goroutine; there is one of the pipe's own only while more waits.
type pipe struct {
	rdb   redis.UniversalClient
	ctx   context.Context     // ends when the driver closes
	spawn func(f func()) bool // false once it is closed

	mu      sync.Mutex
	queue   []*call
	running int
	watch   *time.Timer // looks whether the running ones stall
	watched bool
}

// call is some runs of a script that one caller waits for.
type call struct {
	ctx      context.Context
	script   *script
	requests []request
	answers  []*redis.Cmd
	answered chan struct{}
	sent     bool // guarded by pipe.mu
}

// request is one run of a script.
type request struct {
	keys []string
	args []any
}

// run has the requests answered, all in one pipeline. Its own error means that there
// are no answers; it is marked as not applied where nothing was sent.
func (p *pipe) run(ctx context.Context, s *script, rs ...request) ([]*redis.Cmd, error) {
	if len(rs) == 0 {
		return nil, nil
	}
	if p.ctx.Err() != nil {
		return nil, driver.NotApplied(errClosed)
	}
	c := &call{ctx: ctx, script: s, requests: rs, answered: make(chan struct{})}
	p.mu.Lock()
	p.queue = append(p.queue, c)
	first := p.running == 0
	if first {
		p.running++
	} else {
		p.watchOut(ctx)
	}
	p.mu.Unlock()
	if first && p.next() {
		p.open() // for those who have come meanwhile
	}
	var err error
	select {
	case <-c.answered:
		return c.answers, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-p.ctx.Done():
		err = errClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.sent {
		c.requests = nil // it is left where it is in the queue, and not sent
		return nil, driver.NotApplied(err)
	}
	return nil, err
}

// watchOut has a look taken whether the pipeline under way stalls, in time for a call
// with this context. The caller holds mu.
func (p *pipe) watchOut(ctx context.Context) {
	stall := maxStall
	if end, ok := ctx.Deadline(); ok {
		stall = min(max(time.Until(end)/2, 0), maxStall)
	}
	switch {
	case p.watched || p.running >= maxPipelines:
		return
	case p.watch == nil:
		p.watch = time.AfterFunc(stall, p.stalled)
	default:
		p.watch.Reset(stall)
	}
	p.watched = true
}

// open starts to send, for one that is counted as running.
func (p *pipe) open() {
	if !p.spawn(p.send) {
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
	}
}

func (p *pipe) stalled() {
	p.mu.Lock()
	p.watched = false
	late := len(p.queue) > 0 && p.running > 0 && p.running < maxPipelines
	if late {
		p.running++
	}
	p.mu.Unlock()
	if late {
		p.open()
	}
}

// send sends pipelines until nothing waits.
func (p *pipe) send() {
	for p.next() {
		continue
	}
}

// next sends one pipeline, for one that is counted as running. When it is false nothing
// waits any more, and that one has ended.
func (p *pipe) next() bool {
	p.mu.Lock()
	batch, latest := p.take()
	p.mu.Unlock()
	if len(batch) > 0 {
		p.exec(until{p.ctx, latest.Add(afterCallers)}, batch)
		for _, c := range batch {
			close(c.answered)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.running--
		return false
	}
	return true
}

// until is a context whose end is a deadline of the connection alone, which the client
// and its dialer take from it: no timer of its own is needed for it.
type until struct {
	context.Context
	end time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.end, true }

// take takes what one pipeline carries out of the queue, and tells until when it is
// waited for. The caller holds mu.
func (p *pipe) take() (batch []*call, latest time.Time) {
	n := 0
	latest = time.Now().Add(shortest)
	for i, c := range p.queue {
		if n > 0 && n+len(c.requests) > maxBatch {
			p.queue = p.queue[i:]
			return batch, latest
		}
		if c.ctx.Err() != nil || len(c.requests) == 0 {
			continue
		}
		c.sent = true
		batch = append(batch, c)
		n += len(c.requests)
		end, ok := c.ctx.Deadline()
		if !ok {
			end = time.Now().Add(lookTimeout)
		}
		if end.After(latest) {
			latest = end
		}
	}
	p.queue = nil
	return batch, latest
}

// exec runs the scripts by their names, and those that the node does not know by
// their texts: one that has restarted has forgotten them, and has done nothing.
func (p *pipe) exec(ctx context.Context, batch []*call) {
	var cmds []*redis.Cmd
	for _, c := range batch {
		c.answers = make([]*redis.Cmd, len(c.requests))
		for i := range c.requests {
			c.answers[i] = c.cmd(ctx, i, false)
		}
		cmds = append(cmds, c.answers...)
	}
	p.do(ctx, cmds)
	cmds = nil
	for _, c := range batch {
		for i, cmd := range c.answers {
			if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
				c.answers[i] = c.cmd(ctx, i, true)
				cmds = append(cmds, c.answers[i])
			}
		}
	}
	if len(cmds) > 0 {
		p.do(ctx, cmds)
	}
}

// do sends the commands together, also a single one as a pipeline: the client may
// keep other connections for those. Each has its own answer or error.
func (p *pipe) do(ctx context.Context, cmds []*redis.Cmd) {
	pipeline := p.rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipeline.Process(ctx, cmd)
	}
	_, err := pipeline.Exec(ctx)
	for _, cmd := range cmds {
		// A connection that could not be made or logged in is told here alone.
		if err != nil && cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
	}
}

func (c *call) cmd(ctx context.Context, i int, text bool) *redis.Cmd {
	r := c.requests[i]
	args := make([]any, 0, 3+len(r.keys)+len(r.args))
	if text {
		args = append(args, "eval", c.script.text)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	args = append(args, len(r.keys))
	for _, k := range r.keys {
		args = append(args, k)
	}
	return redis.NewCmd(ctx, append(args, r.args...)...)
}
