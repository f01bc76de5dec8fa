package gormstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Prune implements [store.Store]. It looks at each job's rows along their ends, and
// remembers how far, so that what stays is not looked at in every call.
func (s *Store) Prune(ctx context.Context, r store.PruneRequest) (store.Pruned, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	r, err := r.Checked()
	if err != nil {
		return store.Pruned{}, s.fail("prune", err)
	}
	p := pruner{s: s, r: r, marks: map[markKey]store.Millis{}}
	err = p.run(ctx)
	if err != nil {
		return p.out, s.fail("prune", err)
	}
	return p.out, nil
}

// part is a kind of record that goes at one age.
type part struct {
	name  string
	where string
	age   func(store.Retention) time.Duration
	count func(out *store.Pruned, n int)
}

// ended are the states that a run ends in; the numbers are the stored ones.
const ended = "state IN (3, 4, 5, 6, 7, 8)"

var parts = []part{
	{"keys", "class = 4 AND " + ended, func(t store.Retention) time.Duration { return t.Keys }, func(out *store.Pruned, n int) { out.Keys += n }},
	byState(store.StateSucceeded, "succeeded", "state = 3"),
	byState(store.StateFailed, "failed", "state IN (4, 8)"),
	byState(store.StateCanceled, "canceled", "state = 5"),
	byState(store.StateSkipped, "idle", "state IN (6, 7)"),
}

func byState(st store.State, name, where string) part {
	return part{
		name, where, func(t store.Retention) time.Duration { return t.Of(st) },
		func(out *store.Pruned, n int) { out.Count(st, n) },
	}
}

const (
	// settledTicks and filled pick the rows of a part that a prune changes: ticks that
	// are settled, and rows of class key that have something to lose.
	settledTicks = " AND (class <> 1 OR tick_ms <= ?)"
	filled       = " AND (class <> 4 OR args IS NOT NULL OR result IS NOT NULL OR checkpoint IS NOT NULL OR progress IS NOT NULL)"

	// markLag keeps the marks behind the clock: a run may be committed some time after
	// the instant of its end.
	markLag = time.Hour
)

type markKey struct{ job, part string }

// pruner is one call of Prune.
type pruner struct {
	s     *Store
	r     store.PruneRequest
	out   store.Pruned
	marks map[markKey]store.Millis
	jobs  map[string]*store.JobState
}

