package idempotent

import (
	"errors"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/sqldialect"
)

var errNotYours = errors.New("idempotent: the guard ends the transaction: return nil to commit, an error to roll back")

// heldTx is a transaction that can be written through and not be ended, so that
// no effect is committed without its run's completion.
type heldTx struct{ gorm.Tx }

func (*heldTx) Commit() error   { return errNotYours }
func (*heldTx) Rollback() error { return errNotYours }

// heldPlain is one of a pool of the user's, in which nothing can be prepared.
type heldPlain struct{ gorm.ConnPool }

func (*heldPlain) Commit() error   { return errNotYours }
func (*heldPlain) Rollback() error { return errNotYours }

// held keeps the type of a prepared transaction, which GORM looks for when it makes
// savepoints.
func held(tx sqldialect.Tx) gorm.ConnPool {
	switch p := tx.(type) {
	case *gorm.PreparedStmtTX:
		return &gorm.PreparedStmtTX{PreparedStmtDB: p.PreparedStmtDB, Tx: &heldTx{p.Tx}}
	case gorm.Tx:
		return &heldTx{p}
	}
	return &heldPlain{tx}
}
