package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
)

// splitCommand takes apart "NAME... -- CMD ARG...". It wants exactly n names.
func splitCommand(cmd *cobra.Command, args []string, n int) (names, argv []string, err error) {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 || dash == len(args) {
		return nil, nil, usagef("no command to run: write it after --, as in '%s'; see '%s --help'", cmd.UseLine(), cmd.CommandPath())
	}
	if dash != n {
		return nil, nil, usagef("%d arguments before --, want %d: '%s'", dash, n, cmd.UseLine())
	}
	return args[:dash], args[dash:], nil
}

// stopped is the end of a wait by a signal to this process.
type stopped struct{ sig os.Signal }

func (s *stopped) Error() string { return "stopped by signal: " + s.sig.String() }

func (s *stopped) code() int {
	if n, ok := s.sig.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitFailure
}

// relay receives the signals that belong to a command. Until the command runs
// they end the wait for its turn.
type relay struct{ signals chan os.Signal }

func newRelay() *relay {
	r := &relay{signals: make(chan os.Signal, 16)}
	signal.Notify(r.signals, child.Forwarded()...)
	return r
}

func (r *relay) stop() { signal.Stop(r.signals) }

// until runs wait with a context that the first signal ends. The answer is a
// *stopped when one came, whatever wait said.
func (r *relay) until(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var got *stopped
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-r.signals:
				if slices.Contains([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, sig) {
					got = &stopped{sig}
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	err := wait(ctx)
	cancel()
	<-done
	if got != nil {
		return &exitError{code: got.code(), err: got}
	}
	return err
}

// commandFailed turns the failure to start a command into a shell's exit code.
func commandFailed(err error) error {
	if start, ok := errors.AsType[*child.StartError](err); ok {
		return &exitError{code: start.Code, err: err}
	}
	return err
}

// endWith is the end with a command's own code and nothing more to say.
func endWith(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

// warn tells of something that does not change the outcome.
func warn(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "solotick: "+format+"\n", args...)
}
