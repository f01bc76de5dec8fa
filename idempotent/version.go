package idempotent

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// ErrConflict says that a row was changed since it was read.
var ErrConflict = errors.New("idempotent: the row was changed since it was read")

// Swap changes a row of yours if it still has the version that it was read with,
// and raises the version by 1; otherwise it is ErrConflict, and nothing changed. The
// model is a pointer to the row with its primary key; its table has an integer
// column "version". The model is not changed: read it again.
func Swap(tx *gorm.DB, model any, version int64, changes map[string]any) error {
	set := maps.Clone(changes)
	if set == nil {
		set = map[string]any{}
	}
	set["version"] = version + 1
	res := tx.Session(&gorm.Session{}).Model(model).Where("version = ?", version).Updates(set)
	switch {
	case res.Error != nil:
		return res.Error
	case res.RowsAffected == 0:
		return ErrConflict
	}
	return nil
}

// Optimistic calls fn in a transaction, and again while it ends in ErrConflict or
// the database refuses it as busy: at most tries times in all, with full jitter in
// between, or until ctx ends. In fn read the row, decide, and [Swap] it. It locks
// nothing while fn decides, which is best where conflicts are rare. The last error is
// returned.
//
// On its own it does not make an effect happen once: a COMMIT whose answer is lost
// is an error here. Within [Guard.Do] use Swap alone, and return its error.
func Optimistic(ctx context.Context, db *gorm.DB, tries int, fn func(tx *gorm.DB) error) error {
	d, err := sqldialect.For(db)
	if err != nil {
		return fmt.Errorf("idempotent: %w", err)
	}
	for n := 1; ; n++ {
		err := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Transaction(fn, d.TxOptions())
		again := errors.Is(err, ErrConflict) || d.Classify(err) == sqldialect.Busy
		switch {
		case !again:
			return err
		case n >= tries:
			if !errors.Is(err, ErrConflict) {
				err = fmt.Errorf("%w: %w", store.ErrUnavailable, d.Explain(err))
			}
			return fmt.Errorf("idempotent: given up after %d tries: %w", n, err)
		}
		if backoff.Wait(ctx, retryDelay.Delay(n)) != nil {
			return fmt.Errorf("idempotent: %w: %w", ended(ctx), err)
		}
	}
}
