package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

// call is one call of Once.
type call struct {
	options
	guard       *Guard
	key         Key
	fingerprint Fingerprint
	codec       string
	owner       store.Owner // of this call alone, so that two calls of a process are told apart
}

// found is what a call learned of its key: the record at a time of the store, and
// whether it is this call's to run since an instant.
type found struct {
	store.Execution
	now  store.Millis
	mine bool
	sent leaseclock.Instant
}

func (c *call) run(ctx context.Context, fn func(tx *gorm.DB) ([]byte, error)) (Reply[[]byte], error) {
	if reply, ok := c.cache.answer(ctx, c); ok {
		return reply, nil
	}
	defer c.cache.leave(ctx, c)
	got, reply, err := c.claim(ctx)
	if err != nil || !got.mine {
		return reply, err
	}
	a := &Attempt{exec: got.Execution}
	reply = Reply[[]byte]{ID: a.exec.ID, Attempt: a.exec.Attempt}
	if err := c.work(ctx, a, got.sent, fn); err != nil {
		return reply, err
	}
	c.cache.keep(ctx, c, a.exec, a.result)
	reply.Value, err = unseal(c.codec, a.result)
	return reply, err
}

// work calls the user's functions under the lease, and records how that ended.
func (c *call) work(ctx context.Context, a *Attempt, sent leaseclock.Instant, fn func(tx *gorm.DB) ([]byte, error)) (err error) {
	work, p := startPulse(ctx, c.guard.store, a.exec, c.lease, sent)
	returned := false
	defer func() {
		p.stop()
		if !returned { // a panic, which goes on
			_ = c.end(ctx, a, errors.New("panic"))
		}
	}()
	if c.before != nil {
		err = c.before(work, a)
	}
	if err == nil {
		err = c.guard.do(work, a, func(tx *gorm.DB) error {
			payload, err := fn(tx)
			if err != nil {
				return err
			}
			a.result, err = seal(c.codec, payload)
			return err
		})
	}
	returned = true
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(work), ErrCanceled) {
		err = &Failure{Code: "canceled", Text: "canceled while it ran", Err: err}
	}
	return c.end(ctx, a, err)
}

// end records the end of an attempt that was not committed, and returns what the
// caller is told.
func (c *call) end(ctx context.Context, a *Attempt, err error) error {
	var refused *refusal
	var failed *Failure
	f := store.Finish{Ref: a.exec.Ref(), State: store.StatePending, Delay: c.retryDelay, ErrorCode: "error", ErrorText: cut(err.Error())}
	switch {
	case errors.Is(err, ErrFenced):
		return err
	case errors.As(err, &refused):
		return c.unlessRecorded(refused.err, c.insist(ctx, func(ctx context.Context) error { return c.guard.store.Forget(ctx, f.Ref) }))
	case errors.As(err, &failed):
		f.State, f.ErrorCode, f.ErrorText = store.StateFailed, failed.Code, failed.Text
		if errors.Is(failed.Err, ErrCanceled) {
			f.State = store.StateCanceled
		}
	case c.onCrash == store.CrashIndeterminate:
		f.State = store.StateIndeterminate
		err = fmt.Errorf("%w: %w", ErrIndeterminate, err)
	case c.maxAttempts > 0 && a.exec.Attempt >= c.maxAttempts:
		f.State, f.ErrorCode = store.StateFailed, "attempts"
		err = &Failure{Code: f.ErrorCode, Text: f.ErrorText, Err: err}
	}
	return c.unlessRecorded(err, c.insist(ctx, func(ctx context.Context) error {
		answers, err := c.guard.store.Finish(ctx, []store.Finish{f})
		if err != nil {
			return err
		}
		return answers[0]
	}))
}

// unlessRecorded is err, with the news that it could not be recorded. That another
// attempt has the run is none, nor that it was canceled: there is nothing left to record.
func (c *call) unlessRecorded(err, recording error) error {
	if recording == nil || errors.Is(recording, ErrFenced) || errors.Is(recording, store.ErrCanceled) {
		return err
	}
	return fmt.Errorf("%w (that could not be recorded, so the key is held until its lease ends: %w)", err, recording)
}

