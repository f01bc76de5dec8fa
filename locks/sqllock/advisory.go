package sqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// Advisory is the lock backend with a session lock (pg_advisory_lock, GET_LOCK)
// beside the lease row: a key is granted only where both are free. So a holder
// that stands still past its TTL keeps the key for as long as its connection
// lives, and one whose connection broke keeps it until its lease ends. It takes a
// connection for every key held. It is safe for concurrent use.
type Advisory struct {
	rows
	lock, unlock, check, kick string

	mu     sync.Mutex
	holds  map[grant]*session
	closed bool
}

var (
	_ driver.Driver    = (*Advisory)(nil)
	_ driver.Inspector = (*Advisory)(nil)
	_ driver.Limiter   = (*Advisory)(nil)
)

// session is the connection that holds the session lock of one grant.
type session struct {
	use   chan struct{} // capacity 1: filled while a statement runs
	conn  *sqldialect.Session
	fence int64
	end   *time.Timer // closes the connection where nobody renews
	until time.Time   // when it may
	dead  bool        // closed; guarded by use
}

// NewAdvisory returns a driver with session locks on an open database of
// PostgreSQL, MariaDB or MySQL, without a pooler that shares connections between
// clients (PgBouncer's transaction mode) in between. The caller closes it before
// the database. The pool must allow a connection for every key held at a time and
// one more.
func NewAdvisory(db *gorm.DB, opts ...Option) (*Advisory, error) {
	a := &Advisory{holds: map[grant]*session{}}
	if err := a.open(db, opts); err != nil {
		return nil, err
	}
	switch a.conn.Dialect {
	case sqldialect.Postgres():
		a.lock = "SELECT CASE WHEN pg_try_advisory_lock(?) THEN 1 ELSE 0 END"
		a.unlock = "SELECT CASE WHEN pg_advisory_unlock(?) THEN 1 ELSE 0 END"
		mine := " FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())" +
			" AND (CAST(classid AS BIGINT) << 32) | CAST(objid AS BIGINT) = CAST(? AS BIGINT)"
		a.check = "SELECT count(*)" + mine + " AND pid = pg_backend_pid()"
		a.kick = "SELECT pg_terminate_backend(pid)" + mine
	case sqldialect.MySQL():
		a.lock = "SELECT GET_LOCK(" + sqldialect.NamedLock + ", 0)"
		a.unlock = "SELECT RELEASE_LOCK(" + sqldialect.NamedLock + ")"
		a.check = "SELECT IS_USED_LOCK(" + sqldialect.NamedLock + ") = CONNECTION_ID()"
		a.kick = "SELECT IS_USED_LOCK(" + sqldialect.NamedLock + ")"
	default:
		return nil, fmt.Errorf("sqllock: mode advisory: %s has no session locks: use mode lease", a.conn.Name)
	}
	return a, nil
}

// name is what stands for the key: a hash, since names are short, folded or
// padded by some servers.
func (a *Advisory) name(key string) any {
	if a.conn.Dialect == sqldialect.Postgres() {
		return sqldialect.LockNumber(a.table + "/" + key)
	}
	sum := sha256.Sum256([]byte(a.table + "/" + key))
	return hex.EncodeToString(sum[:])
}

// ask runs a query that answers 1 for yes. NULL, which GET_LOCK answers for an
// error, is one.
func (a *Advisory) ask(ctx context.Context, c sqldialect.Conn, query, key string) (bool, error) {
	var n sql.NullInt64
	if err := c.QueryRow(ctx, query, []any{a.name(key)}, &n); err != nil {
		return false, err
	}
	if !n.Valid && query == a.lock {
		return false, errors.New("the server answered NULL: no memory, or killed")
	}
	return n.Int64 == 1, nil
}

