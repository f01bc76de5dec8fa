package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// Row is the lock backend for short critical sections: a key is held by a
// transaction that has locked its row with SELECT ... FOR UPDATE, from the acquire
// to the release. It takes a connection for every key held. What it does not
// promise is told in the package comment. It is safe for concurrent use.
type Row struct {
	rows
	sql rowSQL

	mu     sync.Mutex
	holds  map[grant]*section
	closed bool
}

var (
	_ driver.Driver  = (*Row)(nil)
	_ driver.Limiter = (*Row)(nil)
)

// section is the transaction that holds one key.
type section struct {
	use   chan struct{} // capacity 1: filled while a statement runs
	conn  *sqldialect.Session
	fence int64
	end   *time.Timer // rolls back where nobody renews
	until time.Time   // when it may
	dead  bool        // its transaction has ended; guarded by use
}

// NewRow returns a driver that locks rows on an open database of PostgreSQL, MariaDB
// or MySQL; SQLite locks no rows. The caller closes it before the database. The
// pool must allow a connection for every key held at a time and one more.
func NewRow(db *gorm.DB, opts ...Option) (*Row, error) {
	r := &Row{holds: map[grant]*section{}}
	if err := r.open(db, opts); err != nil {
		return nil, err
	}
	if r.conn.Dialect == sqldialect.SQLite() {
		return nil, fmt.Errorf("sqllock: mode row: %s locks no rows, a transaction holds the whole file: use mode lease", r.conn.Name)
	}
	r.sql = newRowSQL(r.table, r.conn.Dialect)
	return r, nil
}

// Serves implements [driver.Partial]: who holds a row is not known before the end of
// the transaction, and nobody else can end it.
func (r *Row) Serves(iface any) bool {
	switch iface.(type) {
	case *driver.Inspector, *driver.Surveyor:
		return false
	}
	return true
}

// Limits implements [driver.Limiter]. MySQL and MariaDB end a silent connection by
// whole seconds.
func (r *Row) Limits() driver.Limits {
	if r.conn.Dialect == sqldialect.MySQL() {
		return driver.Limits{MinTTL: time.Second, Granularity: time.Second}
	}
	return driver.Limits{MinTTL: minTTL}
}

// Acquire implements [driver.Driver]: it begins a transaction, locks the row without
// waiting for it, and draws the fence.
func (r *Row) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil { // it must not reach the transaction, which would end with it
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("sqllock: acquire: %w", context.Cause(ctx)))
	}
	g := grant{req.Key, req.Token}
	if s := r.enter(ctx, g); s != nil {
		defer s.leave()
		if err := r.touch(ctx, g, s, req.TTL); err != nil {
			return driver.Grant{}, driver.NotApplied(err)
		}
		return driver.Grant{Fence: s.fence}, nil
	}
	var fence int64
	err := r.do(ctx, "acquire", func(q *texts) (err error) {
		if fence, err = r.take(ctx, q, g, req); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		// The key's first use.
		query := r.sql.make
		if q.mariadb { // it waits for a row that somebody has just made and holds
			query = "SET STATEMENT innodb_lock_wait_timeout=0 FOR " + query
		}
		if _, err = r.conn.Exec(ctx, query, r.text(req.Key), req.Token[:]); err == nil {
			fence, err = r.take(ctx, q, g, req)
		}
		return err
	})
	var held *driver.HeldError
	switch {
	case err == nil:
		return driver.Grant{Fence: fence}, nil
	case errors.As(err, &held):
		return driver.Grant{}, held
	}
	// Whatever was begun was rolled back, with its connection if need be.
	return driver.Grant{}, driver.NotApplied(err)
}

// take locks the row on a connection of its own. It returns sql.ErrNoRows where
// there is no row to lock.
func (r *Row) take(ctx context.Context, q *texts, g grant, req driver.Request) (int64, error) {
	conn, err := r.conn.Pin(ctx)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	fence, err := r.lock(ctx, q, conn, req)
	if err != nil {
		r.abandon(ctx, conn)
		return 0, err
	}
	return fence, r.keep(g, start.Add(req.TTL), fence, conn)
}

// lock begins the transaction and locks the row. An error leaves it to be abandoned.
func (r *Row) lock(ctx context.Context, q *texts, conn *sqldialect.Session, req driver.Request) (int64, error) {
	if err := r.sql.begin(ctx, conn.Conn, req.TTL, q.mariadb); err != nil {
		return 0, err
	}
	var h driver.Holder
	var token []byte
	var fence, now, until int64
	if err := conn.QueryRow(ctx, r.sql.lock, []any{r.text(req.Key)}, &token, &fence, &h.Label, &until, &now); err != nil {
		if r.conn.Classify(err) == sqldialect.Busy {
			return 0, &driver.HeldError{Holder: driver.Holder{Key: req.Key}}
		}
		return 0, err
	}
	if until >= now { // somebody has it in another mode
		h.Key, h.Fence, h.Remaining = req.Key, fence, microseconds(until-now)
		copy(h.Token[:], token)
		return 0, &driver.HeldError{Holder: h}
	}
	// A rollback gives the number back, the clock does not.
	fence = max(fence+1, now)
	n, err := conn.Exec(ctx, r.sql.draw, fence, req.Token[:], r.label(req.Label), r.text(req.Key))
	if err == nil && n != 1 {
		err = errors.New("the row went away while it was locked")
	}
	return fence, err
}

