package gormstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// row is an execution as it is stored.
type row struct {
	store.Execution
	since   store.Millis  // start of the stretch that the run is or was in progress, over takeovers
	claimed store.Outcome // what the claim that made the row was told; 0 if something else made it
}

// selected are the columns that scan reads, in its order.
const selected = `id, ns, queue, job, class, tick_ms, key_name, shard, request, lock_key, zone, spec_hash,
  state, reason, mode, priority, attempt, max_attempts, on_crash, cancel_requested, timeout_ms, missed_count,
  owner, owner_label, lease_until_ms, fence, version, run_at_ms, created_ms, since_ms, claimed, started_ms, finished_ms,
  active_key, dedup_hash, args, args_hash, result, checkpoint, error_code, error_text, trace_parent, created_by`

// nothing is a row of them that stands for none: its version is 0.
const nothing = `NULL, '', '', '', 0, 0, '', 0, '', '', '', '',
  0, '', '', 0, 0, 0, 0, 0, 0, 0,
  NULL, '', 0, 0, 0, 0, 0, 0, 0, 0, 0,
  NULL, NULL, NULL, NULL, NULL, NULL, '', '', '', ''`

// scan reads a row; first are where what stands before the selected columns goes.
func scan(from sqldialect.Rows, first ...any) (row, error) {
	var r row
	var id, owner, active, dedup, argsHash []byte
	var timeout int64
	err := from.Scan(append(first, &id, &r.Namespace, &r.Queue, &r.Key.Job, &r.Key.Class, &r.Key.Tick, &r.Key.Name, &r.Key.Shard, &r.Key.Request,
		&r.LockKey, &r.Zone, &r.SpecHash,
		&r.State, &r.Reason, &r.Mode, &r.Priority, &r.Attempt, &r.MaxAttempts, &r.OnCrash, &r.CancelRequested, &timeout, &r.MissedCount,
		&owner, &r.OwnerLabel, &r.LeaseUntil, &r.Fence, &r.Version, &r.RunAt, &r.Created, &r.since, &r.claimed, &r.Started, &r.Finished,
		&active, &dedup, &r.Args, &argsHash, &r.Result, &r.Checkpoint, &r.ErrorCode, &r.ErrorText, &r.TraceParent, &r.CreatedBy)...)
	if err != nil {
		return row{}, err
	}
	r.Timeout = time.Duration(timeout) * time.Millisecond
	copy(r.ID[:], id)
	copy(r.Owner[:], owner)
	copy(r.Active[:], active)
	copy(r.Dedup[:], dedup)
	copy(r.ArgsHash[:], argsHash)
	return r, nil
}

// rowsOf runs a query over the selected columns.
func rowsOf(ctx context.Context, c sqldialect.Conn, query string, args []any) ([]row, error) {
	var out []row
	err := c.Query(ctx, query, args, func(from sqldialect.Rows) error {
		r, err := scan(from)
		out = append(out, r)
		return err
	})
	return out, err
}

// leanColumns and otherColumns go with insertSQL and values.
const (
	leanColumns = `id, ns, queue, job, class, tick_ms, run_hash, active_key, active_hash, zone, spec_hash, state,
  attempt, max_attempts, on_crash, timeout_ms, owner, owner_label, lease_until_ms, fence, started_ms, since_ms, claimed, finished_ms`
	otherColumns = `, key_name, shard, request, dedup_hash, lock_key, reason, mode, priority, missed_count, args, args_hash, trace_parent, created_by`
)

// insertSQL leaves the instants to the database's clock where they are NULL. Lean
// rows have their defaults in the other columns.
func insertSQL(t tables, d *sqldialect.Dialect, rows int, lean bool) string {
	columns, n := leanColumns, 24
	if !lean {
		columns, n = columns+otherColumns, n+13
	}
	row := "(" + strings.Repeat("?, ", n) + "COALESCE(?, " + d.NowMillis + "), COALESCE(?, " + d.NowMillis + ") + ?)"
	return "INSERT INTO " + t.executions + " (" + columns + ", created_ms, run_at_ms) VALUES " + d.Values(rows, row)
}

