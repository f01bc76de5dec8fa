package scheduler

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
)

// Middleware wraps a handler: tracing, logging, a limit of the user's own.
type Middleware func(next Handler) Handler

// chain wraps h so that the first middleware is the outermost.
func chain(h Handler, ms []Middleware) Handler {
	for _, m := range slices.Backward(ms) {
		h = m(h)
	}
	return h
}

// PanicError is a handler's panic, turned into an error of its run.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("scheduler: handler panicked: %v", e.Value) }

// recovered turns a panic into an error, so that one run's panic ends that run
// and nothing else.
func recovered(next Handler) Handler {
	return func(ctx context.Context, run *Run) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		return next(ctx, run)
	}
}
