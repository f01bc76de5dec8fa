package sqldialect

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// Session is one connection, taken out of the pool for what belongs to a
// connection: named locks. It is exempt from the pool's lifetime. The caller ends
// it by Return or Kill.
type Session struct {
	Conn
	conn *sql.Conn
}

// Pin takes a connection out of the pool, or waits for one until ctx ends.
func (c Conn) Pin(ctx context.Context) (*Session, error) {
	var db *sql.DB
	var err error
	switch p := c.pool.(type) {
	case *sql.DB:
		db = p
	case gorm.GetDBConnector:
		db, err = p.GetDBConn()
	default:
		err = fmt.Errorf("sqldialect: connection pool %T has no connection to give", c.pool)
	}
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &Session{Conn: Conn{Dialect: c.Dialect, pool: conn}, conn: conn}, nil
}

// Return gives the connection back to the pool. Nothing may be left on it.
func (s *Session) Return() { _ = s.conn.Close() } // fails only where it is closed already

// Kill closes the connection to the server, which then frees what it held. It
// waits for a statement under way, whose context the caller must have ended.
func (s *Session) Kill() {
	_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // that is its answer
	_ = s.conn.Close()
}

// LockNumber makes of a name what pg_advisory_lock takes.
func LockNumber(name string) int64 {
	sum := sha256.Sum256([]byte(name))
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // any 64 bits will do
}

// NamedLock is, for MySQL, the expression that makes of a name in the next place
// what GET_LOCK takes: of this database, lower-case hex, 64 characters.
const NamedLock = "SHA2(CONCAT(COALESCE(DATABASE(), ''), '/', ?), 256)"

// lockPatience is how long GET_LOCK waits at a time; a context ends it earlier.
const lockPatience = 10

// exclusively runs fn in a transaction, while no other process runs one under the
// same name. On MySQL it is no transaction, since its CREATE and ALTER TABLE end one.
func (c Conn) exclusively(ctx context.Context, name string, fn func(Conn) error) error {
	switch c.Dialect {
	case postgres:
		return c.Tx(ctx, func(tx Conn) error {
			err := tx.Query(ctx, "SELECT pg_advisory_xact_lock(?)", []any{LockNumber(name)}, func(Rows) error { return nil })
			if err != nil {
				return err
			}
			return fn(tx)
		})
	case mysql:
		return c.underNamedLock(ctx, name, fn)
	default:
		return c.Tx(ctx, fn)
	}
}

func (c Conn) underNamedLock(ctx context.Context, name string, fn func(Conn) error) error {
	s, err := c.Pin(ctx)
	if err != nil {
		return err
	}
	for {
		var got sql.NullInt64
		if err := s.QueryRow(ctx, "SELECT GET_LOCK("+NamedLock+", ?)", []any{name, lockPatience}, &got); err != nil {
			s.Kill()
			return err
		}
		if !got.Valid {
			s.Kill()
			return errors.New("sqldialect: the server has no memory for a named lock, or was told to end the wait")
		}
		if got.Int64 == 1 {
			break
		}
	}
	err = fn(s.Conn)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var freed sql.NullInt64
	if s.QueryRow(end, "SELECT RELEASE_LOCK("+NamedLock+")", []any{name}, &freed) != nil || freed.Int64 != 1 {
		s.Kill()
	} else {
		s.Return()
	}
	return err
}
