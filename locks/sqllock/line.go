package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

const (
	// maxPlaces bounds the connections of a driver that stand in lines.
	maxPlaces = 8
	// lineLimit is how long one statement waits in line. It is a snapshot that keeps
	// the server from cleaning up behind it.
	lineLimit = 10 * time.Second
	// keepFor is how long a holder keeps the turn that it got in line, so that its
	// release hands over to the next one. It takes a connection for so long.
	keepFor = 2 * time.Second
	// lingerIdle is how long a connection stays that nobody waits on.
	lingerIdle = 5 * time.Second
	// lineSilence is after what time without a word the server ends a connection that
	// has a turn: that of a process which is cut off.
	lineSilence = 15 * time.Second
	// askLimit bounds what is asked beside the statement that waits.
	askLimit = time.Second
)

// lines are this process's places in the lines of the keys. Who stands in one waits
// on the server for a session lock, the turn, which is no part of the lease: it says
// who is to try next. A holder that came from the line keeps the turn for a while and
// gives it up with its release, and the server wakes the next one.
type lines struct {
	pool  *sql.DB
	sql   sessionSQL
	table string
	waker driver.Waker // nil where nobody tells of releases

	mu     sync.Mutex
	out    int              // places that there are
	idle   []*place         // those that nobody uses, the last used last
	kept   map[grant]*place // those of holders
	closed bool
	pooled bool // found out: there are no lines
}

// place is a connection with which one waits in a line.
type place struct {
	conn *sqldialect.Session
	id   int64       // the server's number of it
	end  *time.Timer // while it is idle or kept
}

func (l *lines) open(r *rows, pool *sql.DB) {
	q, err := newSessionSQL(r.conn.Dialect)
	if err != nil {
		return // no session locks, no lines
	}
	*l = lines{pool: pool, sql: q, table: r.table, kept: map[grant]*place{}}
}

// allowed is how many places there may be: each takes a connection of the pool.
func (l *lines) allowed() int {
	if l.pool == nil { // none are wanted, or possible
		return 0
	}
	if most := l.pool.Stats().MaxOpenConnections; most > 0 {
		return min(most/2, maxPlaces)
	}
	return maxPlaces
}

// turnOf and headOf are the session locks of a key: the turn, and the mark of who has
// it and finds the key held by one that did not come from the line.
func (l *lines) turnOf(key string) any { return sessionName(l.sql.d, l.table, "turn", key) }
func (l *lines) headOf(key string) any { return sessionName(l.sql.d, l.table, "head", key) }

// place returns a place; nil if there may be no more.
func (l *lines) place(ctx context.Context, c sqldialect.Conn) (*place, error) {
	allowed := l.allowed()
	l.mu.Lock()
	if n := len(l.idle); n > 0 {
		p := l.idle[n-1]
		l.idle = l.idle[:n-1]
		p.end.Stop()
		l.mu.Unlock()
		return p, nil
	}
	if l.closed || l.pooled || l.out >= allowed {
		l.mu.Unlock()
		return nil, nil
	}
	l.out++
	l.mu.Unlock()
	p := new(place)
	var err error
	if p.conn, err = c.Pin(ctx); err == nil {
		p.id, err = l.sql.beginLine(ctx, p.conn.Conn)
	}
	shared := false
	if err == nil && l.sql.d == sqldialect.Postgres() {
		shared, err = l.shared(ctx, c, p)
	}
	if err != nil || shared {
		l.kill(p)
		return nil, err
	}
	return p, nil
}

// shared reports whether there is a pooler in between that gives a connection of the
// server to one client after the other. A session lock would be left there, for
// anybody. It cannot be told for certain where many clients are busy.
func (l *lines) shared(ctx context.Context, c sqldialect.Conn, p *place) (bool, error) {
	const who = "SELECT pg_backend_pid()"
	var other, again int64
	err := errors.Join(c.QueryRow(ctx, who, nil, &other), p.conn.QueryRow(ctx, who, nil, &again))
	if err != nil || other != p.id && again == p.id {
		return false, err
	}
	l.mu.Lock()
	l.pooled = true
	l.mu.Unlock()
	return true, nil
}

