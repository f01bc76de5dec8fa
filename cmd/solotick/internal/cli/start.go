package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// startPause is what lies between two tries to reach a server at the start.
var startPause = backoff.Policy{Base: 500 * time.Millisecond, Max: 10 * time.Second}

// assemble builds the scheduler, and waits for servers that cannot be reached yet. A
// signal ends the wait: there is neither a scheduler nor an error then.
func (w *worker) assemble(ctx context.Context, stop <-chan os.Signal) (*scheduler.Scheduler, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	built, watched := make(chan struct{}), make(chan struct{})
	var stopped os.Signal
	go func() {
		defer close(watched)
		select {
		case stopped = <-stop:
			cancel()
		case <-built:
		}
	}()
	s, err := w.scheduler(ctx)
	close(built)
	<-watched
	if stopped != nil {
		w.log.InfoContext(ctx, "worker stops before it has started", "signal", stopped.String())
		return nil, nil
	}
	return s, err
}

// await opens what may be on a server, again and again while that cannot be reached:
// a worker that is started before its servers is not at fault.
func (w *worker) await(ctx context.Context, what string, open func() error) error {
	for try := 0; ; try++ {
		err := open()
		if err == nil && try > 0 {
			w.log.InfoContext(ctx, what+" answers") //nolint:sloglint // one of two sentences
		}
		if err == nil || ctx.Err() != nil || !unreachable(err) {
			return err
		}
		pause := startPause.Delay(try)
		w.log.WarnContext(ctx, what+" cannot be reached: the worker waits for it", "error", err.Error(), "next_try", pause.Round(time.Millisecond).String()) //nolint:sloglint // one of two sentences
		if err := backoff.Wait(ctx, pause); err != nil {
			return err
		}
	}
}

// unreachable tells a server that cannot answer from one that says no.
func unreachable(err error) bool {
	if _, usage := errors.AsType[*exitError](err); usage {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, store.ErrUnavailable) || errors.Is(err, locks.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
