package gormstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

const jobColumns = "ns, job, settled_ms, pruned_ms, fence, paused_ms, paused_until_ms, paused_by, pause_reason, revisions, version"

// jobStates reads jobs in name order, with the clock. Empty names means all.
func (s *Store) jobStates(ctx context.Context, c sqldialect.Conn, ns string, names []string, lock string) ([]store.JobState, store.Millis, error) {
	query := "SELECT " + jobColumns + ", " + c.NowMillis + " FROM " + s.t.jobs + " WHERE ns = ?"
	args := []any{ns}
	if len(names) > 0 {
		query += " AND job IN " + c.List(len(names))
		for _, n := range names {
			args = append(args, n)
		}
	}
	var out []store.JobState
	var now store.Millis
	err := c.Query(ctx, query+" ORDER BY job"+lock, args, func(from sqldialect.Rows) error {
		var j store.JobState
		var revisions []byte
		if err := from.Scan(&j.Namespace, &j.Job, &j.Settled, &j.Pruned, &j.Fence, &j.Paused, &j.PausedUntil, &j.PausedBy, &j.PauseReason,
			&revisions, &j.Version, &now); err != nil {
			return err
		}
		if err := json.Unmarshal(revisions, &j.Revisions); err != nil {
			return fmt.Errorf("job %q: its revisions cannot be read: %w", j.Job, err)
		}
		if len(j.Revisions) == 0 {
			j.Revisions = nil
		}
		out = append(out, j)
		return nil
	})
	return out, now, err
}

// Register implements [store.Store]. Where everything is known already it is one
// read.
func (s *Store) Register(ctx context.Context, ns string, jobs []store.JobSpec) (store.Registered, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if len(jobs) == 0 {
		now, err := s.Now(ctx)
		return store.Registered{Now: now, Jobs: []store.JobState{}}, err
	}
	for _, j := range jobs {
		if j.Job == "" {
			return store.Registered{}, s.fail("register", errors.New("no Job: name the job"))
		}
	}
	if out, same, err := s.registered(ctx, ns, jobs); same || err != nil {
		return out, s.fail("register", err)
	}
	var out store.Registered
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		var err error
		out, err = s.register(ctx, tx, ns, jobs)
		return err
	})
	return out, s.fail("register", err)
}

// registered answers from what is stored, if the request changes nothing.
func (s *Store) registered(ctx context.Context, ns string, jobs []store.JobSpec) (store.Registered, bool, error) {
	states, now, err := s.jobStates(ctx, s.conn, ns, names(jobs), "")
	if err != nil {
		return store.Registered{}, false, err
	}
	by := index(states)
	out := store.Registered{Now: now, Jobs: make([]store.JobState, len(jobs))}
	for i, spec := range jobs {
		j := by[spec.Job]
		if j == nil || revises(j, spec) || renumbers(j, spec) {
			return store.Registered{}, false, nil
		}
		out.Jobs[i] = *j
	}
	return out, true, nil
}

// revises reports whether the spec becomes a new revision of the job.
func revises(j *store.JobState, spec store.JobSpec) bool {
	cur := j.Current()
	return spec.Hash != cur.Hash && (len(j.Revisions) == 0 || spec.Revision >= cur.Number)
}

// renumbers reports whether the schedule in force is brought under a higher
// number, which it then has against all others.
func renumbers(j *store.JobState, spec store.JobSpec) bool {
	cur := j.Current()
	return len(j.Revisions) > 0 && spec.Hash == cur.Hash && spec.Revision > cur.Number
}

func (s *Store) register(ctx context.Context, tx sqldialect.Conn, ns string, jobs []store.JobSpec) (store.Registered, error) {
	// One reading of the clock: the watermark of a new job and the beginning of its
	// schedule are the same instant.
	var now store.Millis
	if err := tx.QueryRow(ctx, "SELECT "+tx.NowMillis, nil, &now); err != nil {
		return store.Registered{}, err
	}
	args := make([]any, 0, 3*len(jobs))
	for _, j := range jobs {
		args = append(args, ns, j.Job, now)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO "+s.t.jobs+" (ns, job, settled_ms) VALUES "+tx.Values(len(jobs), tx.List(3))+tx.InsertIgnore, args...); err != nil {
		return store.Registered{}, err
	}
	states, _, err := s.jobStates(ctx, tx, ns, names(jobs), tx.LockRows)
	if err != nil {
		return store.Registered{}, err
	}
	by := index(states)
	out := store.Registered{Now: now, Jobs: make([]store.JobState, len(jobs))}
	for i, spec := range jobs {
		j := by[spec.Job]
		if revises(j, spec) || renumbers(j, spec) {
			if renumbers(j, spec) {
				j.Revisions[len(j.Revisions)-1].Number = spec.Revision
			} else {
				from := now
				if len(j.Revisions) > 0 {
					from = now.Add(store.EarlyTolerance)
				}
				j.Revisions = append(j.Revisions, store.Revision{Number: spec.Revision, Spec: spec.Spec, Hash: spec.Hash, From: from})
			}
			j.Version++
			text, err := json.Marshal(j.Revisions)
			if err != nil {
				return store.Registered{}, err
			}
			if _, err := tx.Exec(ctx, "UPDATE "+s.t.jobs+" SET revisions = ?, spec_hash = ?, version = version + 1 WHERE ns = ? AND job = ?",
				string(text), spec.Hash, ns, spec.Job); err != nil {
				return store.Registered{}, err
			}
		}
		out.Jobs[i] = *j
	}
	return out, nil
}

