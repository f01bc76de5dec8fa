package gormstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Heartbeat implements [store.Store].
func (s *Store) Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := (hand{r.Owner, "", r.Lease}).check(); err != nil {
		return store.Heartbeats{}, s.fail("heartbeat", err)
	}
	if len(r.Beats) == 0 {
		return store.Heartbeats{Beats: []store.BeatAnswer{}}, nil
	}
	var out store.Heartbeats
	all := r.Beats
	for beats := range slices.Chunk(all, guardedMax) {
		r.Beats = beats
		err := s.conn.Retry(ctx, func() error {
			some, err := s.beat(ctx, s.conn, r)
			if err == nil {
				out.Now = max(out.Now, some.Now)
				out.Beats = append(out.Beats, some.Beats...)
			}
			return err
		})
		if err != nil {
			return store.Heartbeats{}, s.fail("heartbeat", err)
		}
	}
	return out, nil
}

func (s *Store) beat(ctx context.Context, c sqldialect.Conn, r store.HeartbeatRequest) (store.Heartbeats, error) {
	args := make([]any, 0, 3+3*len(r.Beats))
	args = append(args, r.Lease.Milliseconds(), r.Namespace, r.Owner[:])
	for i := range r.Beats {
		args = append(args, r.Beats[i].ID[:])
	}
	for i := range r.Beats {
		args = append(args, r.Beats[i].ID[:], r.Beats[i].Attempt)
	}
	at := make(map[store.Beat]int, len(r.Beats))
	out := store.Heartbeats{Beats: make([]store.BeatAnswer, len(r.Beats))}
	for i, b := range r.Beats {
		at[b] = i
		out.Beats[i].Lost = true
	}
	read := func(from sqldialect.Rows) error {
		var id []byte
		var b store.Beat
		var cancel bool
		if err := from.Scan(&id, &b.Attempt, &cancel, &out.Now); err != nil {
			return err
		}
		b.ID = store.ID(id)
		out.Beats[at[b]] = store.BeatAnswer{CancelRequested: cancel}
		return nil
	}
	answer := "id, attempt, cancel_requested, " + c.NowMillis
	held := " WHERE " + s.t.ofNS + " AND owner = ? AND state = 2 AND " + atAttempts(c.Dialect, len(r.Beats))
	renew := "UPDATE " + s.t.byID + " SET lease_until_ms = " + c.NowMillis + " + ?, version = version + 1" + held
	if c.Returning {
		return out, c.Query(ctx, renew+" RETURNING "+answer, args, read)
	}
	if _, err := c.Exec(ctx, renew, args...); err != nil {
		return out, err
	}
	// An attempt that was lost is never held again: what is held now was renewed.
	return out, c.Query(ctx, "SELECT "+answer+" FROM "+s.t.executions+held, args[1:], read)
}

