package gormstore

import (
	"context"
	"slices"
	"strings"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// fenceRange hands out the numbers that were drawn from a counter.
type fenceRange struct{ next int64 }

func (f *fenceRange) take() int64 {
	f.next++
	return f.next
}

// lockFences hands out the numbers drawn per lock key.
type lockFences map[store.Hash]*fenceRange

func (f lockFences) take(key store.Hash) int64 { return f[key].take() }

const scopeLock = "lock"

// drawLockFences draws one number per key from the counters of the lock keys,
// which exclude each other by them. It sends nothing when there are no keys.
func (s *Store) drawLockFences(ctx context.Context, tx sqldialect.Conn, ns string, keys []store.Hash) (lockFences, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	count := map[store.Hash]int64{}
	for _, k := range keys {
		count[k]++
	}
	sorted := make([]store.Hash, 0, len(count))
	for k := range count {
		sorted = append(sorted, k)
	}
	slices.SortFunc(sorted, func(a, b store.Hash) int { return slices.Compare(a[:], b[:]) })
	args := make([]any, 0, 4*len(sorted))
	for i := range sorted {
		args = append(args, ns, scopeLock, sorted[i][:], count[sorted[i]])
	}
	out := lockFences{}
	err := tx.Query(ctx, "INSERT INTO "+s.t.fences+" (ns, scope, name, fence) VALUES "+tx.Values(len(sorted), tx.List(4))+
		" ON CONFLICT (ns, scope, name) DO UPDATE SET fence = "+s.t.fences+".fence + excluded.fence RETURNING name, fence",
		args, func(from sqldialect.Rows) error {
			var name []byte
			var top int64
			if err := from.Scan(&name, &top); err != nil {
				return err
			}
			k := store.Hash(name)
			out[k] = &fenceRange{next: top - count[k]}
			return nil
		})
	return out, err
}

// drawJobFences draws numbers from the counters of the jobs. Jobs that nobody has
// registered have no counter and are not in the answer.
func (s *Store) drawJobFences(ctx context.Context, tx sqldialect.Conn, ns string, count map[string]int64) (map[string]*fenceRange, error) {
	if len(count) == 0 {
		return nil, nil
	}
	var args, in []any
	for _, name := range sortedKeys(count) {
		args = append(args, name, count[name])
		in = append(in, name)
	}
	args = append(append(args, ns), in...)
	out := map[string]*fenceRange{}
	err := tx.Query(ctx, "UPDATE "+s.t.jobs+" SET fence = fence + CASE job"+strings.Repeat(" WHEN ? THEN ?", len(count))+
		" ELSE 0 END, version = version + 1 WHERE ns = ? AND job IN "+tx.List(len(count))+" RETURNING job, fence",
		args, func(from sqldialect.Rows) error {
			var name string
			var top int64
			if err := from.Scan(&name, &top); err != nil {
				return err
			}
			out[name] = &fenceRange{next: top - count[name]}
			return nil
		})
	return out, err
}

// drawFences draws a fence for each row that excludes others: from its lock key's
// counter, or its job's. The other rows are not in the answer; their own number
// rises.
func (s *Store) drawFences(ctx context.Context, tx sqldialect.Conn, ns string, rows []candidate) (map[store.ID]int64, error) {
	jobs := map[string]int64{}
	var locks []store.Hash
	for i := range rows {
		switch c := &rows[i]; {
		case c.plain():
		case c.locked:
			locks = append(locks, c.active)
		default:
			jobs[c.job]++
		}
	}
	byJob, err := s.drawJobFences(ctx, tx, ns, jobs)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if c := &rows[i]; !c.plain() && !c.locked && byJob[c.job] == nil && !c.active.IsZero() {
			c.locked = true // its job is not registered: the key has the counter
			locks = append(locks, c.active)
		}
	}
	byLock, err := s.drawLockFences(ctx, tx, ns, locks)
	if err != nil {
		return nil, err
	}
	out := map[store.ID]int64{}
	for i := range rows {
		switch c := &rows[i]; {
		case c.plain():
		case c.locked:
			out[c.id] = byLock.take(c.active)
		case byJob[c.job] != nil:
			out[c.id] = byJob[c.job].take()
		}
	}
	return out, nil
}

func sortedKeys(m map[string]int64) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
