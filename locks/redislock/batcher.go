package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/locks/driver"
)

const (
	// maxLanes bounds the pipelines under way. A second one is opened only where
	// the first has not come back within stall, as on a silent connection.
	maxLanes = 8
	stall    = 25 * time.Millisecond
	// maxBatch bounds the commands of one pipeline.
	maxBatch = 4096
	// unbounded is the time limit of a request whose caller has none.
	unbounded = 5 * time.Second
	// afterCallers is how much longer than its callers a pipeline waits.
	afterCallers = 20 * time.Millisecond
	// closeGrace bounds how long closing waits for pipelines under way.
	closeGrace = time.Second
)

// command is a script to run. Its answer is in val and err.
type command struct {
	script *script
	keys   []string // of the locks; the script has them with each of its suffixes
	args   []string
	val    any
	err    error
}

// encode appends the request, with the text of the script or its name.
func (c *command) encode(b []byte, text bool) []byte {
	b = c.script.begin(b, text, len(c.keys)*len(c.script.suffixes), len(c.args))
	b = c.script.appendKeys(b, c.keys)
	for _, a := range c.args {
		b = appendText(b, a)
	}
	return b
}

// cmd is the request as the client wants it.
func (c *command) cmd(ctx context.Context, text bool) *redis.Cmd {
	n := len(c.keys) * len(c.script.suffixes)
	args := make([]any, 0, 3+n+len(c.args))
	if text {
		args = append(args, "eval", c.script.text)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	args = append(args, n)
	for _, k := range c.keys {
		for _, suffix := range c.script.suffixes {
			args = append(args, k+suffix)
		}
	}
	for _, a := range c.args {
		args = append(args, a)
	}
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// batcher runs commands in pipelines: what comes while one is under way goes
// together into the next. It has goroutines only while there is something to do.
type batcher struct {
	rdb   redis.UniversalClient
	ctx   context.Context // ends with stop
	stop  context.CancelFunc
	lanes sync.WaitGroup

	mu      sync.Mutex
	queue   []*call
	running int
	watch   *time.Timer // opens another lane when the running ones stall
	watched bool
	closed  bool
}

type call struct {
	ctx      context.Context
	commands []*command
	answered chan struct{}
	sent     bool // guarded by batcher.mu
}

func newBatcher(rdb redis.UniversalClient) *batcher {
	b := &batcher{rdb: rdb}
	b.ctx, b.stop = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: pipelines are shared by callers
	return b
}

// run has the commands answered, all in one pipeline. Its own error means that
// there are no answers: marked not applied where nothing was sent.
func (b *batcher) run(ctx context.Context, commands ...*command) error {
	if ctx.Err() != nil {
		return driver.NotApplied(context.Cause(ctx))
	}
	c := &call{ctx: ctx, commands: commands, answered: make(chan struct{})}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return driver.NotApplied(errClosed)
	}
	b.queue = append(b.queue, c)
	if b.running == 0 {
		b.open()
	} else if !b.watched {
		b.watched = true
		if b.watch == nil {
			b.watch = time.AfterFunc(stall, b.stalled)
		} else {
			b.watch.Reset(stall)
		}
	}
	b.mu.Unlock()
	select {
	case <-c.answered:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !c.sent {
		return driver.NotApplied(context.Cause(ctx)) // the lane will skip it
	}
	return context.Cause(ctx)
}

var errClosed = errors.New("the driver is closed")

// open starts a lane. The caller holds mu.
func (b *batcher) open() {
	b.running++
	b.lanes.Go(b.lane)
}

// stalled opens a lane if what waited when the watch was set may still do so.
func (b *batcher) stalled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched = false
	if len(b.queue) > 0 && b.running < maxLanes && !b.closed {
		b.open()
		b.watched = true
		b.watch.Reset(stall)
	}
}

// lane sends batches until nothing waits.
func (b *batcher) lane() {
	for {
		b.mu.Lock()
		batch, n := b.take()
		if len(batch) == 0 {
			b.running--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.send(batch, n)
		for _, c := range batch {
			close(c.answered)
		}
	}
}

// take takes what one pipeline carries out of the queue. The caller holds mu.
func (b *batcher) take() (batch []*call, n int) {
	for i, c := range b.queue {
		if n > 0 && n+len(c.commands) > maxBatch {
			b.queue = b.queue[i:]
			return batch, n
		}
		if c.ctx.Err() == nil {
			c.sent = true
			batch = append(batch, c)
			n += len(c.commands)
		}
	}
	b.queue = nil
	return batch, n
}

func (b *batcher) send(batch []*call, n int) {
	var latest time.Time
	commands := make([]*command, 0, n)
	for _, c := range batch {
		commands = append(commands, c.commands...)
		end, ok := c.ctx.Deadline()
		if !ok {
			end = time.Now().Add(unbounded)
		}
		if end.After(latest) {
			latest = end
		}
	}
	// The callers' contexts end first, so that they hear of those and not of the
	// connection's deadline.
	ctx, cancel := context.WithDeadline(b.ctx, latest.Add(afterCallers))
	defer cancel()
	b.exec(ctx, commands, false)
	// A server that was restarted knows no scripts, and did nothing.
	var unknown []*command
	for _, c := range commands {
		if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) > 0 {
		b.exec(ctx, unknown, true)
	}
}

// exec sends commands, with the text of the scripts or by their names.
func (b *batcher) exec(ctx context.Context, commands []*command, text bool) {
	sent := make([]*redis.Cmd, len(commands))
	for i, c := range commands {
		sent[i] = c.cmd(ctx, text)
	}
	var failed error
	if len(sent) == 1 {
		failed = b.rdb.Process(ctx, sent[0])
	} else {
		pipe := b.rdb.Pipeline()
		for _, cmd := range sent {
			_ = pipe.Process(ctx, cmd)
		}
		_, failed = pipe.Exec(ctx)
	}
	for i, c := range commands {
		c.val, c.err = sent[i].Result()
		if c.val == nil && c.err == nil {
			c.err = failed // a connection or a login that failed is not told to every command
		}
	}
}

// close refuses new commands and waits a moment for those under way. What the
// client still waits for ends with the client's own time limits.
func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	if b.watch != nil {
		b.watch.Stop()
	}
	b.mu.Unlock()
	b.stop()
	done := make(chan struct{})
	go func() {
		b.lanes.Wait()
		close(done)
	}()
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// repeats reports whether the client may send a request twice.
func repeats(rdb redis.UniversalClient) bool {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().MaxRetries > 0
	case *redis.ClusterClient:
		return c.Options().MaxRedirects > 0 // not only where a node says that it has moved
	}
	return true
}

// explain says what failed, and marks what is known not to have been applied. That a
// client's own repeat was refused says nothing of what it has sent before.
func (d *Driver) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	known := driver.IsNotApplied(err) || !d.repeats && refused(err)
	err = fmt.Errorf("redislock: %s: %w", what, err)
	if known {
		return driver.NotApplied(err)
	}
	return err
}

// refusals are the beginnings of the errors by which Redis refuses a command
// before it has done anything.
var refusals = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "BUSY", "TRYAGAIN", "CROSSSLOT", "NOSCRIPT",
	"ERR max number of clients",
}

// refused reports whether the request was not carried out. An error from inside a
// script says nothing of what the script did before.
func refused(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.ErrPoolTimeout) {
		return true
	}
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted {
		return true
	}
	text := err.Error()
	if strings.Contains(text, "script") && !strings.HasPrefix(text, "NOSCRIPT") {
		return false
	}
	for _, prefix := range refusals {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}