// keep remembers the transaction of a grant, and rolls it back where the TTL passes
// without a renewal.
func (r *Row) keep(g grant, until time.Time, fence int64, conn *sqldialect.Session) error {
	s := &section{use: make(chan struct{}, 1), conn: conn, fence: fence, until: until}
	s.use <- struct{}{}
	defer s.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		conn.Kill()
		return errClosed
	}
	r.holds[g] = s
	s.end = time.AfterFunc(time.Until(until), func() {
		s.use <- struct{}{}
		if !time.Now().Before(s.until) { // not renewed while this waited
			r.kill(g, s)
		}
		s.leave()
	})
	return nil
}

// enter returns the section of a grant, for the caller alone until leave; nil if
// there is none, or it was not free before ctx ended.
func (r *Row) enter(ctx context.Context, g grant) *section {
	r.mu.Lock()
	s := r.holds[g]
	r.mu.Unlock()
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

func (s *section) leave() { <-s.use }

// forget ends the life of a section that the caller has entered.
func (r *Row) forget(g grant, s *section) {
	s.dead = true
	s.end.Stop()
	r.mu.Lock()
	if r.holds[g] == s {
		delete(r.holds, g)
	}
	r.mu.Unlock()
}

// kill closes the connection, which rolls back.
func (r *Row) kill(g grant, s *section) {
	if !s.dead {
		r.forget(g, s)
		s.conn.Kill()
	}
}

// touch asks whether the transaction still has its row, which begins the server's
// time anew. A transaction that does not answer is given up: no other connection
// can go on with it.
func (r *Row) touch(ctx context.Context, g grant, s *section, ttl time.Duration) error {
	start := time.Now()
	var fence int64
	err := s.conn.QueryRow(ctx, r.sql.check, []any{r.text(g.key), g.token[:]}, &fence)
	if err == nil && fence == s.fence {
		s.until = start.Add(ttl)
		s.end.Reset(ttl)
		return nil
	}
	r.kill(g, s)
	return fmt.Errorf("sqllock: the transaction that held the key has ended: %w", errors.Join(driver.ErrNotOurs, err))
}

// Renew implements [driver.Driver]. A connection that was lost is a loss for
// certain.
func (r *Row) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(fmt.Errorf("sqllock: renew: %w", context.Cause(ctx)))
	}
	g := grant{h.Key, h.Token}
	s := r.enter(ctx, g)
	if s == nil {
		return driver.Grant{}, r.notHere(ctx, h)
	}
	defer s.leave()
	if s.fence != h.Fence {
		return driver.Grant{}, driver.ErrNotOurs
	}
	if err := r.touch(ctx, g, s, h.TTL); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// notHere is the answer to a renewal of what this driver does not hold: not ours, if
// nobody holds it.
func (r *Row) notHere(ctx context.Context, h driver.Hold) error {
	free, err := r.unheld(ctx, h.Key)
	switch {
	case err != nil:
		return fmt.Errorf("sqllock: renew: %w", r.conn.Explain(err))
	case free || r.has(h.Key):
		return driver.ErrNotOurs
	}
	return errors.New("sqllock: renew: the key is held by a transaction of another process: only who took it can renew it")
}

// has reports whether this driver holds the key, for any token.
func (r *Row) has(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.holds {
		if g.key == key {
			return true
		}
	}
	return false
}

// unheld reports whether nobody holds the key, in any mode.
func (r *Row) unheld(ctx context.Context, key string) (bool, error) {
	var until, now, fence int64
	var token []byte
	var label string
	err := r.conn.QueryRow(ctx, r.sql.lock, []any{r.text(key)}, &token, &fence, &label, &until, &now)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return true, nil
	case r.conn.Classify(err) == sqldialect.Busy:
		return false, nil
	}
	return until < now, err
}

// Release implements [driver.Driver] by a commit, which frees the row and keeps the
// fence.
func (r *Row) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := ctx.Err(); err != nil {
		return 0, driver.NotApplied(fmt.Errorf("sqllock: release: %w", context.Cause(ctx)))
	}
	g := grant{h.Key, h.Token}
	s := r.enter(ctx, g)
	if s == nil || h.Fence != 0 && s.fence != h.Fence {
		if s != nil {
			s.leave()
		}
		return r.notOurs(ctx, h.Key)
	}
	defer s.leave()
	r.forget(g, s)
	if err := r.sql.commit(ctx, s.conn.Conn, r.channel, h.Key); err != nil {
		s.conn.Kill()
		if r.conn.Ended(err) { // and others may have had the key since
			return r.notOurs(ctx, h.Key)
		}
		return 0, fmt.Errorf("sqllock: release: %w", r.conn.Explain(err))
	}
	r.giveBack(ctx, s.conn)
	return driver.ReleasedOK, nil
}

