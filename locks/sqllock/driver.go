package sqllock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks/driver"
)

// minTTL leaves room for a durable write at every renewal.
const minTTL = 100 * time.Millisecond

// Driver is the lock backend of mode lease. It is safe for concurrent use. Its maker
// closes it, and then the database.
type Driver struct {
	rows
	lines lines
	files *fileWaker // nil but on SQLite
}

var (
	_ driver.Driver       = (*Driver)(nil)
	_ driver.BatchRenewer = (*Driver)(nil)
	_ driver.Queuer       = (*Driver)(nil)
	_ driver.Inspector    = (*Driver)(nil)
	_ driver.Limiter      = (*Driver)(nil)
	_ driver.Waker        = (*Driver)(nil)
)

// Limits implements [driver.Limiter].
func (r *rows) Limits() driver.Limits { return driver.Limits{MinTTL: minTTL} }

// Serves implements [driver.Partial]: the rows tell all that is asked.
func (r *rows) Serves(any) bool { return true }

// Serves implements [driver.Partial]: there is a line where the server has session
// locks and the pool a connection to spare, and a file to watch on SQLite.
func (d *Driver) Serves(iface any) bool {
	switch iface.(type) {
	case *driver.Queuer:
		return d.lines.allowed() > 0
	case *driver.Waker:
		return d.files != nil
	}
	return true
}

// Close closes the connections of those who waited, and ends what listens for them. It
// leaves the database open.
func (d *Driver) Close() error {
	d.lines.close()
	if d.files != nil {
		d.files.hints.Close()
	}
	return nil
}

// ForceRelease implements [driver.Inspector] by one statement.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	out, err := d.rows.ForceRelease(ctx, key)
	return d.freed(key, out, err)
}

// Inspect implements [driver.Inspector].
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	h, err := d.rows.Inspect(ctx, key)
	if err != nil {
		return h, err
	}
	one := []driver.Holder{h}
	_ = d.lines.count(ctx, d.conn, one) // then it is not known
	return one[0], nil
}

// List implements [driver.Inspector].
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	all, err := d.rows.List(ctx, prefix, limit)
	if err == nil {
		_ = d.lines.count(ctx, d.conn, all) // then it is not known
	}
	return all, err
}

// Acquire implements [driver.Driver] by one statement.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return d.acquire(ctx, d.conn, r)
}

// Renew implements [driver.Driver] by one statement.
func (d *Driver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	return d.renew(ctx, d.conn, h)
}

// Release implements [driver.Driver] by one statement, and a read where there was
// nothing to release.
func (d *Driver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if p := d.lines.take(grant{h.Key, h.Token}); p != nil {
		return d.handOver(ctx, p, h)
	}
	out, err := d.release(ctx, d.conn, h)
	return d.freed(h.Key, out, err)
}

// RenewBatch implements [driver.BatchRenewer] by one statement for each TTL that
// the holds have, which is one as a rule.
func (d *Driver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	return d.renewAll(ctx, holds)
}

func (r *rows) renewAll(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	groups := map[time.Duration][]int{}
	for i := range holds {
		groups[holds[i].TTL] = append(groups[holds[i].TTL], i)
	}
	for ttl, all := range groups {
		// In key order, so that batches that meet wait for each other in one direction.
		slices.SortFunc(all, func(a, b int) int { return cmp.Compare(holds[a].Key, holds[b].Key) })
		for len(all) > 0 {
			n := min(len(all), batchMax(r.conn.Dialect))
			r.renewGroup(ctx, ttl, holds, all[:n], errs)
			all = all[n:]
		}
	}
	return errs
}

// batchMax is the number of holds of one statement. SQLite takes 32766 parameters,
// and MariaDB makes a join of a list of 1000 and more.
func batchMax(d *sqldialect.Dialect) int {
	if d == sqldialect.MySQL() {
		return 500
	}
	return 5000
}

type grant struct {
	key   string
	token driver.Token
}

func (r *rows) renewGroup(ctx context.Context, ttl time.Duration, holds []driver.Hold, group []int, errs []error) {
	renewed := make(map[grant]int64, len(group))
	collect := func(row sqldialect.Rows) error {
		var g grant
		var token []byte
		var fence int64
		err := row.Scan(&g.key, &token, &fence)
		copy(g.token[:], token)
		renewed[g] = fence
		return err
	}
	err := r.do(ctx, "renew", func(q *texts) error {
		clear(renewed)
		where, args := r.those(holds, group)
		query, args := r.limited(ctx, q, q.renewMany+where, append([]any{ttl.Microseconds()}, args...)...)
		if q.alive == "" {
			return r.conn.Query(ctx, query, args, collect)
		}
		n, err := r.conn.Exec(ctx, query, args...)
		if err != nil {
			return err
		}
		if n == int64(len(group)) {
			for _, i := range group {
				renewed[grant{holds[i].Key, holds[i].Token}] = holds[i].Fence
			}
			return nil
		}
		// Some are gone: whatever is alive is renewed.
		where, args = r.those(holds, group)
		return r.conn.Query(ctx, q.alive+where, args, collect)
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

// those ends a statement for the holds of the group, with its parameters.
func (r *rows) those(holds []driver.Hold, group []int) (where string, args []any) {
	if r.conn.Dialect == sqldialect.Postgres() {
		// One text for any number of holds, which the client prepares once.
		names, tokens, fences := make([]string, len(group)), make([][]byte, len(group)), make([]int64, len(group))
		for at, i := range group {
			names[at], tokens[at], fences[at] = holds[i].Key, holds[i].Token[:], holds[i].Fence
		}
		return "", []any{names, tokens, fences}
	}
	// The plain list of names is there for planners that do not look into a list
	// of tuples for an index.
	args = make([]any, 0, 4*len(group))
	for _, i := range group {
		args = append(args, r.text(holds[i].Key))
	}
	for _, i := range group {
		args = append(args, r.text(holds[i].Key), holds[i].Token[:], holds[i].Fence)
	}
	where = r.conn.List(len(group)) + " AND (name, token, fence) IN " + r.conn.Tuples(len(group), 3)
	if r.conn.Dialect == sqldialect.SQLite() {
		where += " RETURNING name, token, fence"
	}
	return where, args
}
