package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// rows is the table of leases: the statements and how they are sent. What is sent
// goes over the pool, or over the connection that the caller names.
type rows struct {
	table   string
	conn    sqldialect.Conn
	schema  *sqldialect.Set
	channel string // of notifications
	// q is nil until it is known whether the server is MySQL or MariaDB.
	q atomic.Pointer[texts]
}

type texts struct {
	statements
	mariadb bool
}

// ready returns the statements. It asks the server what it is, once.
func (r *rows) ready(ctx context.Context) (*texts, error) {
	if q := r.q.Load(); q != nil {
		return q, nil
	}
	mariadb := false
	if r.conn.Dialect == sqldialect.MySQL() {
		var err error
		if mariadb, err = r.conn.IsMariaDB(ctx); err != nil {
			return nil, err
		}
	}
	q := &texts{newStatements(r.table, r.conn.Dialect, mariadb), mariadb}
	r.q.Store(q)
	return q, nil
}

// do runs fn, again where the database was busy, and makes the table where it is
// missing. A context that has ended sends nothing.
func (r *rows) do(ctx context.Context, what string, fn func(*texts) error) error {
	if err := ctx.Err(); err != nil {
		return driver.NotApplied(fmt.Errorf("sqllock: %s: %w", what, context.Cause(ctx)))
	}
	q, err := r.ready(ctx)
	if err != nil {
		return driver.NotApplied(fmt.Errorf("sqllock: %s: %w", what, r.conn.Explain(err)))
	}
	// A deadlock or a conflict of snapshots is over as soon as it is told, and tried
	// again. A wait that came to its limit is not: it has used up the time for it.
	early := time.Now().Add(limit(ctx) * 2 / 3)
	try := func() error {
		err := fn(q)
		if r.conn.Classify(err) != sqldialect.Busy || !time.Now().Before(early) {
			return err
		}
		ctx, cancel := context.WithDeadline(ctx, early)
		defer cancel()
		return r.conn.Retry(ctx, func() error { return fn(q) })
	}
	err = try()
	if r.conn.Classify(err) == sqldialect.Schema {
		if up := r.schema.Up(ctx, r.conn); up != nil {
			return driver.NotApplied(fmt.Errorf("sqllock: %s: %w", what, up))
		}
		err = try()
	}
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("sqllock: %s: %w", what, r.conn.Explain(err))
	if r.conn.NotApplied(err) {
		return driver.NotApplied(wrapped)
	}
	return wrapped
}

// limit is how long the server may let a statement wait for a row: less than the
// request has, so that the answer is "busy, nothing was done" and not silence, and
// so that no statement outlives the request and grants a lease to nobody.
func limit(ctx context.Context) time.Duration {
	left := 5 * time.Second
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	return max(left*3/4, time.Millisecond)
}