// Acquire implements [driver.Driver]: the session lock, then the row.
func (a *Advisory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("sqllock: acquire: %w", context.Cause(ctx)))
	}
	if s := a.enter(ctx, grant{r.Key, r.Token}); s != nil {
		return a.again(ctx, s, r)
	}
	conn, err := a.conn.Pin(ctx)
	if err != nil {
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("sqllock: acquire: no connection for the session lock: %w", a.conn.Explain(err)))
	}
	got, err := a.ask(ctx, conn.Conn, a.lock, r.Key)
	if err != nil {
		conn.Kill()
		return driver.Grant{}, fmt.Errorf("sqllock: acquire: session lock: %w", a.conn.Explain(err))
	}
	if !got {
		defer conn.Return()
		return driver.Grant{}, a.held(ctx, conn.Conn, r.Key)
	}
	g, err := a.acquire(ctx, conn.Conn, r)
	var held *driver.HeldError
	switch {
	case err == nil:
		if !a.keep(r, g.Fence, conn) {
			conn.Kill()
			return driver.Grant{}, errors.New("sqllock: acquire: the driver is closed")
		}
	case errors.As(err, &held):
		a.giveBack(ctx, conn, r.Key)
	default:
		conn.Kill()
	}
	return g, err
}

// held tells who holds a key whose session lock is taken. Its holder may be just
// about to write the row, hence a few looks.
func (a *Advisory) held(ctx context.Context, c sqldialect.Conn, key string) error {
	delay := backoff.Policy{Base: 4 * time.Millisecond, Max: 64 * time.Millisecond}
	for n := 0; ; n++ {
		h, err := a.inspect(ctx, c, key)
		switch {
		case err == nil:
			return &driver.HeldError{Holder: h}
		case !errors.Is(err, driver.ErrFree):
			return driver.NotApplied(err)
		case n == 8 || backoff.Wait(ctx, delay.Delay(n)) != nil:
			// It stands still past its TTL, or ends.
			return &driver.HeldError{Holder: driver.Holder{Key: key}}
		}
	}
}

// giveBack unlocks and returns the connection to the pool, or closes it.
func (a *Advisory) giveBack(ctx context.Context, conn *sqldialect.Session, key string) {
	if ok, err := a.ask(ctx, conn.Conn, a.unlock, key); err != nil || !ok {
		conn.Kill()
		return
	}
	conn.Return()
}

// again is an acquire by the token that holds the key.
func (a *Advisory) again(ctx context.Context, s *session, r driver.Request) (driver.Grant, error) {
	g, err := a.acquire(ctx, s.conn.Conn, r)
	if err != nil {
		a.drop(grant{r.Key, r.Token}, s)
	} else {
		s.fence = g.Fence
		s.extend(r.TTL)
	}
	s.leave()
	return g, err
}

// keep remembers the connection of a grant, and closes it where the TTL passes
// without a renewal.
func (a *Advisory) keep(r driver.Request, fence int64, conn *sqldialect.Session) bool {
	g := grant{r.Key, r.Token}
	s := &session{use: make(chan struct{}, 1), conn: conn, fence: fence, until: time.Now().Add(r.TTL)}
	s.use <- struct{}{}
	defer s.leave()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.holds[g] = s
	s.end = time.AfterFunc(r.TTL, func() {
		s.use <- struct{}{}
		if !time.Now().Before(s.until) { // not renewed while this waited
			a.drop(g, s)
		}
		s.leave()
	})
	return true
}

// enter returns the session of a grant, for the caller alone until leave; nil if
// there is none, or it was not free before ctx ended.
func (a *Advisory) enter(ctx context.Context, g grant) *session {
	a.mu.Lock()
	s := a.holds[g]
	a.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case s.use <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	if s.dead {
		s.leave()
		return nil
	}
	return s
}

func (s *session) leave() { <-s.use }

// extend is for whoever has entered.
func (s *session) extend(ttl time.Duration) {
	s.until = time.Now().Add(ttl)
	s.end.Reset(ttl)
}

// forget ends the life of a session that the caller has entered.
func (a *Advisory) forget(g grant, s *session) {
	s.dead = true
	s.end.Stop()
	a.mu.Lock()
	if a.holds[g] == s {
		delete(a.holds, g)
	}
	a.mu.Unlock()
}

