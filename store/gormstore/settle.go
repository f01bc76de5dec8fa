package gormstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Settle implements [store.Store]. Decide runs while the jobs are locked, and
// may be called again: it must be pure and quick.
func (s *Store) Settle(ctx context.Context, r store.SettleRequest, decide func(store.TickView) store.Settlement) (store.SettleResult, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if len(r.Jobs) == 0 {
		now, err := s.Now(ctx)
		return store.SettleResult{Now: now}, err
	}
	var out store.SettleResult
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		w := settling{s: s, tx: tx, ns: r.Namespace}
		var err error
		out, err = w.run(ctx, r, decide)
		return err
	})
	if err != nil {
		return store.SettleResult{}, s.fail("settle", err)
	}
	return out, nil
}

// settling is one try of a Settle.
type settling struct {
	s   *Store
	tx  sqldialect.Conn
	ns  string
	now store.Millis
}

type decided struct {
	q      store.SettleJob
	what   store.Settlement
	pruned store.Millis
}

func (w *settling) run(ctx context.Context, r store.SettleRequest, decide func(store.TickView) store.Settlement) (store.SettleResult, error) {
	var wanted []string
	for _, q := range r.Jobs {
		wanted = append(wanted, q.Job)
	}
	states, now, err := w.s.jobStates(ctx, w.tx, w.ns, wanted, w.tx.LockRows)
	if err != nil {
		return store.SettleResult{}, err
	}
	if len(states) == 0 {
		if err := w.tx.QueryRow(ctx, "SELECT "+w.tx.NowMillis, nil, &now); err != nil {
			return store.SettleResult{}, err
		}
	}
	w.now = now
	by := index(states)
	out := store.SettleResult{Now: now}
	var all []decided
	asked := map[string]bool{}
	for _, q := range r.Jobs {
		j := by[q.Job]
		if j == nil || j.Settled != q.Seen || asked[q.Job] {
			out.Passed++
			continue
		}
		asked[q.Job] = true
		if q.To <= q.Seen {
			continue
		}
		view := store.TickView{SettleJob: q, Now: now, State: *j}
		if err := w.look(ctx, &view); err != nil {
			return store.SettleResult{}, err
		}
		what := decide(view)
		if what.To == 0 {
			what.To = q.To
		}
		if err := q.Check(what); err != nil {
			return store.SettleResult{}, err
		}
		all = append(all, decided{q, what, j.Pruned})
	}
	if len(all) == 0 {
		return out, nil
	}
	if out.Pending, err = w.writeTicks(ctx, all); err != nil {
		return store.SettleResult{}, err
	}
	for _, d := range all {
		if err := w.writeRanges(ctx, d); err != nil {
			return store.SettleResult{}, err
		}
	}
	out.Settled = len(all)
	return out, w.moveMarks(ctx, all)
}

// look collects what is known of a job's ticks and runs, by one statement.
func (w *settling) look(ctx context.Context, v *store.TickView) error {
	t := w.s.t.executions
	query := "SELECT 1, tick_ms, state FROM " + t + " WHERE ns = ? AND job = ? AND class = 1 AND tick_ms > ? AND tick_ms <= ?" +
		" UNION ALL SELECT 2, since_ms, 0 FROM " + t + " WHERE ns = ? AND job = ? AND finished_ms = 0 AND state = 2" +
		" UNION ALL SELECT 2, since_ms, finished_ms FROM " + t + " WHERE ns = ? AND job = ? AND finished_ms >= ? AND since_ms > 0" +
		" UNION ALL SELECT 3, COALESCE((SELECT tick_ms FROM " + t + " WHERE ns = ? AND job = ? AND class = 1 AND state IN (1, 2, 3, 4, 5, 8)" +
		" ORDER BY tick_ms DESC LIMIT 1), 0), 0"
	err := w.tx.Query(ctx, query, []any{w.ns, v.Job, v.Seen, v.To, w.ns, v.Job, w.ns, v.Job, max(v.Seen, 1), w.ns, v.Job}, func(from sqldialect.Rows) error {
		var kind int
		var a, b store.Millis
		if err := from.Scan(&kind, &a, &b); err != nil {
			return err
		}
		switch kind {
		case 1:
			v.Recorded = append(v.Recorded, store.TickRecord{Tick: a, State: store.State(b)})
		case 2:
			v.Runs = append(v.Runs, store.Span{From: a, To: b})
		default:
			v.LastRun = a
		}
		return nil
	})
	slices.SortStableFunc(v.Recorded, func(a, b store.TickRecord) int { return cmp.Compare(a.Tick, b.Tick) })
	slices.SortStableFunc(v.Runs, func(a, b store.Span) int { return cmp.Compare(a.From, b.From) })
	return err
}

