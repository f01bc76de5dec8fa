package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// minTTL leaves room for a durable write at every renewal.
const minTTL = 100 * time.Millisecond

// Driver is the lock backend. It is safe for concurrent use and holds nothing
// but the database, which its maker closes.
type Driver struct {
	prefix string
	conn   sqldialect.Conn
	schema *sqldialect.Set
	q      statements
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
)

// Limits implements [driver.Limiter].
func (d *Driver) Limits() driver.Limits { return driver.Limits{MinTTL: minTTL} }

type statements struct {
	acquire, renew, renewMany, release string
	holder, list, listBelow, force     string
}

// A grant is live while until_us >= now. The clock is cut to its resolution when
// the end is set and when it is compared, so that the sign must include the end:
// else a grant could end a tick of the clock too early.
func newStatements(table string, d *sqldialect.Dialect) statements {
	live := "until_us >= " + d.NowMicros
	mine := " AND token = ? AND (fence = ? OR ? = 0)"
	exact := " AND token = ? AND fence = ?"
	if mutation.On("release-without-token") {
		mine = " AND (1 = 1 OR token = ? OR fence = ? OR ? = 0)"
	}
	if mutation.On("renew-without-token") {
		exact = " AND (1 = 1 OR token = ? OR fence = ?)"
	}
	held := table + "." + live
	lived := held
	if mutation.On("lock-exclusion") {
		lived = "1 = 0"
	}
	read := "SELECT name, token, fence, label, since_us, until_us - " + d.NowMicros + " FROM " + table
	return statements{
		// One statement grants, extends or refuses, and answers with the row as it is
		// then. Where it refuses, it writes what is there already, which SQLite does
		// not write to the disk. The order serves MySQL, which assigns from left to
		// right.
		acquire: "INSERT INTO " + table + " (name, token, fence, since_us, until_us, label) VALUES (?, ?, " + d.NowMicros + ", " + d.NowMicros +
			", " + d.NowMicros + " + ?, ?) ON CONFLICT (name) DO UPDATE SET" +
			" fence = CASE WHEN " + lived + " THEN " + table + ".fence ELSE " + table + ".fence + 1 END," +
			" since_us = CASE WHEN " + lived + " THEN " + table + ".since_us ELSE excluded.since_us END," +
			" label = CASE WHEN " + lived + " AND " + table + ".token <> excluded.token THEN " + table + ".label ELSE excluded.label END," +
			" until_us = CASE WHEN " + lived + " AND " + table + ".token <> excluded.token THEN " + table + ".until_us ELSE excluded.until_us END," +
			" token = CASE WHEN " + lived + " THEN " + table + ".token ELSE excluded.token END" +
			" RETURNING token, fence, label, since_us, until_us - " + d.NowMicros,
		renew:     "UPDATE " + table + " SET until_us = " + d.NowMicros + " + ?, beats = beats + 1 WHERE name = ?" + exact + " AND " + live,
		renewMany: "UPDATE " + table + " SET until_us = " + d.NowMicros + " + ?, beats = beats + 1 WHERE " + live + " AND name IN ",
		release:   "UPDATE " + table + " SET until_us = 0, beats = beats + 1 WHERE name = ?" + mine + " AND " + live,
		holder:    read + " WHERE name = ? AND " + live,
		list:      read + " WHERE name >= ? AND " + live + " ORDER BY name LIMIT ?",
		listBelow: read + " WHERE name >= ? AND name < ? AND " + live + " ORDER BY name LIMIT ?",
		force:     "UPDATE " + table + " SET until_us = 0, fence = fence + 1, beats = beats + 1 WHERE name = ? AND " + live,
	}
}

// do runs fn, and makes the table where it is missing. A context that has ended
// sends nothing.
func (d *Driver) do(ctx context.Context, what string, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return driver.NotApplied(fmt.Errorf("sqllock: %s: %w", what, context.Cause(ctx)))
	}
	err := fn()
	if d.conn.Classify(err) == sqldialect.Schema {
		if up := d.schema.Up(ctx, d.conn); up != nil {
			return driver.NotApplied(fmt.Errorf("sqllock: %s: %w", what, up))
		}
		err = fn()
	}
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("sqllock: %s: %w", what, d.conn.Explain(err))
	if d.conn.NotApplied(err) {
		return driver.NotApplied(wrapped)
	}
	return wrapped
}