// ms is a limit for PostgreSQL: at least 1, for 0 is none.
func ms(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// limited puts the limit in front of a statement that was written for it.
func (r *rows) limited(ctx context.Context, q *texts, query string, args ...any) (string, []any) {
	switch {
	case r.conn.Dialect == sqldialect.Postgres():
		return query, append([]any{ms(limit(ctx))}, args...)
	case q.mariadb:
		// A power of two, so that there are few texts for those who prepare them.
		ms := 1 << (bits.Len64(uint64(limit(ctx).Milliseconds())) - 1)
		return fmt.Sprintf("SET STATEMENT max_statement_time=%g FOR %s", float64(ms)/1000, query), args
	}
	return query, args
}

// text is a text as the database has it: MySQL compares bytes with bytes.
func (r *rows) text(s string) any {
	if r.conn.Dialect == sqldialect.MySQL() {
		return []byte(s)
	}
	return s
}

// label makes of any label a text that every database takes.
func (r *rows) label(s string) any {
	return r.text(strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?"))
}

// acquire asks by one statement.
func (r *rows) acquire(ctx context.Context, c sqldialect.Conn, req driver.Request) (driver.Grant, error) {
	return r.granted(req, func(dest ...any) error {
		return r.do(ctx, "acquire", func(q *texts) error {
			args := []any{r.text(req.Key), req.Token[:], req.TTL.Microseconds(), r.label(req.Label)}
			if r.conn.Dialect == sqldialect.Postgres() {
				args = append([]any{req.Key, req.Token[:]}, args...)
			}
			query, args := r.limited(ctx, q, q.acquire, args...)
			if q.readBack != "" {
				if _, err := c.Exec(ctx, query, args...); err != nil {
					return err
				}
				query, args = q.readBack, []any{r.text(req.Key)}
			}
			return c.QueryRow(ctx, query, args, dest...)
		})
	})
}

// granted is the answer of an acquire whose row ask reads.
func (r *rows) granted(req driver.Request, ask func(dest ...any) error) (driver.Grant, error) {
	var token []byte
	h := driver.Holder{Key: req.Key}
	var since, remaining int64
	if err := ask(&token, &h.Fence, &h.Label, &since, &remaining); err != nil {
		return driver.Grant{}, err
	}
	copy(h.Token[:], token)
	if h.Token == req.Token {
		return driver.Grant{Fence: h.Fence}, nil
	}
	h.Since, h.Remaining = time.UnixMicro(since).UTC(), microseconds(remaining)
	return driver.Grant{}, &driver.HeldError{Holder: h}
}

// renew renews by one statement.
func (r *rows) renew(ctx context.Context, c sqldialect.Conn, h driver.Hold) (driver.Grant, error) {
	var n int64
	err := r.do(ctx, "renew", func(q *texts) (err error) {
		query, args := r.limited(ctx, q, q.renew, h.TTL.Microseconds(), r.text(h.Key), h.Token[:], h.Fence)
		n, err = c.Exec(ctx, query, args...)
		return err
	})
	if err != nil {
		return driver.Grant{}, err
	}
	if n == 0 {
		return driver.Grant{}, driver.ErrNotOurs
	}
	return driver.Grant{Fence: h.Fence}, nil
}

// free runs a statement that frees rows, and tells how many.
func (r *rows) free(ctx context.Context, c sqldialect.Conn, q *texts, query string, args ...any) (n int64, err error) {
	if r.conn.Dialect != sqldialect.Postgres() {
		query, args = r.limited(ctx, q, query, args...)
		return c.Exec(ctx, query, args...)
	}
	query, args = r.limited(ctx, q, query, append(args, r.channel)...)
	return count(ctx, c, query, args)
}

// count runs a query and tells how many rows it had.
func count(ctx context.Context, c sqldialect.Conn, query string, args []any) (n int64, err error) {
	err = c.Query(ctx, query, args, func(sqldialect.Rows) error {
		n++
		return nil
	})
	return n, err
}

// release releases by one statement, and reads where there was nothing to release.
func (r *rows) release(ctx context.Context, c sqldialect.Conn, h driver.Hold) (driver.Released, error) {
	return r.releaseBy(ctx, c, h, func(q *texts) (int64, error) {
		return r.free(ctx, c, q, q.release, r.text(h.Key), h.Token[:], h.Fence)
	})
}

func (r *rows) releaseBy(ctx context.Context, c sqldialect.Conn, h driver.Hold, free func(*texts) (int64, error)) (driver.Released, error) {
	out := driver.ReleasedOK
	err := r.do(ctx, "release", func(q *texts) error {
		for again := true; ; again = false {
			n, err := free(q)
			if err != nil || n > 0 {
				return err
			}
			holder, err := r.holder(ctx, c, q, h.Key)
			switch {
			case errors.Is(err, sql.ErrNoRows):
				out, err = driver.ReleasedGone, nil
			case err == nil && again && holder.Token == h.Token && (h.Fence == 0 || h.Fence == holder.Fence):
				continue // an acquire of unknown outcome was carried out in between
			case err == nil:
				out = driver.ReleasedOther
			}
			return err
		}
	})
	if err != nil {
		return 0, err
	}
	return out, nil
}

func (r *rows) holder(ctx context.Context, c sqldialect.Conn, q *texts, key string) (driver.Holder, error) {
	var h driver.Holder
	err := sql.ErrNoRows
	if e := c.Query(ctx, q.holder, []any{r.text(key)}, func(row sqldialect.Rows) (e error) {
		h, e = scan(row)
		err = nil
		return e
	}); e != nil {
		return h, e
	}
	return h, err
}

func scan(row sqldialect.Rows) (driver.Holder, error) {
	var h driver.Holder
	var token []byte
	var since, remaining int64
	err := row.Scan(&h.Key, &token, &h.Fence, &h.Label, &since, &remaining)
	copy(h.Token[:], token)
	h.Since, h.Remaining = time.UnixMicro(since).UTC(), microseconds(remaining)
	return h, err
}

// microseconds is at least one, because zero stands for "not known".
func microseconds(n int64) time.Duration { return time.Duration(max(n, 1)) * time.Microsecond }

// Inspect implements [driver.Inspector].
func (r *rows) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	return r.inspect(ctx, r.conn, key)
}

func (r *rows) inspect(ctx context.Context, c sqldialect.Conn, key string) (h driver.Holder, err error) {
	free := false
	err = r.do(ctx, "inspect", func(q *texts) (err error) {
		if h, err = r.holder(ctx, c, q, key); errors.Is(err, sql.ErrNoRows) {
			free, err = true, nil
		}
		return err
	})
	if err == nil && free {
		return driver.Holder{}, driver.ErrFree
	}
	return h, err
}

// List implements [driver.Inspector].
func (r *rows) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	var out []driver.Holder
	err := r.do(ctx, "list", func(q *texts) error {
		out = nil
		query, args := q.list, []any{r.text(prefix), limit}
		if end := after(prefix); end != "" {
			query, args = q.listBelow, []any{r.text(prefix), r.text(end), limit}
		}
		return r.conn.Query(ctx, query, args, func(row sqldialect.Rows) error {
			h, err := scan(row)
			out = append(out, h)
			return err
		})
	})
	return out, err
}

// Survey implements [driver.Surveyor] by one statement. It does not tell how many wait.
func (r *rows) Survey(ctx context.Context, keys []string) ([]driver.Holder, error) {
	names := make([]any, len(keys))
	for i, key := range keys {
		names[i] = r.text(key)
	}
	var out []driver.Holder
	err := r.do(ctx, "survey", func(q *texts) error {
		out = nil
		return r.conn.Query(ctx, q.survey+r.conn.List(len(names)), names, func(row sqldialect.Rows) error {
			h, err := scan(row)
			out = append(out, h)
			return err
		})
	})
	return out, err
}

// after is the first text in byte order that does not begin with prefix and
// follows those that do; "" if there is none. It is valid UTF-8, whose byte order
// is that of its code points.
func after(prefix string) string {
	text := []rune(prefix)
	for i := len(text) - 1; i >= 0; i-- {
		switch text[i]++; {
		case text[i] == 0xd800: // a surrogate is no text
			text[i] = 0xe000
		case text[i] > 0x10ffff:
			continue
		}
		return string(text[:i+1])
	}
	return ""
}

// ForceRelease implements [driver.Inspector] by one statement.
func (r *rows) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	var n int64
	err := r.do(ctx, "force release", func(q *texts) (err error) {
		n, err = r.free(ctx, r.conn, q, q.force, r.text(key))
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return driver.ReleasedGone, nil
	}
	return driver.ReleasedOK, nil
}