// writeTicks inserts the ticks of all jobs and answers how many are pending by
// it. Ticks that have a record are passed over.
func (w *settling) writeTicks(ctx context.Context, all []decided) (pending int, err error) {
	var news []store.NewExecution
	var ticks []store.SettleTick
	for _, d := range all {
		for _, t := range d.what.Ticks {
			ticks = append(ticks, t)
			news = append(news, t.NewExecution)
		}
	}
	if len(ticks) == 0 {
		return 0, nil
	}
	if err := checkNew(news); err != nil {
		return 0, err
	}
	blocked, err := byDedup(ctx, w.tx, w.s.t, w.ns, dedups(news), "")
	if err != nil {
		return 0, err
	}
	rows := make([]*fresh, len(ticks))
	hashes := make([]store.Hash, len(ticks))
	for i, t := range ticks {
		if _, taken := blocked[t.Dedup]; taken && t.State == store.StatePending {
			t.State, t.Reason = store.StateSkipped, store.ReasonOverlap // the slot is taken, and a tick needs a record
		}
		f := newRow(w.ns, &news[i], t.State, t.Reason, w.now)
		rows[i] = &f
		hashes[i] = rows[i].hash
		if !rows[i].Dedup.IsZero() {
			if blocked == nil {
				blocked = map[store.Hash]*row{}
			}
			blocked[rows[i].Dedup] = &rows[i].row // the next of this call with it is skipped
		}
	}
	if err := w.s.insert(ctx, w.tx, rows); err != nil {
		return 0, err
	}
	found, err := byHash(ctx, w.tx, w.s.t, w.ns, hashes, "")
	if err != nil {
		return 0, err
	}
	for i := range rows {
		r, ok := found[rows[i].hash]
		if !ok {
			return 0, errIDTaken(&news[i])
		}
		if r.ID == rows[i].ID && r.State == store.StatePending {
			pending++
		}
	}
	return pending, nil
}

