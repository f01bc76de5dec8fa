package sqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
)

// session is the connection that has the session locks of the keys of one class of
// TTLs. It is one a class, since the server is told to end it when it was silent
// for longer than the class.
type session struct {
	class time.Duration
	use   chan struct{} // capacity 1: filled while somebody works on what follows

	conn   *sqldialect.Session // nil if there is none
	id     int64               // the server's number of it
	locked map[string]struct{} // the keys whose locks conn has
	used   time.Time           // when it last answered
	closed bool
}

// class rounds a TTL up to a power of two of milliseconds, so that there are few.
func class(ttl time.Duration) time.Duration {
	return time.Millisecond << bits.Len64(uint64(max(ttl.Milliseconds()-1, 1)))
}

// silence is how long the server keeps a session that says nothing: longer than a
// lease, or it would protect nothing beyond; not for ever, or the key of a holder
// behind a dead network would be lost until somebody helps.
func (s *session) silence() time.Duration { return s.class * 3 / 2 }

// session returns the one of a TTL. The caller holds mu.
func (a *Advisory) session(ttl time.Duration) *session {
	class := class(ttl)
	s := a.sessions[class]
	if s == nil {
		s = &session{class: class, use: make(chan struct{}, 1), locked: map[string]struct{}{}}
		a.sessions[class] = s
	}
	return s
}

func (s *session) enter(ctx context.Context) error {
	select {
	case s.use <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.closed {
		s.leave()
		return errClosed
	}
	return nil
}

func (s *session) leave() { <-s.use }

// kill closes the connection: the server then frees its locks.
func (s *session) kill() {
	if s.conn != nil {
		s.conn.Kill()
	}
	s.conn = nil
	clear(s.locked)
}

// giveUp closes a connection in doubt. The server may not hear of it, and so it is
// remembered.
func (a *Advisory) giveUp(s *session) {
	s.kill()
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ghosts, func(_ int64, end time.Time) bool { return now.After(end) })
	a.ghosts[s.id] = now.Add(2 * s.silence()) // it is ended by then
}

// reap ends the connections that this driver gave up and that still have the lock of
// the key, and reports whether there were any.
func (a *Advisory) reap(ctx context.Context, key string) bool {
	a.mu.Lock()
	ghosts := maps.Clone(a.ghosts)
	a.mu.Unlock()
	if len(ghosts) == 0 {
		return false
	}
	ended, err := a.sql.kick(ctx, a.conn, a.name(key), func(id int64) bool { return !ghosts[id].IsZero() })
	return err == nil && ended
}

// connect opens the connection if there is none, or an unused one that the server
// may have ended. The caller has entered.
func (a *Advisory) connect(ctx context.Context, s *session) error {
	if s.conn != nil && len(s.locked) == 0 && time.Since(s.used) > s.class {
		s.kill()
	}
	if s.conn != nil {
		return nil
	}
	conn, err := a.conn.Pin(ctx)
	if err != nil {
		return fmt.Errorf("no connection: %w", err)
	}
	if s.id, err = a.sql.begin(ctx, conn.Conn, s.silence()); err != nil {
		conn.Kill()
		return err
	}
	s.conn, s.used = conn, time.Now()
	return nil
}

// ask runs an operation on the session's connection, which is closed if there is
// any doubt about its outcome. The caller has entered.
func (a *Advisory) ask(ctx context.Context, s *session, op string, keys []string) ([]bool, error) {
	names := make([]any, len(keys))
	for i, key := range keys {
		names[i] = a.name(key)
	}
	yes, err := a.sql.each(ctx, s.conn.Conn, op, names)
	if err != nil {
		a.giveUp(s)
		return nil, err
	}
	s.used = time.Now()
	return yes, nil
}

// take takes the session lock of a key, or reports that another connection has it.
func (a *Advisory) take(ctx context.Context, s *session, key string) (bool, error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.leave()
	if _, has := s.locked[key]; has {
		return true, nil
	}
	for again := true; ; again = false {
		if err := a.connect(ctx, s); err != nil {
			return false, err
		}
		got, err := a.ask(ctx, s, a.sql.lock, []string{key})
		switch {
		case err == nil && got[0]:
			s.locked[key] = struct{}{}
			return true, nil
		case !again || ctx.Err() != nil, err == nil && !a.reap(ctx, key):
			return false, err
		}
		// The server had ended the connection since its last answer, or has now ended
		// one of ours that it had not missed.
	}
}