func names(jobs []store.JobSpec) []string {
	out := make([]string, len(jobs))
	for i := range jobs {
		out[i] = jobs[i].Job
	}
	return out
}

func index(states []store.JobState) map[string]*store.JobState {
	by := make(map[string]*store.JobState, len(states))
	for i := range states {
		by[states[i].Job] = &states[i]
	}
	return by
}

// Survey implements [store.Store]. It writes nothing and waits for no writer.
func (s *Store) Survey(ctx context.Context, ns string, jobs []string) (store.Surveyed, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out store.Surveyed
	which, list := "", []any(nil)
	if len(jobs) > 0 {
		which = " AND e.job IN " + s.conn.List(len(jobs))
		for _, n := range jobs {
			list = append(list, n)
		}
	}
	// The earliest pending run is looked up priority by priority, along the index:
	// its cost does not grow with the number of rows that wait.
	args := append([]any{ns}, list...)
	args = append(append(args, ns, ns, ns), list...)
	query := "SELECT " + s.conn.NowMillis + "," +
		" COALESCE((SELECT MIN(e.lease_until_ms) FROM " + s.t.executions + " e WHERE e.ns = ? AND e.state = 2" + which + "), 0)," +
		" COALESCE((WITH RECURSIVE level (p) AS (SELECT MIN(priority) FROM " + s.t.executions + " WHERE ns = ? AND state = 1" +
		" UNION ALL SELECT (SELECT MIN(e.priority) FROM " + s.t.executions + " e WHERE e.ns = ? AND e.state = 1 AND e.priority > level.p) FROM level WHERE level.p IS NOT NULL)" +
		" SELECT MIN((SELECT e.run_at_ms FROM " + s.t.executions + " e WHERE e.ns = ? AND e.state = 1 AND e.priority = level.p" + which +
		" ORDER BY e.run_at_ms LIMIT 1)) FROM level WHERE level.p IS NOT NULL), 0)"
	err := s.conn.QueryRow(ctx, query, args, &out.Now, &out.NextLeaseEnd, &out.NextRunAt)
	if err == nil {
		out.Jobs, _, err = s.jobStates(ctx, s.conn, ns, jobs, "")
	}
	return out, s.fail("survey", err)
}

// SetPause implements [store.Store].
func (s *Store) SetPause(ctx context.Context, p store.Pause) (store.JobState, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var out store.JobState
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		states, now, err := s.jobStates(ctx, tx, p.Namespace, []string{p.Job}, tx.LockRows)
		if err != nil {
			return err
		}
		if len(states) == 0 {
			return fmt.Errorf("job %q: %w", p.Job, store.ErrNotFound)
		}
		out = states[0]
		switch {
		case p.Off:
			// The stretch stays known: a tick in it that has no record yet is still one
			// that fell into the pause.
			if out.PausedAt(now) {
				out.PausedUntil = now
			}
		default:
			if !out.PausedAt(now) {
				out.Paused = now
			}
			out.PausedUntil, out.PausedBy, out.PauseReason = 0, p.By, p.Reason
			if p.For > 0 {
				out.PausedUntil = now.Add(max(p.For, time.Millisecond))
			}
		}
		out.Version++
		_, err = tx.Exec(ctx, "UPDATE "+s.t.jobs+" SET paused_ms = ?, paused_until_ms = ?, paused_by = ?, pause_reason = ?, version = version + 1"+
			" WHERE ns = ? AND job = ?", out.Paused, out.PausedUntil, out.PausedBy, out.PauseReason, p.Namespace, p.Job)
		return err
	})
	return out, s.fail("set pause", err)
}