// Finish implements [store.Store]. Runs that end alike without a result share a
// statement.
func (s *Store) Finish(ctx context.Context, rows []store.Finish) ([]error, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	answers := make([]error, len(rows))
	groups := map[finishKind][]int{}
	var order []finishKind
	for i := range rows {
		if err := checkFinish(&rows[i]); err != nil {
			answers[i] = err
			continue
		}
		k := kindOf(&rows[i], i)
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], i)
	}
	if len(order) == 0 {
		return answers, nil
	}
	work := func(c sqldialect.Conn) error {
		for _, k := range order {
			for group := range slices.Chunk(groups[k], guardedMax) {
				if err := s.finishGroup(ctx, c, rows, group, answers); err != nil {
					return err
				}
				if k.retries() {
					if err := s.keepFailed(ctx, c, refsOf(rows, group)); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	var err error
	if alone := len(order) == 1 && len(rows) <= guardedMax && !order[0].retries(); alone && (s.conn.Returning || len(rows) == 1) {
		// One statement is its own transaction.
		err = s.conn.Retry(ctx, func() error { return work(s.conn) })
	} else {
		err = s.conn.Tx(ctx, work)
	}
	if err != nil {
		return nil, s.fail("finish", err)
	}
	return answers, nil
}

// finishKind is what rows of one statement have in common. Rows that carry a
// result or an error are each a kind of their own.
type finishKind struct {
	ns     string
	owner  store.Owner
	state  store.State
	reason store.Reason
	mode   store.Mode
	delay  int64
	back   bool
	alone  int
}

func kindOf(f *store.Finish, i int) finishKind {
	k := finishKind{f.Ref.Namespace, f.Ref.Owner, f.State, f.Reason, f.Mode, f.Delay.Milliseconds(), f.Unstarted, -1}
	if len(f.Result) > 0 || f.ErrorCode != "" || f.ErrorText != "" {
		k.alone = i
	}
	return k
}

// retries reports whether the attempts end and another is to come.
func (k finishKind) retries() bool { return k.state == store.StatePending && !k.back }

func refsOf(rows []store.Finish, group []int) []store.Ref {
	refs := make([]store.Ref, len(group))
	for i, n := range group {
		refs[i] = rows[n].Ref
	}
	return refs
}

func checkFinish(f *store.Finish) error {
	switch {
	case f.State < store.StatePending || f.State > store.StateIndeterminate || f.State == store.StateRunning:
		return fmt.Errorf("gormstore: finish %s: State is %v: name the state that the run moves to", f.Ref.ID, f.State)
	case f.Unstarted && f.State != store.StatePending:
		return fmt.Errorf("gormstore: finish %s: Unstarted goes with State pending, not %v", f.Ref.ID, f.State)
	}
	return nil
}

func (s *Store) finishGroup(ctx context.Context, c sqldialect.Conn, rows []store.Finish, group []int, answers []error) error {
	refs := refsOf(rows, group)
	at := make(map[store.ID][]int, len(group))
	for _, n := range group {
		answers[n] = store.ErrFenced
		at[rows[n].Ref.ID] = append(at[rows[n].Ref.ID], n)
	}
	first := &rows[group[0]]
	query, args := s.finishSQL(c.Dialect, first, refs, false)
	done := func(id store.ID) {
		for _, n := range at[id] {
			answers[n] = nil
		}
		delete(at, id)
	}
	if len(group) == 1 || !c.Returning {
		n, err := c.Exec(ctx, query, args...)
		if err != nil {
			return err
		}
		if n == int64(len(at)) {
			for _, row := range group {
				answers[row] = nil
			}
			return nil
		}
	} else {
		err := c.Query(ctx, query+" RETURNING id", args, func(from sqldialect.Rows) error {
			var id []byte
			if err := from.Scan(&id); err != nil {
				return err
			}
			done(store.ID(id))
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(at) == 0 {
		return nil
	}
	if first.State == store.StatePending {
		query, args := s.finishSQL(c.Dialect, first, refs, true)
		if _, err := c.Exec(ctx, query, args...); err != nil {
			return err
		}
	}
	return s.repeats(ctx, c, rows, at, answers)
}

// repeats answers by the rows as they are now: those that were not changed because the
// same finish was applied before, and those that were asked to end.
func (s *Store) repeats(ctx context.Context, c sqldialect.Conn, rows []store.Finish, at map[store.ID][]int, answers []error) error {
	var args []any
	for id := range at {
		args = append(args, id[:])
	}
	found, err := rowsOf(ctx, c, "SELECT "+selected+" FROM "+s.t.executions+" WHERE id IN "+c.List(len(at)), args)
	if err != nil {
		return err
	}
	for i := range found {
		r := &found[i]
		for _, n := range at[r.ID] {
			answers[n] = rows[n].Applied(&r.Execution)
		}
	}
	return nil
}

// finishSQL is the guarded move out of running. All refs have one namespace and
// owner. A queue run with a lock key that waits for its retry keeps its active
// key, so that the order per key holds; every other move frees it. A finish as pending
// is for runs that nobody has asked to end; with asked it is for the others, and
// cancels them.
func (s *Store) finishSQL(d *sqldialect.Dialect, f *store.Finish, refs []store.Ref, asked bool) (string, []any) {
	state := f.State
	if asked {
		state = store.StateCanceled
	}
	var query strings.Builder
	query.Grow(512)
	args := make([]any, 0, 10+3*len(refs))
	write := func(text ...string) {
		for _, s := range text {
			query.WriteString(s)
		}
	}
	write("UPDATE ", s.t.executions, " SET version = version + 1, lease_until_ms = 0, result = ?, error_code = ?, error_text = ?, ")
	args = append(args, bytesOrNull(f.Result), text(f.ErrorCode), text(f.ErrorText))
	if f.Reason != store.ReasonNone {
		write("reason = ?, ")
		args = append(args, f.Reason)
	}
	if f.Mode != store.ModeNone {
		write("mode = ?, ")
		args = append(args, f.Mode)
	}
	if f.Unstarted {
		write("started_ms = CASE WHEN attempt <= 1 THEN 0 ELSE started_ms END, attempt = attempt - 1, ")
	}
	if state == store.StatePending {
		write("run_at_ms = ", d.NowMillis, " + ?, active_hash = CASE WHEN lock_key <> '' AND class = 4 THEN active_hash END, ")
		args = append(args, f.Delay.Milliseconds())
	} else {
		write("finished_ms = ", d.NowMillis, ", active_hash = NULL, dedup_hash = NULL, ")
	}
	write("state = ? WHERE ", s.t.ofNS, " AND state = 2")
	args = append(args, state, f.Ref.Namespace)
	switch {
	case asked:
		write(" AND cancel_requested = 1")
	case state == store.StatePending:
		write(" AND cancel_requested = 0")
	}
	if !mutation.On("attempt-guard") {
		write(" AND owner = ?")
		args = append(args, f.Ref.Owner[:])
	}
	number := !mutation.On("attempt-guard") && !mutation.On("attempt-number")
	if len(refs) == 1 {
		// Without a list, for which SQLite would make a table of its own.
		write(" AND id = ?")
		args = append(args, refs[0].ID[:])
		if number {
			write(" AND attempt = ?")
			args = append(args, refs[0].Attempt)
		}
		return query.String(), args
	}
	write(" AND id IN ", d.List(len(refs)))
	for i := range refs {
		args = append(args, refs[i].ID[:])
	}
	if number {
		write(" AND (id, attempt) IN ", d.Tuples(len(refs), 2))
		for i := range refs {
			args = append(args, refs[i].ID[:], refs[i].Attempt)
		}
	}
	return query.String(), args
}

// text is what an error said, without the bytes that PostgreSQL refuses in a text: a
// command may have printed anything.
func text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
}

// FinishTx moves a run out of running within the caller's transaction, by
// exactly one statement (a few where it sends the run back to be tried again),
// guarded by attempt and owner. It belongs last in the
// transaction, so that the row is locked for a moment only. If the attempt no
// longer holds the run the answer is store.ErrFenced, and the transaction must be
// rolled back. The context is the transaction's.
func (s *Store) FinishTx(ctx context.Context, tx *gorm.DB, f store.Finish) error {
	c, err := s.within(tx)
	if err != nil {
		return s.fail("finish in a transaction", err)
	}
	if err := checkFinish(&f); err != nil {
		return err
	}
	query, args := s.finishSQL(c.Dialect, &f, []store.Ref{f.Ref}, false)
	n, err := c.Exec(ctx, query, args...)
	if err == nil && n == 0 && f.State == store.StatePending {
		query, args = s.finishSQL(c.Dialect, &f, []store.Ref{f.Ref}, true)
		n, err = c.Exec(ctx, query, args...)
	}
	if err != nil {
		return s.fail("finish in a transaction", err)
	}
	if n == 0 {
		return store.ErrFenced
	}
	if kindOf(&f, 0).retries() {
		return s.fail("finish in a transaction", s.keepFailed(ctx, c, []store.Ref{f.Ref}))
	}
	return nil
}

// CheckTx answers store.ErrFenced if the attempt does not hold its run at the
// moment: a plain read without a lock, so that work that cannot be finished is
// not begun. Only [Store.FinishTx] decides.
func (s *Store) CheckTx(ctx context.Context, tx *gorm.DB, ref store.Ref) error {
	c, err := s.within(tx)
	if err != nil {
		return s.fail("check in a transaction", err)
	}
	held := false
	err = c.Query(ctx, "SELECT 1 FROM "+s.t.executions+" WHERE id = ? AND ns = ? AND state = 2 AND attempt = ? AND owner = ?",
		[]any{ref.ID[:], ref.Namespace, ref.Attempt, ref.Owner[:]}, func(sqldialect.Rows) error {
			held = true
			return nil
		})
	if err != nil {
		return s.fail("check in a transaction", err)
	}
	if !held {
		return store.ErrFenced
	}
	return nil
}

func (s *Store) within(tx *gorm.DB) (sqldialect.Conn, error) {
	c, err := sqldialect.Within(tx)
	if err == nil && !c.InTx() {
		err = errNoTx
	}
	return c, err
}

// Cancel implements [store.Store].
func (s *Store) Cancel(ctx context.Context, ns string, id store.ID) (store.Execution, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out store.Execution
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		// State comes last: MySQL assigns from left to right.
		if _, err := tx.Exec(ctx, "UPDATE "+s.t.executions+" SET version = version + 1,"+
			" finished_ms = CASE WHEN state = 1 THEN "+tx.NowMillis+" ELSE finished_ms END,"+
			" active_hash = CASE WHEN state = 1 THEN NULL ELSE active_hash END,"+
			" dedup_hash = CASE WHEN state = 1 THEN NULL ELSE dedup_hash END,"+
			" cancel_requested = CASE WHEN state = 2 THEN 1 ELSE cancel_requested END,"+
			" state = CASE WHEN state = 1 THEN 5 ELSE state END"+
			" WHERE ns = ? AND id = ? AND (state = 1 OR (state = 2 AND cancel_requested = 0))", ns, id[:]); err != nil {
			return err
		}
		var err error
		out, err = s.get(ctx, tx, ns, id)
		return err
	})
	return out, s.fail("cancel", err)
}