// untake gives session locks back, by closing the connection if need be. It reports
// whether the session has none of them any more.
func (a *Advisory) untake(ctx context.Context, s *session, keys []string) bool {
	if err := s.enter(ctx); err != nil {
		return errors.Is(err, errClosed)
	}
	defer s.leave()
	keys = slices.DeleteFunc(keys, func(key string) bool {
		_, has := s.locked[key]
		if !has {
			a.reap(ctx, key)
		}
		return !has
	})
	for part := range slices.Chunk(keys, batchMax(a.conn.Dialect)) {
		freed, err := a.ask(ctx, s, a.sql.unlock, part)
		if err != nil {
			return true
		}
		if slices.Contains(freed, false) { // they are not what we think they are
			a.giveUp(s)
			return true
		}
		for _, key := range part {
			delete(s.locked, key)
		}
	}
	return true
}

// mind checks that the session has the locks of the keys, and takes those that it
// has not. What fails is tried again with the next renewal.
func (a *Advisory) mind(ctx context.Context, s *session, keys []string) {
	if s.enter(ctx) != nil {
		return
	}
	defer s.leave()
	if a.connect(ctx, s) != nil {
		return
	}
	var missing []string
	for part := range slices.Chunk(keys, batchMax(a.conn.Dialect)) {
		missing = append(missing, a.missing(ctx, s, part)...)
	}
	if a.connect(ctx, s) != nil { // where the check has found it dead
		return
	}
	for part := range slices.Chunk(missing, batchMax(a.conn.Dialect)) {
		got, err := a.ask(ctx, s, a.sql.lock, part)
		if err != nil {
			return
		}
		for i, key := range part {
			if got[i] {
				s.locked[key] = struct{}{}
			}
		}
	}
}

// missing are the keys whose locks the session has not, whatever it believes.
func (a *Advisory) missing(ctx context.Context, s *session, keys []string) []string {
	has := make([]bool, len(keys))
	if len(s.locked) > 0 && !mutation.On("advisory-check") {
		var err error
		if has, err = a.ask(ctx, s, a.sql.check, keys); err != nil {
			return keys
		}
	}
	var missing []string
	for i, key := range keys {
		_, known := s.locked[key]
		if known && (has[i] || mutation.On("advisory-check")) {
			continue
		}
		delete(s.locked, key)
		missing = append(missing, key)
	}
	return missing
}

// name is what stands for the key: a hash, since names are short, folded or
// padded by some servers.
func (a *Advisory) name(key string) any { return sessionName(a.conn.Dialect, a.table, "", key) }

