// Package lazyctx makes contexts whose timers and channels come into being when somebody
// first waits for them.
//
// A request that is answered at once costs less than the timer of its deadline and the
// registration with what else may end it. Who asks only for Err and Deadline meanwhile, as
// a connection does that has the kernel keep its time, makes neither.
package lazyctx

import (
	"context"
	"sync"
	"time"
)

// Context is a [context.Context]. It is safe for concurrent use. Whoever made it calls
// Cancel in the end.
type Context struct {
	parent context.Context
	end    time.Time       // its own deadline; zero for none
	other  context.Context // ends it, too; nil for none
	cause  error           // then

	mu     sync.Mutex
	made   context.Context // nil until somebody waits, or asks after the end
	cancel func(error)
	over   bool // by Cancel
}

// WithDeadline is [context.WithDeadline].
func WithDeadline(parent context.Context, end time.Time) *Context {
	return &Context{parent: parent, end: end}
}

// WithTimeout is [context.WithTimeout].
func WithTimeout(parent context.Context, d time.Duration) *Context {
	return WithDeadline(parent, time.Now().Add(d))
}

// With ends when parent does, or when other does, and then with the cause. Its values are
// those of parent.
func With(parent, other context.Context, cause error) *Context {
	return &Context{parent: parent, other: other, cause: cause}
}

// Deadline implements [context.Context].
func (c *Context) Deadline() (time.Time, bool) {
	end, ok := c.parent.Deadline()
	if !c.end.IsZero() && (!ok || c.end.Before(end)) {
		return c.end, true
	}
	return end, ok
}

// Done implements [context.Context].
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wait().Done()
}

// Err implements [context.Context].
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil && !c.ended() {
		return nil
	}
	return c.wait().Err()
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if made != nil {
		return made.Value(key) // also what package context looks for
	}
	return c.parent.Value(key)
}

// Cancel ends the context, and what was made for it.
func (c *Context) Cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel(nil)
	}
}

// ended reports whether the context has ended although nobody has waited. The caller
// holds mu.
func (c *Context) ended() bool {
	return c.over || c.parent.Err() != nil || c.other != nil && c.other.Err() != nil || !c.end.IsZero() && !time.Now().Before(c.end)
}

// wait makes the context that can be waited for. The caller holds mu.
func (c *Context) wait() context.Context {
	if c.made != nil {
		return c.made
	}
	ctx, cancel := context.WithCancelCause(c.parent)
	c.made, c.cancel = ctx, cancel
	if c.over {
		cancel(nil)
		return ctx
	}
	if !c.end.IsZero() {
		timed, stop := context.WithDeadline(ctx, c.end)
		c.made, c.cancel = timed, func(err error) { stop(); cancel(err) }
	}
	switch {
	case c.other == nil:
	case c.other.Err() != nil:
		cancel(c.cause)
	default:
		unhook, before := context.AfterFunc(c.other, func() { cancel(c.cause) }), c.cancel
		c.cancel = func(err error) { unhook(); before(err) }
	}
	return c.made
}