func cut(text string) string { return text[:min(len(text), maxText)] }

// insist is for what has to be said to the store even if the caller has gone, and
// is tried again while the store does not answer.
func (c *call) insist(ctx context.Context, say func(ctx context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	for n := 0; ; n++ {
		err := c.bounded(ctx, say)
		if !errors.Is(err, store.ErrUnavailable) || n == 3 {
			return err
		}
		if err := backoff.Wait(ctx, backoff.Policy{}.Delay(n)); err != nil {
			return err
		}
	}
}

// bounded bounds one call of the store.
func (c *call) bounded(ctx context.Context, say func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.lease/5, time.Second))
	defer cancel()
	return say(ctx)
}

// claim makes the run this call's, or finds its answer.
func (c *call) claim(ctx context.Context) (found, Reply[[]byte], error) {
	got, err := c.insert(ctx)
	retried := false
	for n := 0; ; n++ {
		if err != nil {
			return got, Reply[[]byte]{}, err
		}
		if got.mine {
			return got, Reply[[]byte]{}, nil
		}
		if got.ArgsHash != c.fingerprint.hash() && !mutation.On("once-fingerprint") {
			return got, Reply[[]byte]{ID: got.ID}, fmt.Errorf("%w (%s)", ErrMismatch, c.key)
		}
		switch {
		case got.State == store.StateSucceeded:
			reply, err := c.replay(got.Execution)
			if err == nil {
				c.cache.keep(ctx, c, got.Execution, got.Result)
			}
			return got, reply, err
		case got.State == store.StateIndeterminate:
			err = c.resolve(ctx, got.Execution)
		case !got.State.Open() && c.retryFailed && !retried:
			retried = true
			err = c.reopen(ctx, got.Execution, "called again")
		case !got.State.Open():
			return got, Reply[[]byte]{ID: got.ID, Replayed: true}, failure(got.Execution)
		default:
			err = c.wait(ctx, got, n)
		}
		if err == nil {
			got, err = c.look(ctx)
		}
	}
}

// wait is nil when it is time to look again.
func (c *call) wait(ctx context.Context, got found, n int) error {
	e := &InProgressError{Key: c.key, ID: got.ID, Attempt: got.Attempt, RetryAfter: got.LeaseUntil.Sub(got.now)}
	if got.State == store.StatePending {
		e.Pending, e.RetryAfter = true, got.RunAt.Sub(got.now)
		if c.runNow {
			return c.pause(ctx, n)
		}
	}
	if e.RetryAfter < 0 || e.Pending && e.RetryAfter == 0 {
		return c.pause(ctx, n) // free, and another call may be taking it at the moment
	}
	e.RetryAfter = max(e.RetryAfter, time.Millisecond)
	if c.reject {
		return e
	}
	if err := backoff.Wait(ctx, min(lookAgain.Delay(n), e.RetryAfter+time.Millisecond)); err != nil {
		return fmt.Errorf("%w: %w", e, ended(ctx))
	}
	return nil
}

var lookAgain = backoff.Policy{Base: 20 * time.Millisecond, Max: time.Second}

func (c *call) pause(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	if backoff.Wait(ctx, lookAgain.Delay(n)) != nil {
		return fmt.Errorf("idempotent: %s: %w", c.key, ended(ctx))
	}
	return nil
}

// replay is the answer of a run that succeeded.
func (c *call) replay(e store.Execution) (Reply[[]byte], error) {
	r := Reply[[]byte]{Replayed: true, ID: e.ID, Attempt: e.Attempt}
	var err error
	r.Value, err = unseal(c.codec, e.Result)
	return r, err
}

// failure is the stored end of a run that did not succeed.
func failure(e store.Execution) *Failure {
	f := &Failure{Code: e.ErrorCode, Text: e.ErrorText, Replayed: true}
	switch {
	case e.Reason != store.ReasonNone && e.State != store.StateCanceled:
		f.Code = string(e.Reason)
	case f.Code == "":
		f.Code = e.State.String()
	}
	return f
}