// notOurs is the answer to a release of what this driver does not hold.
func (r *Row) notOurs(ctx context.Context, key string) (driver.Released, error) {
	free, err := r.unheld(ctx, key)
	switch {
	case err != nil:
		return 0, fmt.Errorf("sqllock: release: %w", r.conn.Explain(err))
	case free:
		return driver.ReleasedGone, nil
	}
	return driver.ReleasedOther, nil
}

// abandon rolls back what an acquire began.
func (r *Row) abandon(ctx context.Context, conn *sqldialect.Session) {
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		conn.Kill()
		return
	}
	r.giveBack(ctx, conn)
}

// giveBack returns a connection to the pool as it was.
func (r *Row) giveBack(ctx context.Context, conn *sqldialect.Session) {
	q, err := r.ready(ctx)
	if err == nil {
		err = r.sql.reset(ctx, conn.Conn, q.mariadb)
	}
	if err != nil {
		conn.Kill()
		return
	}
	conn.Return()
}

// Close ends the transactions of what is still held. It leaves the database open.
func (r *Row) Close() error {
	r.mu.Lock()
	r.closed = true
	left := maps.Clone(r.holds)
	r.mu.Unlock()
	for g, s := range left {
		s.use <- struct{}{}
		r.kill(g, s)
		s.leave()
	}
	return nil
}

// rowSQL is how a database spells a transaction that holds a row.
type rowSQL struct {
	d                       *sqldialect.Dialect
	make, lock, draw, check string
}

func newRowSQL(table string, d *sqldialect.Dialect) rowSQL {
	q := rowSQL{
		d:     d,
		make:  "INSERT INTO " + table + " (name, token, fence, since_us, until_us) VALUES (?, ?, 0, 0, 0)",
		lock:  "SELECT token, fence, label, until_us, " + d.NowMicros + " FROM " + table + " WHERE name = ?" + d.LockRows + " NOWAIT",
		draw:  "UPDATE " + table + " SET fence = ?, token = ?, label = ?, beats = beats + 1 WHERE name = ?",
		check: "SELECT fence FROM " + table + " WHERE name = ? AND token = ?",
	}
	if mutation.On("row-lock") {
		q.lock = strings.TrimSuffix(q.lock, d.LockRows+" NOWAIT")
	}
	if d == sqldialect.MySQL() {
		q.make += " ON DUPLICATE KEY UPDATE beats = beats"
	} else {
		// It would wait for the end of a transaction that holds a row made just now.
		q.make = strings.Replace(q.make, "VALUES (?, ?, 0, 0, 0)", "SELECT CAST(? AS TEXT), CAST(? AS BYTEA), 0, 0, 0"+
			" FROM (SELECT set_config('lock_timeout', '10', true) AS ms OFFSET 0) AS limited WHERE limited.ms <> ''", 1) + d.InsertIgnore
	}
	for _, s := range []*string{&q.make, &q.lock, &q.draw, &q.check} {
		*s = d.Bind(*s)
	}
	return q
}

// begin begins a transaction that the server ends when it hears nothing for the TTL.
// It reads what is committed: under REPEATABLE READ, InnoDB's default, a look at a key
// that has no row yet locks the gap around it, and nobody else could make a row there.
func (q rowSQL) begin(ctx context.Context, c sqldialect.Conn, ttl time.Duration, mariadb bool) error {
	if q.d == sqldialect.Postgres() {
		if _, err := c.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
			return err
		}
		return c.Query(ctx, "SELECT set_config('idle_in_transaction_session_timeout', CAST(? AS TEXT), true)",
			[]any{strconv.FormatInt(ttl.Milliseconds(), 10)}, func(sqldialect.Rows) error { return nil })
	}
	set := "SET SESSION wait_timeout = " + strconv.FormatInt(wholeSeconds(ttl), 10) + ", " + isolation(mariadb) + " = 'READ-COMMITTED'"
	if _, err := c.Exec(ctx, set); err != nil {
		return err
	}
	_, err := c.Exec(ctx, "START TRANSACTION")
	return err
}

// reset undoes what begin has set for the connection.
func (q rowSQL) reset(ctx context.Context, c sqldialect.Conn, mariadb bool) error {
	if q.d == sqldialect.Postgres() {
		return nil // it was set for the transaction
	}
	_, err := c.Exec(ctx, "SET SESSION wait_timeout = DEFAULT, "+isolation(mariadb)+" = DEFAULT")
	return err
}

// isolation is the variable of a session's isolation level: MySQL has dropped the name
// that every MariaDB knows.
func isolation(mariadb bool) string {
	if mariadb {
		return "tx_isolation"
	}
	return "transaction_isolation"
}

// commit ends the transaction and, on PostgreSQL, notifies who waits for the key.
func (q rowSQL) commit(ctx context.Context, c sqldialect.Conn, channel, key string) error {
	if q.d == sqldialect.Postgres() {
		err := c.Query(ctx, "SELECT pg_notify(?, ?)", []any{channel, key}, func(sqldialect.Rows) error { return nil })
		if err != nil {
			return err
		}
	}
	_, err := c.Exec(ctx, "COMMIT")
	return err
}