// inserts are the texts for one row, which are asked for most.
type inserts struct {
	plain     string // fails if it cannot
	returning string // answers the row, if it is made
}

func newInserts(t tables, d *sqldialect.Dialect, lean bool) inserts {
	plain := insertSQL(t, d, 1, lean)
	return inserts{d.Bind(plain), d.Bind(plain + insertReturning(d))}
}

func insertReturning(d *sqldialect.Dialect) string {
	return d.InsertReturning("id, run_hash, version, fence, created_ms, run_at_ms")
}

// insertMax is the number of rows of one INSERT; SQLite takes 32766 parameters.
const insertMax = 500

// guardedMax is the number of rows that one guarded update takes.
const guardedMax = 1000

// fresh is a row to be inserted.
type fresh struct {
	row
	hash  store.Hash    // of the key
	delay time.Duration // added to RunAt
	hold  bool          // take the active key
}

// newRow makes the row of n. Its instants are the database's if now is 0.
func newRow(ns string, n *store.NewExecution, state store.State, reason store.Reason, now store.Millis) fresh {
	f := fresh{hash: n.Key.Hash(), delay: n.Delay}
	f.Execution = store.Execution{
		ID: n.ID, Namespace: ns, Queue: n.Queue, Key: n.Key, LockKey: n.LockKey, Zone: n.Zone, SpecHash: n.SpecHash,
		State: state, Reason: reason, Mode: n.Mode, Priority: n.Priority, MaxAttempts: n.MaxAttempts, OnCrash: n.OnCrash,
		Timeout: n.Timeout.Truncate(time.Millisecond), MissedCount: n.MissedCount, Version: 1,
		RunAt: n.RunAt, Created: now, Active: activeKey(n),
		Args: bytes.Clone(n.Args), ArgsHash: store.HashArgs(n.Args), TraceParent: n.TraceParent, CreatedBy: n.CreatedBy,
	}
	if now != 0 {
		if f.RunAt == 0 {
			f.RunAt = now
		}
		f.RunAt, f.delay = f.RunAt.Add(f.delay), 0
		if state != store.StatePending {
			f.Finished = now
		}
	}
	if state == store.StatePending {
		f.Dedup = n.Dedup
	}
	return f
}

// activeKey is what the run holds while it runs. Runs with a lock key exclude
// each other also where the caller named no active key.
func activeKey(n *store.NewExecution) store.Hash {
	if n.Active.IsZero() && n.LockKey != "" {
		return store.ActiveQueue(n.Key.Job, n.LockKey)
	}
	return n.Active
}

// lean reports whether the other columns have their defaults.
func (f *fresh) lean() bool {
	return f.Key.Name == "" && f.Key.Shard == 0 && f.Key.Request == "" && f.Dedup.IsZero() && f.LockKey == "" &&
		f.Reason == store.ReasonNone && f.Mode == store.ModeNone && f.Priority == 0 && f.MissedCount == 0 &&
		len(f.Args) == 0 && f.ArgsHash.IsZero() && f.TraceParent == "" && f.CreatedBy == ""
}

func (f *fresh) values(args []any, lean bool) []any {
	var held store.Hash
	if f.hold {
		held = f.Active
	}
	args = append(args,
		f.ID[:], f.Namespace, f.Queue, f.Key.Job, f.Key.Class, f.Key.Tick, f.hash[:], hashOrNull(f.Active), hashOrNull(held), f.Zone, f.SpecHash, f.State,
		f.Attempt, f.MaxAttempts, f.OnCrash, f.Timeout.Milliseconds(), ownerOrNull(f.Owner), f.OwnerLabel, f.LeaseUntil, f.Fence,
		f.Started, f.since, f.claimed, f.Finished)
	if !lean {
		args = append(args, f.Key.Name, f.Key.Shard, f.Key.Request, hashOrNull(f.Dedup), f.LockKey, f.Reason, f.Mode, f.Priority, f.MissedCount,
			bytesOrNull(f.Args), hashOrNull(f.ArgsHash), f.TraceParent, f.CreatedBy)
	}
	return append(args, millisOrNull(f.Created), millisOrNull(f.RunAt), f.delay.Milliseconds())
}