// drop closes the connection: the server then frees the lock.
func (a *Advisory) drop(g grant, s *session) {
	if !s.dead {
		a.forget(g, s)
		s.conn.Kill()
	}
}

// Renew implements [driver.Driver]: it asks whether the connection still has its
// lock, and renews the row. A lease whose connection was lost goes on as a row
// alone, and takes a new connection where it can.
func (a *Advisory) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	g := grant{h.Key, h.Token}
	s := a.enter(ctx, g)
	if s == nil || s.fence != h.Fence {
		if s != nil {
			s.leave()
		}
		return a.renew(ctx, a.conn, h)
	}
	has, err := a.ask(ctx, s.conn.Conn, a.check, h.Key)
	if err == nil && has {
		out, err := a.renew(ctx, s.conn.Conn, h)
		if err == nil {
			s.extend(h.TTL)
		} else {
			a.drop(g, s)
		}
		s.leave()
		return out, err
	}
	a.drop(g, s)
	s.leave()
	out, err := a.renew(ctx, a.conn, h)
	if err != nil {
		return out, err
	}
	// The row is ours, so nobody was let in. Without the session lock it still is.
	conn, err := a.conn.Pin(ctx)
	if err != nil {
		return out, nil //nolint:nilerr // the row is what was asked for; the session lock follows with a later renewal
	}
	if got, err := a.ask(ctx, conn.Conn, a.lock, h.Key); err != nil || !got || !a.keep(h.Request, h.Fence, conn) {
		conn.Kill()
	}
	return out, nil
}

// Release implements [driver.Driver]: the session lock first, so that whoever is
// woken by the row finds it free.
func (a *Advisory) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := ctx.Err(); err != nil {
		return 0, driver.NotApplied(fmt.Errorf("sqllock: release: %w", context.Cause(ctx)))
	}
	g := grant{h.Key, h.Token}
	s := a.enter(ctx, g)
	if s == nil {
		return a.release(ctx, a.conn, h)
	}
	defer s.leave()
	if h.Fence != 0 && s.fence != h.Fence {
		return a.release(ctx, a.conn, h)
	}
	if ok, err := a.ask(ctx, s.conn.Conn, a.unlock, h.Key); err != nil || !ok {
		a.drop(g, s)
		return a.release(ctx, a.conn, h)
	}
	out, err := a.release(ctx, s.conn.Conn, h)
	if err != nil {
		a.drop(g, s)
		return out, err
	}
	a.forget(g, s)
	s.conn.Return()
	return out, nil
}

// ForceRelease implements [driver.Inspector]: it frees the row, and ends the
// connection that has the session lock. The latter needs the same database user,
// or one that may end others' connections.
func (a *Advisory) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	out, err := a.rows.ForceRelease(ctx, key)
	if err != nil {
		return out, err
	}
	if a.conn.Dialect == sqldialect.Postgres() {
		err = a.conn.Query(ctx, a.kick, []any{a.name(key)}, func(sqldialect.Rows) error { return nil })
	} else {
		var id sql.NullInt64
		if err = a.conn.QueryRow(ctx, a.kick, []any{a.name(key)}, &id); err == nil && id.Valid {
			_, err = a.conn.Exec(ctx, fmt.Sprintf("KILL CONNECTION %d", id.Int64))
		}
	}
	if err != nil {
		return 0, fmt.Errorf("sqllock: force release: the row is free, the holder's connection could not be ended: %w", a.conn.Explain(err))
	}
	return out, nil
}

// Close closes the connections of what is still held; the rows end with their TTL.
// It leaves the database open.
func (a *Advisory) Close() error {
	a.mu.Lock()
	a.closed = true
	left := make(map[grant]*session, len(a.holds))
	maps.Copy(left, a.holds)
	a.mu.Unlock()
	for g, s := range left {
		s.use <- struct{}{}
		a.drop(g, s)
		s.leave()
	}
	return nil
}
