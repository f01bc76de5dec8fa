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
	names := make([]any, 0, 2+len(sorted))
	names = append(names, ns, scopeLock)
	for i := range sorted {
		args = append(args, ns, scopeLock, sorted[i][:], count[sorted[i]])
		names = append(names, sorted[i][:])
	}
	out := lockFences{}
	read := func(from sqldialect.Rows) error {
		var name []byte
		var top int64
		if err := from.Scan(&name, &top); err != nil {
			return err
		}
		k := store.Hash(name)
		out[k] = &fenceRange{next: top - count[k]}
		return nil
	}
	raise := "INSERT INTO " + s.t.fences + " (ns, scope, name, fence) VALUES " + tx.Values(len(sorted), tx.List(4)) +
		tx.OnConflict("ns, scope, name") + "fence = " + s.t.fences + ".fence + " + tx.Proposed("fence")
	if tx.Returning {
		return out, tx.Query(ctx, raise+" RETURNING name, fence", args, read)
	}
	if _, err := tx.Exec(ctx, raise, args...); err != nil {
		return nil, err
	}
	return out, tx.Query(ctx, "SELECT name, fence FROM "+s.t.fences+" WHERE ns = ? AND scope = ? AND name IN "+tx.List(len(sorted)), names, read)
}

// drawJobFences draws numbers from the counters of the jobs, which it locks in key
// order. Jobs that nobody has registered have no counter and are not in the answer.
func (s *Store) drawJobFences(ctx context.Context, tx sqldialect.Conn, ns string, count map[string]int64) (map[string]*fenceRange, error) {
	if len(count) == 0 {
		return nil, nil
	}
	args := []any{ns}
	for _, name := range sortedKeys(count) {
		args = append(args, name)
	}
	out := map[string]*fenceRange{}
	top := map[string]int64{}
	err := tx.Query(ctx, "SELECT job, fence FROM "+s.t.jobs+" WHERE ns = ? AND job IN "+tx.List(len(count))+" ORDER BY job"+tx.LockRows,
		args, func(from sqldialect.Rows) error {
			var name string
			var fence int64
			if err := from.Scan(&name, &fence); err != nil {
				return err
			}
			out[name] = &fenceRange{next: fence}
			top[name] = fence + count[name]
			return nil
		})
	if err != nil {
		return nil, err
	}
	return out, s.setJobFences(ctx, tx, ns, top)
}

// setJobFences writes the counters of jobs that are locked.
func (s *Store) setJobFences(ctx context.Context, tx sqldialect.Conn, ns string, top map[string]int64) error {
	if len(top) == 0 {
		return nil
	}
	if len(top) == 1 {
		for name, fence := range top {
			_, err := tx.Exec(ctx, s.q.raiseOne, fence, ns, name)
			return err
		}
	}
	var args, in []any
	for _, name := range sortedKeys(top) {
		args = append(args, name, top[name])
		in = append(in, name)
	}
	args = append(append(args, ns), in...)
	_, err := tx.Exec(ctx, "UPDATE "+s.t.jobs+" SET fence = CASE job"+strings.Repeat(" WHEN ? THEN ?", len(top))+
		" ELSE fence END, version = version + 1 WHERE ns = ? AND job IN "+tx.List(len(top)), args...)
	return err
}

// drawFences draws a fence for each row that excludes others: from its lock key's
// counter, or its job's; from its key's if the job is not registered. The other rows
// are not in the answer; their own number rises.
func (s *Store) drawFences(ctx context.Context, tx sqldialect.Conn, ns string, rows []row) (map[store.ID]int64, error) {
	jobs := map[string]int64{}
	for i := range rows {
		if x := &rows[i]; !x.plain() && x.LockKey == "" {
			jobs[x.Key.Job]++
		}
	}
	byJob, err := s.drawJobFences(ctx, tx, ns, jobs)
	if err != nil {
		return nil, err
	}
	ofKey := func(x *row) bool { return !x.Active.IsZero() && (x.LockKey != "" || byJob[x.Key.Job] == nil) }
	var keys []store.Hash
	for i := range rows {
		if ofKey(&rows[i]) {
			keys = append(keys, rows[i].Active)
		}
	}
	byKey, err := s.drawLockFences(ctx, tx, ns, keys)
	if err != nil {
		return nil, err
	}
	out := map[store.ID]int64{}
	for i := range rows {
		switch x := &rows[i]; {
		case x.plain():
		case ofKey(x):
			out[x.ID] = byKey.take(x.Active)
		case byJob[x.Key.Job] != nil:
			out[x.ID] = byJob[x.Key.Job].take()
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