// sessionName is the name of a session lock of a key. Keys have no control characters.
func sessionName(d *sqldialect.Dialect, table, kind, key string) any {
	if kind != "" {
		kind = "\x00" + kind + "\x00"
	}
	text := table + kind + "/" + key
	if d == sqldialect.Postgres() {
		return sqldialect.LockNumber(text)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// sessionSQL is how a database spells session locks. On PostgreSQL the operations
// are queries over a list of numbers that answer each with yes or no; on MySQL they
// are expressions over one name.
type sessionSQL struct {
	d                   *sqldialect.Dialect
	lock, unlock, check string
	victims             string // the connections that have the lock of a name
	unlockAll           string
	used                string // whether anybody has the lock of a name; MySQL's
}

func newSessionSQL(d *sqldialect.Dialect) (sessionSQL, error) {
	q := sessionSQL{d: d}
	switch d {
	case sqldialect.Postgres():
		const number = "(CAST(classid AS BIGINT) << 32) | CAST(objid AS BIGINT)"
		const granted = " FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
		const of = "SELECT k, CASE WHEN %s THEN 1 ELSE 0 END FROM unnest(CAST(? AS BIGINT[])) AS k"
		q.lock = fmt.Sprintf(of, "pg_try_advisory_lock(k)")
		q.unlock = fmt.Sprintf(of, "pg_advisory_unlock(k)")
		q.check = fmt.Sprintf(of, "k IN (SELECT "+number+granted+" AND pid = pg_backend_pid())")
		q.unlockAll = "SELECT pg_advisory_unlock_all()"
		q.victims = "SELECT pid" + granted + " AND " + number + " = CAST(? AS BIGINT)"
	case sqldialect.MySQL():
		q.lock = "GET_LOCK(" + sqldialect.NamedLock + ", 0)"
		q.unlock = "RELEASE_LOCK(" + sqldialect.NamedLock + ")"
		q.check = "IS_USED_LOCK(" + sqldialect.NamedLock + ") <=> CONNECTION_ID()"
		q.unlockAll = "SELECT RELEASE_ALL_LOCKS()"
		q.used = "IS_USED_LOCK(" + sqldialect.NamedLock + ") IS NOT NULL"
		q.victims = "SELECT IS_USED_LOCK(" + sqldialect.NamedLock + ")"
	default:
		return q, fmt.Errorf("sqllock: mode advisory: %s has no session locks: use mode lease", d.Name)
	}
	return q, nil
}

// begin has the server end the session when it says nothing for d, and returns its
// number.
func (q sessionSQL) begin(ctx context.Context, c sqldialect.Conn, d time.Duration) (id int64, err error) {
	if q.d == sqldialect.MySQL() {
		if _, err := c.Exec(ctx, "SET SESSION wait_timeout = "+strconv.FormatInt(wholeSeconds(d), 10)); err != nil {
			return 0, err
		}
		return id, c.QueryRow(ctx, "SELECT CONNECTION_ID()", nil, &id)
	}
	// The setting is there since PostgreSQL 14; before, only the operating system's
	// probes find a dead connection.
	const begin = "SELECT pg_backend_pid(), count(set_config(name, CAST(? AS TEXT), false)) FROM pg_settings WHERE name = 'idle_session_timeout'"
	var set int
	return id, c.QueryRow(ctx, begin, []any{strconv.FormatInt(d.Milliseconds(), 10)}, &id, &set)
}

func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// each runs an operation for all names in one statement.
func (q sessionSQL) each(ctx context.Context, c sqldialect.Conn, op string, names []any) ([]bool, error) {
	yes := make([]bool, len(names))
	if q.d == sqldialect.Postgres() {
		numbers, at := make([]int64, len(names)), make(map[int64]int, len(names))
		for i, n := range names {
			numbers[i] = n.(int64)
			at[numbers[i]] = i
		}
		return yes, c.Query(ctx, op, []any{numbers}, func(row sqldialect.Rows) error {
			var number int64
			var is int
			err := row.Scan(&number, &is)
			yes[at[number]] = is == 1
			return err
		})
	}
	answers, into := make([]sql.NullInt64, len(names)), make([]any, len(names))
	for i := range answers {
		into[i] = &answers[i]
	}
	if err := c.QueryRow(ctx, "SELECT "+op+strings.Repeat(", "+op, len(names)-1), names, into...); err != nil {
		return nil, err
	}
	for i, n := range answers {
		if !n.Valid && op == q.lock {
			return nil, errors.New("the server answered NULL: no memory, or killed")
		}
		yes[i] = n.Int64 == 1
	}
	return yes, nil
}

// kick ends those of the connections with the lock of a name that are meant, and
// waits until they have lost it, which is somewhat later. It reports whether there
// were any.
func (q sessionSQL) kick(ctx context.Context, c sqldialect.Conn, name any, meant func(id int64) bool) (bool, error) {
	delay := backoff.Policy{Base: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	told := map[int64]bool{}
	for n := 0; ; n++ {
		var victims []int64
		err := c.Query(ctx, q.victims, []any{name}, func(row sqldialect.Rows) error {
			var id sql.NullInt64
			err := row.Scan(&id)
			if id.Valid && meant(id.Int64) {
				victims = append(victims, id.Int64)
			}
			return err
		})
		if err != nil || len(victims) == 0 {
			return len(told) > 0, err
		}
		for _, id := range victims {
			if told[id] {
				continue
			}
			told[id] = true
			if err := q.end(ctx, c, id); err != nil {
				return true, err
			}
		}
		if err := backoff.Wait(ctx, delay.Delay(min(n, 10))); err != nil {
			return true, err
		}
	}
}

// end ends a connection.
func (q sessionSQL) end(ctx context.Context, c sqldialect.Conn, id int64) error {
	if q.d == sqldialect.Postgres() {
		return c.Query(ctx, "SELECT pg_terminate_backend(CAST(? AS INT))", []any{id}, func(sqldialect.Rows) error { return nil })
	}
	_, err := c.Exec(ctx, fmt.Sprintf("KILL CONNECTION %d", id))
	if err != nil && strings.Contains(err.Error(), "1094") { // it is gone already
		return nil
	}
	return err
}

// interrupt ends the statement that a connection is at.
func (q sessionSQL) interrupt(ctx context.Context, c sqldialect.Conn, id int64) error {
	if q.d == sqldialect.Postgres() {
		return c.Query(ctx, "SELECT pg_cancel_backend(CAST(? AS INT))", []any{id}, func(sqldialect.Rows) error { return nil })
	}
	_, err := c.Exec(ctx, fmt.Sprintf("KILL QUERY %d", id))
	return err
}
