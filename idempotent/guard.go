package idempotent

import (
	"context"
	"errors"
	"sync"
	"time"

	"gorm.io/gorm"

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
	known    sync.Map      // jobName of those that Once has registered
}

// New makes a guard on the store's database. The runs must be the store's.
func New(s *gormstore.Store) *Guard { return &Guard{store: s, patience: 10 * time.Second} }

// Do calls fn in a transaction, records the run as succeeded by its last
// statement, and commits. A nil error means that both are committed; the handler
// then has nothing left to do but to return nil.
//
// fn's own error is returned as it is, after a rollback (one that says that the
// database takes no writes, such as a full disk, matches store.ErrUnavailable as
// well), and a panic of fn is passed on after one. Otherwise the error matches ErrFenced (the attempt no
// longer holds the run), ErrSettled, ErrTooLarge (the run's result cannot be kept),
// ctx's error and its cause (it ended before the commit), or store.ErrUnavailable. After ErrUnavailable whether the commit
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
	return g.do(ctx, run, func(tx *gorm.DB) error {
		if err := fn(tx); err != nil {
			return err
		}
		return checkResult(run.Result())
	})
}

// do is Do with a result whose size is the caller's care.
func (g *Guard) do(ctx context.Context, run Run, fn func(tx *gorm.DB) error) error {
	ref := run.Ref()
	if _, twice := g.busy.LoadOrStore(ref.ID, nil); twice {
		return ErrSettled
	}
	defer g.busy.Delete(ref.ID)
	if run.Settled() {
		return ErrSettled
	}
	u := unit{
		db: g.store.DB(), patience: g.patience, fn: fn,
		before: func(ctx context.Context, tx *gorm.DB) error { return g.store.CheckTx(ctx, tx, ref) },
		after: func(ctx context.Context, tx *gorm.DB) error {
			return g.store.FinishTx(ctx, tx, store.Finish{Ref: ref, State: store.StateSucceeded, Mode: run.Mode(), Result: run.Result()})
		},
		fate: func(ctx context.Context) (fate, error) { return g.fateOf(ctx, ref) },
	}
	err := u.commit(ctx)
	if err == nil {
		run.MarkSettled()
	}
	return err
}

// fateOf tells by the record what became of a COMMIT that finishes the run.
func (g *Guard) fateOf(ctx context.Context, ref store.Ref) (fate, error) {
	e, err := g.store.Get(ctx, ref.Namespace, ref.ID)
	mine := e.Attempt == ref.Attempt && e.Owner == ref.Owner
	switch {
	case errors.Is(err, store.ErrNotFound):
		return gone, nil
	case err != nil:
		return gone, err
	case mine && e.State == store.StateSucceeded:
		return applied, nil
	case mine && e.State == store.StateRunning:
		return open, nil
	}
	return gone, nil
}
