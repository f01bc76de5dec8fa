package idempotent

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

// scopeResource tells the resources of users from the store's own counters.
const scopeResource = "resource"

// Fence lets a transaction go on if no higher number was seen for the resource
// before, and remembers n: its high-water mark is n afterwards. A lower n is
// ErrFenced, and the transaction must be rolled back. So of two runs of one job (or
// one lock key), n being their [scheduler.Run.Fence], the older one can write
// nothing more to the resource once the newer one has begun to. The same n again
// passes.
//
// The mark is a row of the store's table of fences, locked until the transaction
// ends, so that transactions of one resource follow each other. It is for stores
// with the default prefix in the database of tx; [Guard.Fence] knows its store's, and
// [Effects.Fence] is for a database of your own. Two statements at most. Numbers of
// different jobs do not compare.
//
// [scheduler.Run.Fence]: https://pkg.go.dev/github.com/solotick/solotick/scheduler#Run.Fence
func Fence(tx *gorm.DB, resource string, n int64) error {
	return fenceIn(tx, gormstore.DefaultPrefix+"fences", resource, n)
}

// Fence is the function [Fence] for this guard's store.
func (g *Guard) Fence(tx *gorm.DB, resource string, n int64) error {
	return fenceIn(tx, g.store.Prefix()+"fences", resource, n)
}

func fenceIn(tx *gorm.DB, table, resource string, n int64) error {
	c, err := sqldialect.Within(tx)
	switch {
	case err != nil:
		return fmt.Errorf("idempotent: fence: %w", err)
	case !c.InTx():
		return errors.New("idempotent: fence: this *gorm.DB is not in a transaction: pass the one your function was given")
	case resource == "":
		return errors.New("idempotent: fence: the resource is empty: name it")
	case n <= 0:
		return fmt.Errorf("idempotent: fence: %d is no fence: pass run.Fence()", n)
	}
	ctx := tx.Statement.Context
	if ctx == nil {
		ctx = context.Background() //nolint:forbidigo // a *gorm.DB without a context
	}
	name := store.HashOf("resource", resource)
	seen, err := raiseFence(ctx, c, table, name[:], n)
	switch {
	case err != nil:
		return fmt.Errorf("idempotent: fence %q: %w", resource, unavailable(c.Dialect, err))
	case seen > n && !mutation.On("fence-max"):
		return fmt.Errorf("%w (%q has seen fence %d, this is %d)", ErrFenced, resource, seen, n)
	}
	return nil
}

// raiseFence answers the highest number seen, n among them.
func raiseFence(ctx context.Context, c sqldialect.Conn, table string, name []byte, n int64) (int64, error) {
	raise := "INSERT INTO " + table + " (ns, scope, name, fence) VALUES ('', ?, ?, ?)" +
		c.OnConflict("ns, scope, name") + "fence = " + c.Greatest + "(" + table + ".fence, " + c.Proposed("fence") + ")"
	var seen int64
	if c.Returning {
		err := c.QueryRow(ctx, raise+" RETURNING fence", []any{scopeResource, name, n}, &seen)
		return seen, err
	}
	if _, err := c.Exec(ctx, raise, scopeResource, name, n); err != nil {
		return 0, err
	}
	err := c.QueryRow(ctx, "SELECT fence FROM "+table+" WHERE ns = '' AND scope = ? AND name = ?"+c.LockRows, []any{scopeResource, name}, &seen)
	return seen, err
}