// writeRanges writes a job's stretches. The first is joined to the job's last one
// if state and reason are the same and no record lies between, nor lay there
// before it was pruned.
func (w *settling) writeRanges(ctx context.Context, d decided) error {
	if len(d.what.Ranges) == 0 {
		return nil
	}
	ranges := slices.SortedFunc(slices.Values(d.what.Ranges), func(a, b store.TickRange) int { return cmp.Compare(a.From, b.From) })
	list := make([]store.TickRange, 0, len(ranges)+1)
	err := w.tx.Query(ctx, "SELECT from_ms, to_ms, ticks, state, reason FROM "+w.s.t.ranges+" WHERE ns = ? AND job = ? ORDER BY from_ms DESC LIMIT 1",
		[]any{w.ns, d.q.Job}, func(from sqldialect.Rows) error {
			var g store.TickRange
			err := from.Scan(&g.From, &g.To, &g.Count, &g.State, &g.Reason)
			list = append(list, g)
			return err
		})
	if err != nil {
		return err
	}
	if len(list) > 0 && list[0].To < d.pruned {
		list = list[:0]
	}
	stored, joined := len(list), false
	between, err := w.ticksBetween(ctx, d.q.Job, list, ranges)
	if err != nil {
		return err
	}
	for _, g := range ranges {
		if last := len(list) - 1; last >= 0 && list[last].State == g.State && list[last].Reason == g.Reason && !between(list[last].To, g.From) {
			list[last].To = g.To
			list[last].Count += g.Count
			joined = joined || last < stored
			continue
		}
		list = append(list, g)
	}
	if joined {
		g := list[0]
		if _, err := w.tx.Exec(ctx, "UPDATE "+w.s.t.ranges+" SET to_ms = ?, ticks = ?, recorded_ms = ? WHERE ns = ? AND job = ? AND from_ms = ?",
			g.To, g.Count, w.now, w.ns, d.q.Job, g.From); err != nil {
			return err
		}
	}
	for list = list[stored:]; len(list) > 0; {
		n := min(len(list), insertMax)
		var args []any
		for _, g := range list[:n] {
			args = append(args, w.ns, d.q.Job, g.From, g.To, g.Count, g.State, g.Reason, w.now)
		}
		if _, err := w.tx.Exec(ctx, "INSERT INTO "+w.s.t.ranges+" (ns, job, from_ms, to_ms, ticks, state, reason, recorded_ms) VALUES "+
			w.tx.Values(n, w.tx.List(8)), args...); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// ticksBetween tells whether a record lies in (from, to], for instants from the
// job's last stretch to the end of the new ones.
func (w *settling) ticksBetween(ctx context.Context, job string, last, news []store.TickRange) (func(from, to store.Millis) bool, error) {
	from := news[0].From
	if len(last) > 0 {
		from = last[0].To
	}
	var ticks []store.Millis
	// One tick is enough to part the last stretch from the new ones; within the
	// new ones each counts.
	err := w.tx.Query(ctx, "SELECT tick_ms FROM (SELECT tick_ms FROM "+w.s.t.executions+
		" WHERE ns = ? AND job = ? AND class = 1 AND tick_ms > ? AND tick_ms <= ? ORDER BY tick_ms LIMIT 1) a"+
		" UNION ALL SELECT tick_ms FROM "+w.s.t.executions+" WHERE ns = ? AND job = ? AND class = 1 AND tick_ms > ? AND tick_ms <= ?",
		[]any{w.ns, job, from, news[0].From, w.ns, job, news[0].From, news[len(news)-1].From}, func(row sqldialect.Rows) error {
			var t store.Millis
			err := row.Scan(&t)
			ticks = append(ticks, t)
			return err
		})
	slices.Sort(ticks)
	return func(from, to store.Millis) bool {
		i, _ := slices.BinarySearch(ticks, from+1)
		return i < len(ticks) && ticks[i] <= to
	}, err
}

// moveMarks moves the watermarks, guarded by what was seen.
func (w *settling) moveMarks(ctx context.Context, all []decided) error {
	slices.SortFunc(all, func(a, b decided) int { return strings.Compare(a.q.Job, b.q.Job) })
	var to, seen []any
	for _, d := range all {
		to = append(to, d.q.Job, d.what.To)
		seen = append(seen, d.q.Job, d.q.Seen)
	}
	args := append(append(to, w.ns), seen...)
	n, err := w.tx.Exec(ctx, "UPDATE "+w.s.t.jobs+" SET settled_ms = CASE job"+strings.Repeat(" WHEN ? THEN ?", len(all))+
		" ELSE settled_ms END, version = version + 1 WHERE ns = ? AND (job, settled_ms) IN "+w.tx.Tuples(len(all), 2), args...)
	if err == nil && n != int64(len(all)) {
		err = fmt.Errorf("%d of %d watermarks moved although the jobs were locked", n, len(all))
	}
	return err
}

// Revive implements [store.Store].
func (s *Store) Revive(ctx context.Context, r store.ReviveRequest) (int, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if r.Limit < 1 {
		return 0, nil
	}
	var n int64
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		n = 0
		var ids []any
		// A revived row keeps its reason, so that it counts against Limit again.
		err := tx.Query(ctx, "SELECT id, state FROM "+s.t.executions+" WHERE ns = ? AND job = ? AND class = 1 AND reason = ? AND tick_ms >= ?"+
			" ORDER BY tick_ms DESC, id DESC LIMIT ?"+tx.LockRows, []any{r.Namespace, r.Job, store.ReasonDegraded, r.Since, r.Limit},
			func(from sqldialect.Rows) error {
				var id []byte
				var st store.State
				err := from.Scan(&id, &st)
				if st == store.StateSkipped {
					ids = append(ids, id)
				}
				return err
			})
		if err != nil || len(ids) == 0 {
			return err
		}
		n, err = tx.Exec(ctx, "UPDATE "+s.t.executions+" SET state = 1, finished_ms = 0, run_at_ms = tick_ms"+
			", version = version + 1 WHERE state = 6 AND id IN "+tx.List(len(ids)), ids...)
		return err
	})
	return int(n), s.fail("revive", err)
}