// kill closes the connection of a place, which frees what it has locked.
func (l *lines) kill(p *place) {
	if p.conn != nil {
		p.conn.Kill()
	}
	l.mu.Lock()
	l.out--
	l.mu.Unlock()
}

// clear frees what a place has locked, and gives it back; by closing it if need be.
func (l *lines) clear(ctx context.Context, p *place) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	if err := p.conn.Query(ctx, l.sql.unlockAll, nil, func(sqldialect.Rows) error { return nil }); err != nil {
		l.kill(p)
		return
	}
	l.giveBack(p)
}

// giveBack takes back a place that has nothing locked.
func (l *lines) giveBack(p *place) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.kill(p)
		return
	}
	defer l.mu.Unlock()
	p.end = time.AfterFunc(lingerIdle, func() {
		l.mu.Lock()
		at := slices.Index(l.idle, p)
		if at >= 0 {
			l.idle = slices.Delete(l.idle, at, at+1)
		}
		l.mu.Unlock()
		if at >= 0 {
			l.kill(p)
		}
	})
	l.idle = append(l.idle, p)
}

// keep remembers that the holder of a grant has the turn.
func (l *lines) keep(g grant, p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.end = time.AfterFunc(keepFor, func() {
		if l.take(g) == p {
			l.clear(context.Background(), p) //nolint:forbidigo // a root: nobody asked for this
		}
	})
	l.kept[g] = p
}

// take returns the place of a holder, which then has it no more; nil if it has none.
func (l *lines) take(g grant) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.kept[g]
	if p != nil {
		p.end.Stop()
		delete(l.kept, g)
	}
	return p
}

// close ends all places. Nobody waits any more.
func (l *lines) close() {
	l.mu.Lock()
	l.closed = true
	all := l.idle
	l.idle = nil
	for g, p := range l.kept {
		all = append(all, p)
		delete(l.kept, g)
	}
	l.mu.Unlock()
	for _, p := range all {
		p.end.Stop()
		l.kill(p)
	}
}

// count tells of each key how many wait in its line, as far as the server shows it.
func (l *lines) count(ctx context.Context, c sqldialect.Conn, holders []driver.Holder) error {
	if l.sql.d == nil || len(holders) == 0 {
		return nil
	}
	if l.sql.d == sqldialect.Postgres() {
		n := map[int64]int{} // waiting, and with their sign turned those that have a lock
		const query = "SELECT (CAST(classid AS BIGINT) << 32) | CAST(objid AS BIGINT), granted, count(*) FROM pg_locks" +
			" WHERE locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY 1, 2"
		has := map[int64]bool{}
		err := c.Query(ctx, query, nil, func(row sqldialect.Rows) error {
			var number int64
			var granted bool
			var count int
			err := row.Scan(&number, &granted, &count)
			if granted {
				has[number] = true
			} else {
				n[number] = count
			}
			return err
		})
		for i, h := range holders {
			holders[i].Waiters = n[l.turnOf(h.Key).(int64)]
			if has[l.headOf(h.Key).(int64)] {
				holders[i].Waiters++
			}
		}
		return err
	}
	var waiting []string // what they have sent
	err := c.Query(ctx, "SELECT info FROM information_schema.processlist WHERE state = 'User lock' AND info IS NOT NULL", nil, func(row sqldialect.Rows) error {
		var sent string
		err := row.Scan(&sent)
		waiting = append(waiting, sent)
		return err
	})
	if err != nil {
		return err
	}
	for part := range slices.Chunk(holders, batchMax(l.sql.d)) {
		names := make([]any, len(part))
		for i, h := range part {
			names[i] = l.headOf(h.Key)
		}
		heads, err := l.sql.each(ctx, c, l.sql.used, names)
		if err != nil {
			return err
		}
		for i := range part {
			turn := l.turnOf(part[i].Key).(string)
			for _, sent := range waiting {
				if strings.Contains(sent, turn) {
					part[i].Waiters++
				}
			}
			if heads[i] {
				part[i].Waiters++
			}
		}
	}
	return nil
}

