package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// outcome is what a run leaves behind, kept as JSON in the execution's result.
type outcome struct {
	ExitCode  *int   `json:"exit_code"`
	Output    string `json:"output"` // the end of it, stdout and stderr together
	Truncated bool   `json:"truncated"`
}

const keptOutput = 16 << 10

func parseOutcome(result []byte) outcome {
	var o outcome
	if json.Unmarshal(result, &o) != nil {
		return outcome{} // pruned, or written by another program
	}
	return o
}

// outcomeOf is what a run left behind. The exit code outlives the output, which is
// pruned first.
func outcomeOf(e store.Execution) outcome {
	o := parseOutcome(e.Result)
	if code := 0; o.ExitCode == nil && e.ErrorCode == exitErrorCode {
		if _, err := fmt.Sscanf(e.ErrorText, exitErrorText, &code); err == nil {
			o.ExitCode = &code
		}
	}
	return o
}

// How the error of a command that ended with another code than 0 is kept.
const (
	exitErrorCode = "exit"
	exitErrorText = "exit code %d"
)

func (o outcome) describe(e store.Execution) string {
	switch {
	case o.ExitCode != nil:
		return "exit code " + strconv.Itoa(*o.ExitCode)
	case e.ErrorText != "":
		return e.State.String() + " (" + e.ErrorText + ")"
	case e.Reason != store.ReasonNone:
		return e.State.String() + " (" + string(e.Reason) + ")"
	}
	return e.State.String()
}

// onceRun runs a command once per key.
type onceRun struct {
	store     store.Store
	namespace string
	job, key  string
	owner     store.Owner
	label     string
	lease     time.Duration
	signals   *relay
	command   child.Command
}

// timeout bounds one call of the store.
func (o *onceRun) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(o.lease/5, time.Second))
}

func (o *onceRun) run(ctx context.Context) error {
	var (
		exec    store.Execution
		sent    leaseclock.Instant
		decided error // replayed, in progress or stopped
	)
	err := o.signals.until(ctx, func(ctx context.Context) (err error) {
		exec, sent, decided, err = o.claim(ctx)
		return err
	})
	switch {
	case err != nil && exec.ID != (store.ID{}): // stopped in the moment it was ours
		return errors.Join(err, o.finish(ctx, store.Finish{Ref: exec.Ref(), State: store.StatePending, Unstarted: true}))
	case err != nil:
		return err
	case decided != nil:
		return decided
	case exec.ID == (store.ID{}):
		return nil // replayed with code 0
	}
	return o.work(ctx, exec, sent)
}

// work runs the command of a run that is ours, and records how it ended.
func (o *onceRun) work(ctx context.Context, exec store.Execution, sent leaseclock.Instant) error {
	right := startPulse(ctx, o.store, exec, o.lease, sent)
	defer right.stop()
	tail := child.NewTail(keptOutput)
	c := o.command
	c.Stdout, c.Stderr = io.MultiWriter(c.Stdout, tail), io.MultiWriter(c.Stderr, tail)
	c.Grace = o.lease / 5
	c.Env = append(c.Env,
		"SOLOTICK_JOB="+o.job, "SOLOTICK_KEY="+o.key,
		"SOLOTICK_ATTEMPT="+strconv.Itoa(exec.Attempt), "SOLOTICK_FENCE="+strconv.FormatInt(exec.Fence, 10))
	result, runErr := child.Run(c, right, o.signals.signals)
	text, cut := tail.Text()

	f := store.Finish{Ref: exec.Ref(), State: store.StateSucceeded}
	code := result.Code
	var start *child.StartError
	if errors.As(runErr, &start) {
		code = start.Code
	}
	switch {
	case right.canceled():
		f.State, f.ErrorCode, f.ErrorText = store.StateCanceled, "canceled", "canceled while it ran"
	case result.Lost:
		return &exitError{code: exitLost, err: fmt.Errorf("%s was lost to another or could not be renewed in time: the command was stopped (its code: %d)", exec.Key, result.Code)}
	case runErr != nil && start == nil:
		return runErr
	case start != nil: // nothing ran, so the corrected command can have the key
		f.State, f.Unstarted, f.ErrorCode, f.ErrorText = store.StatePending, true, "start", start.Error()
	case code != 0 && result.Signaled != nil:
		f.State, f.ErrorCode, f.ErrorText = store.StatePending, "stopped", "stopped by signal: "+result.Signaled.String()
	case code != 0:
		f.State, f.ErrorCode, f.ErrorText = store.StateFailed, exitErrorCode, fmt.Sprintf(exitErrorText, code)
	}
	if f.State != store.StatePending {
		var err error
		if f.Result, err = json.Marshal(outcome{ExitCode: &code, Output: text, Truncated: cut}); err != nil {
			return fmt.Errorf("encode the outcome: %w", err)
		}
	}
	err := o.finish(ctx, f)
	switch {
	case errors.Is(err, store.ErrFenced):
		return &exitError{code: exitLost, err: fmt.Errorf("the command ended with code %d, but %s had been lost to another: %w", code, exec.Key, err)}
	case errors.Is(err, store.ErrCanceled):
		return fmt.Errorf("%s was canceled while it ran (the command's code: %d)", exec.Key, code)
	case err != nil:
		return fmt.Errorf("the command ended with code %d, but that could not be recorded, so a later call may run it again: %w", code, err)
	case start != nil:
		return commandFailed(&child.StartError{Code: code, Err: fmt.Errorf("%w; no outcome is stored, the key is still free", start)})
	case right.canceled():
		return fmt.Errorf("%s was canceled; the command was stopped (its code: %d)", exec.Key, code)
	}
	return endWith(code)
}

// finish records the end of the run, and tries again while the store does not answer.
func (o *onceRun) finish(ctx context.Context, f store.Finish) error {
	var policy backoff.Policy
	for n := 0; ; n++ {
		err := o.finishOnce(ctx, f)
		if !errors.Is(err, store.ErrUnavailable) || n == 8 {
			return err
		}
		if err := backoff.Wait(ctx, policy.Delay(n)); err != nil {
			return err
		}
	}
}

func (o *onceRun) finishOnce(ctx context.Context, f store.Finish) error {
	ctx, cancel := o.timeout(ctx)
	defer cancel()
	answers, err := o.store.Finish(ctx, []store.Finish{f})
	if err != nil {
		return err
	}
	return answers[0]
}