// insert claims a key that nobody has used. A repeat after an answer that did not
// come is answered alike, because the row has its id from here.
func (c *call) insert(ctx context.Context) (found, error) {
	row := store.NewExecution{
		ID: store.NewID(store.MillisOf(time.Now())), Key: c.key.run(), CreatedBy: label(),
		Args: c.fingerprint.args(), MaxAttempts: c.maxAttempts, OnCrash: c.onCrash,
	}
	r := store.ClaimRequest{Namespace: c.key.Namespace, Owner: c.owner, OwnerLabel: label(), Lease: c.lease, Runs: []store.ClaimRun{{NewExecution: row}}}
	var got found
	err := c.again(ctx, func(ctx context.Context) error {
		if err := c.register(ctx); err != nil {
			return err
		}
		got.sent = leaseclock.Now()
		claimed, err := c.guard.store.Claim(ctx, r)
		if errors.Is(err, store.ErrNotFound) { // the job's row was deleted
			c.guard.known.Delete(c.jobName())
		}
		if err != nil {
			return err
		}
		one := claimed.Runs[0]
		got.Execution, got.now, got.mine = one.Execution, claimed.Now, one.Outcome == store.OutcomeStarted
		return nil
	})
	return got, err
}

// look takes the run if nobody holds it, and reads it otherwise.
func (c *call) look(ctx context.Context) (found, error) {
	r := gormstore.ResumeRequest{
		Namespace: c.key.Namespace, Key: c.key.run(), Owner: c.owner, OwnerLabel: label(), Lease: c.lease, Early: c.runNow,
		ArgsHash: c.fingerprint.hash(),
	}
	var got found
	err := c.again(ctx, func(ctx context.Context) error {
		got.sent = leaseclock.Now()
		res, err := c.guard.store.Resume(ctx, r)
		got.Execution, got.now, got.mine = res.Execution, res.Now, res.Taken
		return err
	})
	if errors.Is(err, store.ErrNotFound) { // the call that had it was refused
		return c.insert(ctx)
	}
	return got, err
}

// again asks the store again, a few times, while it does not answer.
func (c *call) again(ctx context.Context, ask func(ctx context.Context) error) error {
	for n := 0; ; n++ {
		err := c.bounded(ctx, ask)
		if !errors.Is(err, store.ErrUnavailable) || n == 3 || ctx.Err() != nil {
			return err
		}
		if backoff.Wait(ctx, backoff.Policy{}.Delay(n)) != nil {
			return err
		}
	}
}

type jobName struct{ namespace, job string }

func (c *call) jobName() jobName { return jobName{c.key.Namespace, c.key.Job} }

// register makes the job known, once per process. One that has a schedule belongs
// to a scheduler, which would run what Once left.
func (c *call) register(ctx context.Context) error {
	name := c.jobName()
	if _, ok := c.guard.known.Load(name); ok {
		return nil
	}
	st := c.guard.store
	known, err := st.Survey(ctx, name.namespace, []string{name.job})
	if err != nil {
		return err
	}
	there := false
	for i := range known.Jobs {
		if j := &known.Jobs[i]; j.Job == name.job {
			there = true
			if j.Current().Spec != "" {
				return fmt.Errorf("idempotent: Key.Job %q has a schedule in this store: choose another name", name.job)
			}
		}
	}
	if !there {
		if _, err := st.Register(ctx, name.namespace, []store.JobSpec{{Job: name.job}}); err != nil {
			return err
		}
	}
	c.guard.known.Store(name, nil)
	return nil
}

// reopen lets a run that has ended begin anew. That another call did so first is no
// error: the record is looked at again.
func (c *call) reopen(ctx context.Context, e store.Execution, why string) error {
	return c.again(ctx, func(ctx context.Context) error {
		_, err := c.guard.store.Reopen(ctx, e.Namespace, e.ID, e.Version, why)
		return err
	})
}

// confirm makes a run whose effect was found a success, as reopen does.
func (c *call) confirm(ctx context.Context, e store.Execution, result []byte) error {
	return c.again(ctx, func(ctx context.Context) error {
		_, err := c.guard.store.Confirm(ctx, e.Namespace, e.ID, e.Version, result)
		return err
	})
}