// turn is the answer of a statement that waited in line.
type turn struct {
	grant driver.Grant
	ours  bool  // the connection has the turn
	sure  bool  // it is certain whether the key was granted
	err   error // nil if granted
}

var errPassed = errors.New("sqllock: the turn did not come in time")

// await waits in line on a place, and tries when the turn has come. It returns when
// ctx has ended, or lineLimit has passed. Only PostgreSQL's turn comes with the try in
// one statement; elsewhere a statement that is given up grants nothing.
func (d *Driver) await(ctx context.Context, p *place, r driver.Request) turn {
	name := d.lines.turnOf(r.Key)
	q, err := d.ready(ctx)
	if err != nil {
		return turn{sure: true, err: err}
	}
	if d.conn.Dialect != sqldialect.Postgres() {
		var got sql.NullInt64
		err := p.conn.QueryRow(ctx, "SELECT GET_LOCK("+sqldialect.NamedLock+", ?)", []any{name, lineLimit.Seconds()}, &got)
		switch {
		case err != nil:
			return turn{sure: true, err: err}
		case got.Int64 != 1:
			return turn{sure: true, err: errPassed}
		}
		ask, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		g, err := d.acquire(ask, p.conn.Conn, r)
		return tried(g, err)
	}
	args := []any{r.Key, r.Token[:], r.TTL.Microseconds(), d.label(r.Label), name}
	g, err := d.granted(r, func(dest ...any) error { return p.conn.QueryRow(ctx, q.turn, args, dest...) })
	if d.conn.Classify(err) == sqldialect.Busy {
		return turn{sure: true, err: errPassed}
	}
	if err != nil && d.conn.NotApplied(err) {
		err = driver.NotApplied(err)
	}
	return tried(g, err)
}

func tried(g driver.Grant, err error) turn {
	var held *driver.HeldError
	if err == nil || errors.As(err, &held) {
		return turn{grant: g, ours: true, sure: true, err: err}
	}
	return turn{sure: driver.IsNotApplied(err), err: err}
}

// handOver releases a key whose holder has the turn, and gives that up, so that the
// next one in line goes on. On PostgreSQL that is one statement.
func (d *Driver) handOver(ctx context.Context, p *place, h driver.Hold) (driver.Released, error) {
	freed := false
	out, err := d.releaseBy(ctx, p.conn.Conn, h, func(q *texts) (int64, error) {
		if q.handOver == "" {
			return d.free(ctx, p.conn.Conn, q, q.release, d.text(h.Key), h.Token[:], h.Fence)
		}
		n, err := count(ctx, p.conn.Conn, q.handOver, []any{d.lines.turnOf(h.Key), h.Key, h.Token[:], h.Fence})
		freed = n > 0
		return n, err
	})
	switch {
	case err != nil:
		d.lines.kill(p)
		return 0, err
	case freed:
		d.lines.giveBack(p)
	default:
		d.lines.clear(ctx, p)
	}
	return out, nil
}

// beginLine is begin for a connection that stands in lines. On PostgreSQL it also
// limits how long one statement waits.
func (q sessionSQL) beginLine(ctx context.Context, c sqldialect.Conn) (id int64, err error) {
	if q.d != sqldialect.Postgres() {
		return q.begin(ctx, c, lineSilence)
	}
	const begin = "SELECT pg_backend_pid(), count(set_config(name, CASE name WHEN 'lock_timeout' THEN CAST(? AS TEXT) ELSE CAST(? AS TEXT) END, false))" +
		" FROM pg_settings WHERE name IN ('lock_timeout', 'idle_session_timeout')"
	var set int
	if err := c.QueryRow(ctx, begin, []any{ms(backoff.Jitter(lineLimit, 0.1)), ms(lineSilence)}, &id, &set); err != nil {
		return 0, err
	}
	// A waiter that died is to leave the line before its turn. The setting is there
	// since PostgreSQL 14, on Linux, macOS and the BSDs; the others do without.
	_, _ = c.Exec(ctx, "SET client_connection_check_interval = 1000")
	return id, nil
}
