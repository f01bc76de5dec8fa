package idempotent

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

var (
	// ErrFenced says that the attempt no longer holds its run, and that nothing of
	// it was committed. It is store.ErrFenced.
	ErrFenced = store.ErrFenced
	// ErrSettled refuses a second Do for a run: its effect and its success are
	// committed already, or another Do for it is in progress. Nothing was called.
	ErrSettled = errors.New("idempotent: the run's effect is settled: call Do once per run, with all of its writes in one function")
)

// Run is what Do must know about a run. *scheduler.Run is one.
type Run interface {
	// Ref proves the right to finish the attempt.
	Ref() store.Ref
	// MarkSettled is called once the effect and the success are committed.
	MarkSettled()
	// Settled reports whether MarkSettled was called.
	Settled() bool
	// Result is kept with the record; nil for none. It is asked after fn.
	Result() []byte
	// Mode is the degradation mode the run is made under. It is asked after fn.
	Mode() store.Mode
}

// Guard runs effects in the transaction that finishes their run. Make one with
// New for each store. It is safe for concurrent use and needs no Close.
type Guard struct {
	store    *gormstore.Store
	patience time.Duration // with a busy database, and with one that cannot be read
	busy     sync.Map      // store.ID of the runs in Do
}

// New makes a guard on the store's database. The runs must be the store's.
func New(s *gormstore.Store) *Guard { return &Guard{store: s, patience: 10 * time.Second} }

// readTimeout bounds one look at the record.
const readTimeout = 3 * time.Second

var retryDelay = backoff.Policy{Base: 5 * time.Millisecond, Max: 250 * time.Millisecond}

// Do calls fn in a transaction, records the run as succeeded by its last
// statement, and commits. A nil error means that both are committed; the handler
// then has nothing left to do but to return nil.
//
// fn's own error is returned as it is, after a rollback (one that says that the
// database takes no writes, such as a full disk, matches store.ErrUnavailable as
// well), and a panic of fn is passed on after one. Otherwise the error matches ErrFenced (the attempt no
// longer holds the run), ErrSettled, ctx's error and its cause (it ended before
// the commit), or store.ErrUnavailable. After ErrUnavailable whether the commit
// was applied can be unknown, and the error says so; the record knows, and the
// run is retried if it does not say succeeded.
//
// fn must write through tx, which is bound to ctx, and do nothing else that counts:
// when the database refuses the transaction as busy or deadlocked, the whole of it
// is tried again, for at most 10 s. On servers it is a transaction of READ COMMITTED,
// whatever the default: heartbeats change the run's row meanwhile, and a snapshot
// would not let it be finished. On SQLite the transaction holds the only
// writer, so everything slow belongs before Do.
func (g *Guard) Do(ctx context.Context, run Run, fn func(tx *gorm.DB) error) error {
	ref := run.Ref()
	if _, twice := g.busy.LoadOrStore(ref.ID, nil); twice {
		return ErrSettled
	}
	defer g.busy.Delete(ref.ID)
	if run.Settled() {
		return ErrSettled
	}
	err := g.retry(ctx, run, ref, fn)
	if err == nil {
		run.MarkSettled()
	}
	return err
}

func (g *Guard) retry(ctx context.Context, run Run, ref store.Ref, fn func(tx *gorm.DB) error) error {
	d, err := sqldialect.For(g.store.DB())
	if err != nil {
		return fmt.Errorf("idempotent: %w", err)
	}
	give := time.Now().Add(g.patience)
	doubt := false // a COMMIT was sent whose fate was not known at once
	for n := 0; ; n++ {
		sent, err := g.try(ctx, d, run, ref, fn)
		switch {
		case err == nil:
			return nil
		case sent && !d.NotApplied(err), doubt && errors.Is(err, ErrFenced):
			// The second case: a COMMIT in doubt was applied after all, later than it
			// was read back.
			doubt = true
			if done, err := g.readBack(ctx, ref, err); done || err != nil {
				return err
			}
		case !retryable(d, err):
			return err
		}
		delay := retryDelay.Delay(n)
		switch {
		case time.Now().Add(delay).After(give):
			return unavailable(d, err)
		case backoff.Wait(ctx, delay) != nil:
			return fmt.Errorf("idempotent: not committed: %w: %w", ended(ctx), err)
		}
	}
}

