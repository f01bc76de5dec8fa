package idempotent

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// unit is a transaction whose commit happens once, and what is known to say so.
type unit struct {
	db       *gorm.DB
	patience time.Duration

	before func(ctx context.Context, tx *gorm.DB) error // fails fast
	fn     func(tx *gorm.DB) error                      // the user's
	after  func(ctx context.Context, tx *gorm.DB) error // the guard: the last statements
	// fate reads back what became of a COMMIT whose answer was lost. It is asked
	// again while it fails.
	fate func(ctx context.Context) (fate, error)
}

// fate of a COMMIT.
type fate int

const (
	gone    fate = iota // not applied, and the attempt no longer holds its run
	open                // not applied, so far
	applied             // it is there, by this attempt
)

// readTimeout bounds one look at the record.
const readTimeout = 3 * time.Second

var retryDelay = backoff.Policy{Base: 5 * time.Millisecond, Max: 250 * time.Millisecond}

// commit is nil once the unit is committed. Its fn is called again after refusals
// that pass, and never while it may have been committed.
func (u *unit) commit(ctx context.Context) error {
	pool, err := sqldialect.Pool(u.db)
	if err != nil {
		return fmt.Errorf("idempotent: %w", err)
	}
	d := pool.Dialect
	give := time.Now().Add(u.patience)
	doubt := false // a COMMIT was sent whose fate was not known at once
	for n := 0; ; n++ {
		sent, err := u.try(ctx, pool)
		switch {
		case err == nil:
			return nil
		case sent && !d.NotApplied(err), doubt && errors.Is(err, ErrFenced):
			// The second case: a COMMIT in doubt was applied after all, later than it
			// was read back.
			doubt = true
			if done, err := u.readBack(ctx, err); done || err != nil {
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
func (u *unit) try(ctx context.Context, pool sqldialect.Conn) (sent bool, err error) {
	d := pool.Dialect
	if limit := u.db.DefaultTransactionTimeout; limit > 0 {
		if _, bounded := ctx.Deadline(); !bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
	}
	end, err := pool.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("idempotent: begin: %w", unavailable(d, err))
	}
	defer func() {
		// Also when fn panics: an open transaction would block other writers. An
		// error of it changes nothing: what is not committed is not there.
		if !sent {
			_ = end.Rollback()
		}
	}()
	tx := u.db.Session(&gorm.Session{NewDB: true, Context: ctx})
	tx.Statement.ConnPool = held(end)
	if err := u.before(ctx, tx); err != nil {
		return false, err
	}
	if err := u.fn(tx); err != nil {
		return false, refused(d, err)
	}
	if err := ended(ctx); err != nil {
		return false, fmt.Errorf("idempotent: not committed: %w", err)
	}
	if err := u.after(ctx, tx); err != nil {
		return false, err
	}
	// The context is looked at again by Commit itself.
	if err := end.Commit(); err != nil {
		return true, fmt.Errorf("idempotent: commit: %w", unavailable(d, err))
	}
	return true, nil
}

// readBack settles a COMMIT whose answer was lost. Neither done nor an error means
// that it was not applied and that it may be tried again.
func (u *unit) readBack(ctx context.Context, lost error) (done bool, err error) {
	if mutation.On("commit-readback") {
		return false, nil
	}
	over := ended(ctx)
	// The caller's context may be what cut the answer off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.patience)
	defer cancel()
	for n := 0; ; n++ {
		became, err := u.look(ctx)
		switch {
		case err != nil:
		case became == applied:
			return true, nil
		case became == gone:
			return false, fmt.Errorf("%w (%w)", ErrFenced, lost)
		case over != nil:
			return false, fmt.Errorf("idempotent: not committed: %w: %w", over, lost)
		default:
			return false, nil
		}
		if backoff.Wait(ctx, retryDelay.Delay(n)) != nil {
			return false, fmt.Errorf("idempotent: commit: outcome unknown, and the record could not be read: %w: %w: %w", store.ErrUnavailable, lost, err)
		}
	}
}

func (u *unit) look(ctx context.Context) (fate, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return u.fate(ctx)
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