// Acquire implements [driver.Driver] by one statement.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	var token []byte
	h := driver.Holder{Key: r.Key}
	var since, remaining int64
	err := d.do(ctx, "acquire", func() error {
		return d.conn.QueryRow(ctx, d.q.acquire, []any{r.Key, r.Token[:], r.TTL.Microseconds(), r.Label},
			&token, &h.Fence, &h.Label, &since, &remaining)
	})
	if err != nil {
		return driver.Grant{}, err
	}
	copy(h.Token[:], token)
	if h.Token == r.Token {
		return driver.Grant{Fence: h.Fence}, nil
	}
	h.Since, h.Remaining = time.UnixMicro(since).UTC(), microseconds(remaining)
	return driver.Grant{}, &driver.HeldError{Holder: h}
}

// Renew implements [driver.Driver] by one statement.
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	var n int64
	err := d.do(ctx, "renew", func() (err error) {
		n, err = d.conn.Exec(ctx, d.q.renew, h.TTL.Microseconds(), h.Key, h.Token[:], h.Fence)
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

// RenewBatch implements [driver.BatchRenewer] by one statement for each TTL that
// the holds have, which is one as a rule.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	groups := map[time.Duration][]int{}
	for i := range holds {
		groups[holds[i].TTL] = append(groups[holds[i].TTL], i)
	}
	for ttl, all := range groups {
		for len(all) > 0 {
			n := min(len(all), batchMax)
			d.renewGroup(ctx, ttl, holds, all[:n], errs)
			all = all[n:]
		}
	}
	return errs
}

// batchMax is the number of holds of one statement; SQLite takes 32766 parameters.
const batchMax = 5000

func (d *Driver) renewGroup(ctx context.Context, ttl time.Duration, holds []driver.Hold, group []int, errs []error) {
	type grant struct {
		key   string
		token driver.Token
	}
	// The plain list of names is there for planners that do not look into a list
	// of tuples for an index.
	args := make([]any, 0, 1+4*len(group))
	args = append(args, ttl.Microseconds())
	for _, i := range group {
		args = append(args, holds[i].Key)
	}
	for _, i := range group {
		args = append(args, holds[i].Key, holds[i].Token[:], holds[i].Fence)
	}
	renewed := make(map[grant]int64, len(group))
	err := d.do(ctx, "renew", func() error {
		return d.conn.Query(ctx, d.q.renewMany+d.conn.List(len(group))+" AND (name, token, fence) IN "+d.conn.Tuples(len(group), 3)+" RETURNING name, token, fence", args, func(row sqldialect.Rows) error {
			var g grant
			var token []byte
			var fence int64
			err := row.Scan(&g.key, &token, &fence)
			copy(g.token[:], token)
			renewed[g] = fence
			return err
		})
	})
	for _, i := range group {
		switch {
		case err != nil:
			errs[i] = err
		case renewed[grant{holds[i].Key, holds[i].Token}] != holds[i].Fence:
			errs[i] = driver.ErrNotOurs
		}
	}
}

// Release implements [driver.Driver] by one statement, and a read where there was
// nothing to release.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	out := driver.ReleasedOK
	err := d.do(ctx, "release", func() error {
		n, err := d.conn.Exec(ctx, d.q.release, h.Key, h.Token[:], h.Fence, h.Fence)
		if err != nil || n > 0 {
			return err
		}
		_, err = d.holder(ctx, h.Key)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			out, err = driver.ReleasedGone, nil
		case err == nil:
			out = driver.ReleasedOther
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return out, nil
}

func (d *Driver) holder(ctx context.Context, key string) (driver.Holder, error) {
	var h driver.Holder
	err := sql.ErrNoRows
	if e := d.conn.Query(ctx, d.q.holder, []any{key}, func(row sqldialect.Rows) (e error) {
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
func (d *Driver) Inspect(ctx context.Context, key string) (h driver.Holder, err error) {
	free := false
	err = d.do(ctx, "inspect", func() (err error) {
		if h, err = d.holder(ctx, key); errors.Is(err, sql.ErrNoRows) {
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
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	query, args := d.q.list, []any{prefix, limit}
	if end := after(prefix); end != "" {
		query, args = d.q.listBelow, []any{prefix, end, limit}
	}
	var out []driver.Holder
	err := d.do(ctx, "list", func() error {
		out = nil
		return d.conn.Query(ctx, query, args, func(row sqldialect.Rows) error {
			h, err := scan(row)
			out = append(out, h)
			return err
		})
	})
	return out, err
}

// after is the first key in byte order that does not begin with prefix and
// follows those that do; "" if there is none.
func after(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return ""
}

// ForceRelease implements [driver.Inspector] by one statement.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	var n int64
	err := d.do(ctx, "force release", func() (err error) {
		n, err = d.conn.Exec(ctx, d.q.force, key)
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