func (p *pruner) run(ctx context.Context) error {
	names, err := p.look(ctx)
	if err != nil || len(names) == 0 {
		return err
	}
	// From another job on each time: one that has much to remove, or a call that is cut
	// short, must not keep the same others waiting.
	at := rand.N(len(names))
	for _, name := range slices.Concat(names[at:], names[:at]) {
		for _, pt := range parts {
			if err := p.prunePart(ctx, name, pt); err != nil {
				return err
			}
		}
		if err := p.ranges(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// look collects the jobs, their states, and how far each has been looked at.
func (p *pruner) look(ctx context.Context) ([]string, error) {
	s := p.s
	states, _, err := s.jobStates(ctx, s.conn, p.r.Namespace, p.r.Jobs, "")
	if err != nil {
		return nil, err
	}
	if err := s.conn.QueryRow(ctx, "SELECT "+s.conn.NowMillis, nil, &p.out.Now); err != nil {
		return nil, err
	}
	p.jobs = index(states)
	if !p.r.DryRun {
		err = s.conn.Query(ctx, "SELECT job, part, upto_ms FROM "+s.t.marks+" WHERE ns = ?", []any{p.r.Namespace}, func(from sqldialect.Rows) error {
			var k markKey
			var at store.Millis
			err := from.Scan(&k.job, &k.part, &at)
			p.marks[k] = at
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(p.r.Jobs) > 0 {
		names := slices.Clone(p.r.Jobs)
		slices.Sort(names)
		return slices.Compact(names), nil
	}
	// Kinds that nobody has registered have rows only. Job by job along the index.
	var names []string
	t := s.t.executions
	err = s.conn.Query(ctx, "WITH RECURSIVE names (job) AS (SELECT MIN(job) FROM "+t+" WHERE ns = ?"+
		" UNION ALL SELECT (SELECT MIN(e.job) FROM "+t+" e WHERE e.ns = ? AND e.job > names.job) FROM names WHERE names.job IS NOT NULL)"+
		" SELECT job FROM names WHERE job IS NOT NULL", []any{p.r.Namespace, p.r.Namespace}, func(from sqldialect.Rows) error {
		var name string
		err := from.Scan(&name)
		names = append(names, name)
		return err
	})
	for name := range p.jobs { // with ranges only, perhaps
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// rest is how many records the next transaction may remove.
func (p *pruner) rest() int {
	left := p.r.Limit - p.out.Records()
	if left <= 0 {
		p.out.More = true
	}
	return min(left, p.r.Batch)
}

func (p *pruner) settled(job string) store.Millis {
	if j := p.jobs[job]; j != nil {
		return j.Settled
	}
	return 0 // no tick is
}

// candidate is a row that is to go.
type candidate struct {
	id      []byte
	class   store.Class
	tick    store.Millis
	ended   store.Millis
	version int64
}

func (p *pruner) prunePart(ctx context.Context, job string, pt part) error {
	age := pt.age(p.r.Retention)
	if age == 0 {
		return nil
	}
	cutoff := p.out.Now.Add(-age)
	mark := max(p.marks[markKey{job, pt.name}], 0)
	where := " WHERE ns = ? AND job = ? AND finished_ms > ? AND finished_ms <= ? AND " + pt.where + settledTicks
	if pt.name != "keys" {
		where += filled
	}
	if p.r.DryRun {
		return p.s.conn.Query(ctx, "SELECT class, COUNT(*) FROM "+p.s.t.executions+where+" GROUP BY class",
			[]any{p.r.Namespace, job, mark, cutoff, p.settled(job)}, func(from sqldialect.Rows) error {
				var class store.Class
				var n int
				err := from.Scan(&class, &n)
				p.counted(pt, class, n)
				return err
			})
	}
	for mark < cutoff {
		most := p.rest()
		if most <= 0 {
			return nil
		}
		var rows []candidate
		err := p.s.conn.Query(ctx, "SELECT id, class, tick_ms, finished_ms, version FROM "+p.s.t.executions+where+" ORDER BY finished_ms LIMIT ?",
			[]any{p.r.Namespace, job, mark, cutoff, p.settled(job), most}, func(from sqldialect.Rows) error {
				var c candidate
				err := from.Scan(&c.id, &c.class, &c.tick, &c.ended, &c.version)
				rows = append(rows, c)
				return err
			})
		if err != nil {
			return err
		}
		last, from := len(rows) < most, mark
		if mark = cutoff; !last {
			mark = rows[len(rows)-1].ended - 1 // its like may follow
		}
		if err := p.batch(ctx, job, pt, rows, from, mark); err != nil {
			return err
		}
		if last {
			return nil
		}
	}
	return nil
}

func (p *pruner) counted(pt part, class store.Class, n int) {
	if class == store.ClassKey && pt.name != "keys" {
		p.out.Emptied += n
		return
	}
	pt.count(&p.out, n)
}

// batch removes rows that are still as they were seen, in the order of their IDs.
// The watermark comes before them.
func (p *pruner) batch(ctx context.Context, job string, pt part, rows []candidate, from, mark store.Millis) error {
	slices.SortFunc(rows, func(a, b candidate) int { return bytes.Compare(a.id, b.id) })
	var gone, empty []candidate
	closed := store.Millis(0)
	for _, c := range rows {
		if c.class == store.ClassKey && pt.name != "keys" {
			empty = append(empty, c)
			continue
		}
		gone = append(gone, c)
		if c.class == store.ClassCron {
			closed = max(closed, c.tick)
		}
	}
	mark = p.markAt(job, mark)
	if len(rows) == 0 && mark.Sub(from) < markLag {
		return nil
	}
	var deleted, emptied, attempts int64
	err := p.s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		deleted, emptied, attempts = 0, 0, 0
		if err := p.close(ctx, tx, job, closed); err != nil {
			return err
		}
		var err error
		if deleted, err = p.rows(ctx, tx, "DELETE FROM "+p.s.t.executions, gone); err != nil {
			return err
		}
		if emptied, err = p.rows(ctx, tx, "UPDATE "+p.s.t.executions+
			" SET args = NULL, result = NULL, checkpoint = NULL, progress = NULL, version = version + 1", empty); err != nil {
			return err
		}
		if attempts, err = p.beside(ctx, tx, p.s.t.attempts, "execution_id", rows); err != nil {
			return err
		}
		if _, err = p.beside(ctx, tx, p.s.steps(), "run_id", rows); err != nil || mark <= from {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+p.s.t.marks+" (ns, job, part, upto_ms) VALUES "+tx.List(4)+tx.OnConflict("ns, job, part")+
			"upto_ms = "+tx.Proposed("upto_ms"), p.r.Namespace, job, pt.name, mark)
		return err
	})
	if err != nil {
		return err
	}
	pt.count(&p.out, int(deleted))
	p.out.Emptied += int(emptied)
	p.out.Attempts += int(attempts)
	return nil
}

// markAt is how far a mark may go: not over ticks that are not settled yet, nor over
// runs that may be in the making.
func (p *pruner) markAt(job string, to store.Millis) store.Millis {
	to = min(to, p.out.Now.Add(-markLag))
	if j := p.jobs[job]; j != nil && j.Current().Spec != "" {
		to = min(to, j.Settled.Add(-store.EarlyTolerance))
	}
	return to
}

// close raises the job's prune watermark: ticks up to it are never claimed again.
func (p *pruner) close(ctx context.Context, tx sqldialect.Conn, job string, to store.Millis) error {
	if to == 0 || mutation.On("prune-watermark") {
		return nil
	}
	n, err := tx.Exec(ctx, "UPDATE "+p.s.t.jobs+" SET pruned_ms = "+tx.Greatest+"(pruned_ms, ?), version = version + 1"+
		" WHERE ns = ? AND job = ? AND settled_ms >= ?", to, p.r.Namespace, job, to)
	if err == nil && n != 1 {
		err = fmt.Errorf("job %q is not settled up to %s any more: nothing was pruned", job, to)
	}
	return err
}

// rows runs a statement on the rows that are as they were seen.
func (p *pruner) rows(ctx context.Context, tx sqldialect.Conn, what string, rows []candidate) (int64, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	args := make([]any, 0, 3*len(rows))
	for _, c := range rows {
		args = append(args, c.id)
	}
	for _, c := range rows {
		args = append(args, c.id, c.version)
	}
	return tx.Exec(ctx, what+" WHERE id IN "+tx.List(len(rows))+" AND (id, version) IN "+tx.Tuples(len(rows), 2), args...)
}

// beside deletes what another table keeps of rows that were removed, such as their
// superseded attempts; what belongs to a row that somebody has made pending meanwhile
// stays.
func (p *pruner) beside(ctx context.Context, tx sqldialect.Conn, table, run string, rows []candidate) (int64, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	args := make([]any, len(rows))
	for i, c := range rows {
		args[i] = c.id
	}
	return tx.Exec(ctx, "DELETE FROM "+table+" WHERE "+run+" IN "+tx.List(len(rows))+
		" AND NOT EXISTS (SELECT 1 FROM "+p.s.t.executions+" e WHERE e.id = "+table+"."+run+" AND e.finished_ms = 0)", args...)
}

// ranges removes a job's old stretches.
func (p *pruner) ranges(ctx context.Context, job string) error {
	age := p.r.Retention.Ranges
	if age == 0 || p.jobs[job] == nil {
		return nil
	}
	where := " WHERE ns = ? AND job = ? AND recorded_ms <= ? AND to_ms <= ?"
	args := []any{p.r.Namespace, job, p.out.Now.Add(-age), p.settled(job)}
	if p.r.DryRun {
		var n int
		err := p.s.conn.QueryRow(ctx, "SELECT COUNT(*) FROM "+p.s.t.ranges+where, args, &n)
		p.out.Ranges += n
		return err
	}
	for {
		most := p.rest()
		if most <= 0 {
			return nil
		}
		var keys []any
		closed := store.Millis(0)
		err := p.s.conn.Query(ctx, "SELECT from_ms, to_ms FROM "+p.s.t.ranges+where+" ORDER BY from_ms LIMIT ?", append(slices.Clone(args), most),
			func(from sqldialect.Rows) error {
				var a, b store.Millis
				err := from.Scan(&a, &b)
				keys = append(keys, a, b)
				closed = max(closed, b)
				return err
			})
		if err != nil || len(keys) == 0 {
			return err
		}
		var n int64
		err = p.s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
			err := p.close(ctx, tx, job, closed)
			if err == nil { // a stretch that has grown meanwhile stays
				n, err = tx.Exec(ctx, "DELETE FROM "+p.s.t.ranges+" WHERE ns = ? AND job = ? AND (from_ms, to_ms) IN "+tx.Tuples(len(keys)/2, 2),
					append([]any{p.r.Namespace, job}, keys...)...)
			}
			return err
		})
		if err != nil {
			return err
		}
		p.out.Ranges += int(n)
		if len(keys)/2 < most {
			return nil
		}
	}
}

// Sizes implements [store.Store]. On servers the numbers are the database's own
// estimates, which cost nothing; SQLite counts, which takes about a second for every
// ten million rows, and does not tell bytes.
func (s *Store) Sizes(ctx context.Context) ([]store.TableSize, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	names := []string{s.t.executions, s.t.attempts, s.steps(), s.t.ranges, s.t.jobs, s.t.fences, s.t.marks}
	args := make([]any, len(names))
	for i, n := range names {
		args[i] = n
	}
	var query string
	switch s.conn.Name {
	case "postgres":
		query = "SELECT c.relname, COALESCE(NULLIF(pg_stat_get_live_tuples(c.oid), 0), GREATEST(c.reltuples, 0)::bigint), 1, pg_total_relation_size(c.oid)" +
			" FROM pg_class c WHERE c.relkind = 'r' AND pg_table_is_visible(c.oid) AND c.relname IN " + s.conn.List(len(names))
	case "mysql":
		query = "SELECT table_name, COALESCE(table_rows, 0), 1, COALESCE(data_length + index_length, 0)" +
			" FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN " + s.conn.List(len(names))
	default:
		counts := make([]string, len(names))
		for i, n := range names {
			counts[i] = "SELECT ?, COUNT(*), 0, 0 FROM " + n
		}
		query = strings.Join(counts, " UNION ALL ")
	}
	by := map[string]store.TableSize{}
	err := s.conn.Query(ctx, query, args, func(from sqldialect.Rows) error {
		var t store.TableSize
		err := from.Scan(&t.Name, &t.Rows, &t.Estimate, &t.Bytes)
		by[t.Name] = t
		return err
	})
	if err != nil {
		return nil, s.fail("sizes", err)
	}
	out := make([]store.TableSize, 0, len(names))
	for _, n := range names {
		if t, ok := by[n]; ok {
			out = append(out, t)
		}
	}
	return out, nil
}