// insert inserts rows in order; those that break a unique index are passed over,
// and the caller reads back which.
func (s *Store) insert(ctx context.Context, c sqldialect.Conn, rows []*fresh) error {
	_, err := insert(ctx, c, s.t, rows)
	return err
}

// insertAndRead answers the rows that then are under the run hashes, whoever made
// them. Those that the INSERT returned need not be read back. Lock ends the statement
// that reads the others.
func insertAndRead(ctx context.Context, c sqldialect.Conn, t tables, ns string, rows []*fresh, hashes []store.Hash, lock string) (map[store.Hash]*row, error) {
	made, err := insert(ctx, c, t, rows)
	if err != nil {
		return nil, err
	}
	var rest []store.Hash
	for _, h := range hashes {
		if made[h] == nil {
			rest = append(rest, h)
		}
	}
	if len(rest) == 0 {
		return made, nil
	}
	found, err := byHash(ctx, c, t, ns, rest, lock)
	maps.Copy(found, made)
	return found, err
}

// insert inserts rows in order; those that break a unique index are passed over. It
// answers by run hash the rows that are known to be as given, which may be none, with
// the instants that the database gave them. The number of rows that a driver calls changed decides nothing: MariaDB counts one that it
// has only found where clientFoundRows is set.
func insert(ctx context.Context, c sqldialect.Conn, t tables, rows []*fresh) (map[store.Hash]*row, error) {
	byID := make(map[store.ID]*fresh, len(rows))
	for _, f := range rows {
		byID[f.ID] = f
	}
	made := make(map[store.Hash]*row, len(rows))
	for some := range slices.Chunk(rows, insertMax) {
		lean := len(some) == 1 && some[0].lean()
		one := &t.insertOne
		if lean {
			one = &t.insertLean
		}
		args := make([]any, 0, 40*len(some))
		for _, f := range some {
			args = f.values(args, lean)
		}
		if mutation.On("read-back") || mutation.On("rows-affected") {
			changed, err := c.Exec(ctx, insertSQL(t, c.Dialect, len(some), lean)+c.InsertIgnore, args...)
			if err != nil {
				return nil, err
			}
			if !mutation.On("rows-affected") || changed == int64(len(some)) {
				for i := range some {
					made[some[i].hash] = &some[i].row
				}
			}
			continue
		}
		if f := some[0]; len(some) == 1 && f.Created != 0 && c.Dialect == sqldialect.SQLite() {
			// Nothing needs to be read: it is made, or refused without an end of the
			// transaction.
			switch _, err := c.Exec(ctx, one.plain, args...); {
			case err == nil:
				made[f.hash] = &f.row
			case c.Classify(err) != sqldialect.Unique:
				return nil, err
			}
			continue
		}
		query := one.returning
		if len(some) > 1 {
			query = insertSQL(t, c.Dialect, len(some), false) + insertReturning(c.Dialect)
		}
		err := c.Query(ctx, query, args, func(from sqldialect.Rows) error {
			var id, hash []byte
			var version, fence int64
			var created, runAt store.Millis
			if err := from.Scan(&id, &hash, &version, &fence, &created, &runAt); err != nil {
				return err
			}
			// A row that was met may be another's, or the caller's own of an earlier
			// request: that has changed since, or has an older fence, or does not differ.
			f := byID[store.ID(id)]
			if f != nil && bytes.Equal(f.hash[:], hash) && f.Version == version && f.Fence == fence {
				f.Created, f.RunAt = created, runAt
				made[f.hash] = &f.row
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

// byHash reads the rows with one of the run hashes. Lock ends the statement.
func byHash(ctx context.Context, c sqldialect.Conn, t tables, ns string, hashes []store.Hash, lock string) (map[store.Hash]*row, error) {
	return byColumn(ctx, c, t, "run_hash", ns, hashes, lock, func(r *row) store.Hash { return r.Key.Hash() })
}

// byDedup reads the rows that block one of the dedup hashes.
func byDedup(ctx context.Context, c sqldialect.Conn, t tables, ns string, hashes []store.Hash, lock string) (map[store.Hash]*row, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	return byColumn(ctx, c, t, "dedup_hash", ns, hashes, lock, func(r *row) store.Hash { return r.Dedup })
}

func byColumn(ctx context.Context, c sqldialect.Conn, t tables, column, ns string, hashes []store.Hash, lock string, key func(*row) store.Hash) (map[store.Hash]*row, error) {
	out := make(map[store.Hash]*row, len(hashes))
	for len(hashes) > 0 {
		n := min(len(hashes), insertMax)
		args := make([]any, 1, n+1)
		args[0] = ns
		for i := range hashes[:n] {
			args = append(args, hashes[i][:])
		}
		rows, err := rowsOf(ctx, c, "SELECT "+selected+" FROM "+t.executions+" WHERE ns = ? AND "+column+" IN "+c.List(n)+lock, args)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			out[key(&rows[i])] = &rows[i]
		}
		hashes = hashes[n:]
	}
	return out, nil
}

// atAttempts picks rows by ID, guarded by their attempt. The plain list of IDs is
// there for planners that do not look into a list of tuples for an index.
func atAttempts(d *sqldialect.Dialect, n int) string {
	return "id IN " + d.List(n) + " AND (id, attempt) IN " + d.Tuples(n, 2)
}

// checkNew refuses rows before any of them is written, and gives an ID to those
// that have none, in rising order: rows of one request with the same instant keep
// their order. The IDs are kept when a transaction is retried.
func checkNew(rows []store.NewExecution) error {
	nameNew(rows)
	keys := make(map[store.ID]store.Key, len(rows))
	for i := range rows {
		n := &rows[i]
		if c := n.Key.Class; c < store.ClassCron || c > store.ClassKey {
			return fmt.Errorf("%s: Key.Class is %v: use one of the classes", n.Key, c)
		}
		if n.Key.Job == "" {
			return errors.New("no Key.Job: name the job or kind")
		}
		if key, taken := keys[n.ID]; taken && key != n.Key {
			return fmt.Errorf("%s: ID %s belongs to %s: give every run an ID of its own", n.Key, n.ID, key)
		}
		keys[n.ID] = n.Key
	}
	return nil
}

func nameNew(rows []store.NewExecution) {
	var nameless []int
	var ids []store.ID
	for i := range rows {
		if rows[i].ID == (store.ID{}) {
			nameless = append(nameless, i)
			ids = append(ids, store.NewID(store.MillisOf(time.Now())))
		}
	}
	slices.SortFunc(ids, func(a, b store.ID) int { return bytes.Compare(a[:], b[:]) })
	for n, i := range nameless {
		rows[i].ID = ids[n]
	}
}

func errIDTaken(n *store.NewExecution) error {
	return fmt.Errorf("%s: ID %s belongs to another run: give every run an ID of its own", n.Key, n.ID)
}

func hashOrNull(h store.Hash) any {
	if h.IsZero() {
		return nil
	}
	return h[:]
}

func ownerOrNull(o store.Owner) any {
	if o == (store.Owner{}) {
		return nil
	}
	return o[:]
}

func millisOrNull(m store.Millis) any {
	if m == 0 {
		return nil
	}
	return int64(m)
}

func bytesOrNull(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}