// try is one transaction. Sent tells that its COMMIT was sent, and that err is the
// answer.
func (g *Guard) try(ctx context.Context, d *sqldialect.Dialect, run Run, ref store.Ref, fn func(tx *gorm.DB) error) (sent bool, err error) {
	tx := g.store.DB().Session(&gorm.Session{NewDB: true, Context: ctx}).Begin(d.TxOptions())
	if tx.Error != nil {
		return false, fmt.Errorf("idempotent: begin: %w", unavailable(d, tx.Error))
	}
	end, ok := tx.Statement.ConnPool.(gorm.TxCommitter)
	if !ok {
		return false, fmt.Errorf("idempotent: begin: a transaction of %T has no commit", tx.Statement.ConnPool)
	}
	defer func() {
		// Also when fn panics: an open transaction would block other writers. An
		// error of it changes nothing: what is not committed is not there.
		if !sent {
			_ = end.Rollback()
		}
	}()
	if err := g.store.CheckTx(ctx, tx, ref); err != nil {
		return false, err
	}
	inner := tx.Session(&gorm.Session{NewDB: true, Context: ctx})
	inner.Statement.ConnPool = held(tx.Statement.ConnPool)
	if err := fn(inner); err != nil {
		return false, refused(d, err)
	}
	if err := ended(ctx); err != nil {
		return false, fmt.Errorf("idempotent: not committed: %w", err)
	}
	done := store.Finish{Ref: ref, State: store.StateSucceeded, Mode: run.Mode(), Result: run.Result()}
	if err := g.store.FinishTx(ctx, tx, done); err != nil {
		return false, err
	}
	// The context is looked at again by Commit itself.
	if err := end.Commit(); err != nil {
		return true, fmt.Errorf("idempotent: commit: %w", unavailable(d, err))
	}
	return true, nil
}

// readBack settles a COMMIT whose answer was lost. Done means that this attempt's
// success is on record, and so is its effect. Neither done nor an error means that
// it was not applied and the run is still this attempt's.
func (g *Guard) readBack(ctx context.Context, ref store.Ref, lost error) (done bool, err error) {
	if mutation.On("commit-readback") {
		return false, nil
	}
	over := ended(ctx)
	// The caller's context may be what cut the answer off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.patience)
	defer cancel()
	for n := 0; ; n++ {
		e, err := g.get(ctx, ref)
		switch {
		case err == nil && e.State == store.StateSucceeded && e.Attempt == ref.Attempt && e.Owner == ref.Owner:
			return true, nil
		case err == nil && e.State == store.StateRunning && e.Attempt == ref.Attempt && e.Owner == ref.Owner:
			if over != nil {
				return false, fmt.Errorf("idempotent: not committed: %w: %w", over, lost)
			}
			return false, nil
		case err == nil, errors.Is(err, store.ErrNotFound):
			return false, fmt.Errorf("%w (%w)", ErrFenced, lost)
		}
		if backoff.Wait(ctx, retryDelay.Delay(n)) != nil {
			return false, fmt.Errorf("idempotent: commit: outcome unknown, and the record could not be read: %w: %w: %w", store.ErrUnavailable, lost, err)
		}
	}
}

func (g *Guard) get(ctx context.Context, ref store.Ref) (store.Execution, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return g.store.Get(ctx, ref.Namespace, ref.ID)
}

// retryable reports whether the database rolled the transaction back for a reason
// that passes.
func retryable(d *sqldialect.Dialect, err error) bool {
	return d.Classify(err) == sqldialect.Busy || errors.Is(err, driver.ErrBadConn)
}

// unavailable makes an error that says "the database cannot answer" match
// store.ErrUnavailable.
func unavailable(d *sqldialect.Dialect, err error) error {
	switch d.Classify(err) {
	case sqldialect.Busy, sqldialect.Full, sqldialect.ReadOnly, sqldialect.Corrupt, sqldialect.Unavailable:
		if !errors.Is(err, store.ErrUnavailable) {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, d.Explain(err))
		}
	case sqldialect.Other, sqldialect.Unique, sqldialect.Schema:
	}
	return err
}

// refused is fn's error as it is, but that one of a database which takes no
// writes matches store.ErrUnavailable too: it is no failure of the job.
func refused(d *sqldialect.Dialect, err error) error {
	switch d.Classify(err) {
	case sqldialect.Full, sqldialect.ReadOnly, sqldialect.Corrupt:
		return unavailable(d, err)
	case sqldialect.Other, sqldialect.Busy, sqldialect.Unique, sqldialect.Unavailable, sqldialect.Schema:
	}
	return err
}

// ended is a context's error together with its cause; nil while it lasts.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
