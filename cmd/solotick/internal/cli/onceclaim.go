package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/store"
)

// claim makes the run ours, or finds why not. The execution is zero unless it is
// ours; sent is the moment before its lease was asked for; decided is how a call
// ends that does not run the command (nil and a zero execution: replayed, code 0).
func (o *onceRun) claim(ctx context.Context) (exec store.Execution, sent leaseclock.Instant, decided, err error) {
	if err := o.register(ctx); err != nil {
		return exec, sent, nil, err
	}
	key := store.Key{Class: store.ClassKey, Job: o.job, Name: o.key}
	row := store.NewExecution{Key: key, CreatedBy: o.label}
	// A dead owner's run and one that was handed back can go to a rival before us,
	// so look again, a bounded number of times.
	for n := range 10 {
		row.ID = store.NewID(store.MillisOf(time.Now()))
		sent = leaseclock.Now()
		now, found, err := o.ask(ctx, row)
		switch {
		case err != nil:
			return exec, sent, nil, err
		case found.State == store.StateRunning && found.Owner == o.owner:
			return found, sent, nil, nil
		case found.ID == (store.ID{}):
			return exec, sent, nil, fmt.Errorf("%s has run before, but its outcome is no longer kept", key)
		case found.State == store.StateRunning && found.LeaseUntil > now:
			return exec, sent, inProgress(found, now), nil
		case !found.State.Open():
			return exec, sent, o.replay(found), nil
		}
		sent = leaseclock.Now()
		if exec, err = o.pick(ctx, found.State); err != nil || exec.ID != (store.ID{}) {
			return exec, sent, nil, err
		}
		if err := backoff.Wait(ctx, backoff.Policy{}.Delay(n)); err != nil {
			return exec, sent, nil, err
		}
	}
	return exec, sent, nil, fmt.Errorf("%s is waiting to be run again, but could not be had: try again", key)
}

// register makes the job known. One that has a schedule belongs to a worker.
func (o *onceRun) register(ctx context.Context) error {
	ctx, cancel := o.timeout(ctx)
	defer cancel()
	known, err := o.store.Survey(ctx, o.namespace, []string{o.job})
	if err != nil {
		return err
	}
	for _, j := range known.Jobs {
		if j.Job != o.job {
			continue
		}
		if j.Current().Spec != "" {
			return usagef("--job %q has a schedule in this store: choose another name", o.job)
		}
		return nil
	}
	_, err = o.store.Register(ctx, o.namespace, []store.JobSpec{{Job: o.job}})
	return err
}

// ask claims the key. A repeat after an answer that did not come is answered alike,
// because the row has its id from here.
func (o *onceRun) ask(ctx context.Context, row store.NewExecution) (store.Millis, store.Execution, error) {
	for n := 0; ; n++ {
		now, exec, err := o.askOnce(ctx, row)
		if !errors.Is(err, store.ErrUnavailable) || n == 3 {
			return now, exec, err
		}
		if err := backoff.Wait(ctx, backoff.Policy{}.Delay(n)); err != nil {
			return 0, exec, err
		}
	}
}

func (o *onceRun) askOnce(ctx context.Context, row store.NewExecution) (store.Millis, store.Execution, error) {
	ctx, cancel := o.timeout(ctx)
	defer cancel()
	c, err := o.store.Claim(ctx, store.ClaimRequest{
		Namespace: o.namespace, Owner: o.owner, OwnerLabel: o.label, Lease: o.lease,
		Runs: []store.ClaimRun{{NewExecution: row}},
	})
	if err != nil {
		return 0, store.Execution{}, err
	}
	return c.Now, c.Runs[0].Execution, nil
}

// pick gets an open run that nobody holds: a dead owner's, or one handed back.
// The store hands out whatever the job has of these, so the runs of other keys are
// given back untouched.
func (o *onceRun) pick(ctx context.Context, state store.State) (store.Execution, error) {
	r := store.FetchRequest{
		Namespace: o.namespace, Owner: o.owner, OwnerLabel: o.label, Lease: o.lease, Jobs: []string{o.job}, Limit: 32,
	}
	ctx, cancel := o.timeout(ctx)
	defer cancel()
	var runs []store.Execution
	if state == store.StatePending {
		fetched, err := o.store.Fetch(ctx, r)
		if err != nil {
			return store.Execution{}, err
		}
		runs = fetched.Runs
	} else {
		taken, err := o.store.TakeOver(ctx, r)
		if err != nil {
			return store.Execution{}, err
		}
		runs = taken.Runs
	}
	var (
		mine   store.Execution
		others []store.Finish
	)
	for _, e := range runs {
		if e.Key.Name == o.key && e.Key.Class == store.ClassKey {
			mine = e
			continue
		}
		others = append(others, store.Finish{Ref: e.Ref(), State: store.StatePending, Unstarted: true})
	}
	if len(others) == 0 {
		return mine, nil
	}
	// If this fails, their leases end by themselves.
	if _, err := o.store.Finish(ctx, others); err != nil && mine.ID == (store.ID{}) {
		return mine, err
	}
	return mine, nil
}
