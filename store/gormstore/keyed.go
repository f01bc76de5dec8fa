package gormstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// ResumeRequest asks for the open run of one key.
type ResumeRequest struct {
	Namespace  string
	Key        store.Key
	Owner      store.Owner
	OwnerLabel string
	Lease      time.Duration
	// Early takes a pending run before its RunAt.
	Early bool
	// ArgsHash must be that of the run, or it is not taken.
	ArgsHash store.Hash
}

// Resumed is the answer to Resume: the run under the key as it is afterwards.
type Resumed struct {
	Now       store.Millis
	Execution store.Execution
	// Taken says that the run is the caller's now, as a new attempt.
	Taken bool
}

// Resume hands the caller the run of a key if nobody holds it: one that is pending
// and due, or one whose owner died, which its crash policy may settle instead. Any
// other run is answered as it is. It reads one row by its key, without a lock and
// without a transaction while there is nothing to take. No such run is
// store.ErrNotFound. A repeat by an owner that has the run is answered Taken, with
// the lease begun anew; so an owner must not ask for one key from two places.
func (s *Store) Resume(ctx context.Context, r ResumeRequest) (Resumed, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if err := (hand{r.Owner, r.OwnerLabel, r.Lease}).check(); err != nil {
		return Resumed{}, s.fail("resume", err)
	}
	out, free, err := s.ofKey(ctx, s.conn, r, "")
	if err != nil || !free {
		return out, s.fail("resume", err)
	}
	err = s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		var err error
		if out, free, err = s.ofKey(ctx, tx, r, tx.LockRows); err == nil && free {
			err = s.resume(ctx, tx, r, &out)
		}
		return err
	})
	if s.conn.Classify(err) == sqldialect.Unique {
		// It excludes other runs, and one of them is in progress.
		out, _, err = s.ofKey(ctx, s.conn, r, "")
	}
	return out, s.fail("resume", err)
}

// ofKey reads the run of the key, and whether it may be taken.
func (s *Store) ofKey(ctx context.Context, c sqldialect.Conn, r ResumeRequest, lock string) (out Resumed, free bool, err error) {
	hash := r.Key.Hash()
	found := false
	err = c.Query(ctx, "SELECT "+c.NowMillis+", "+selected+" FROM "+s.t.executions+s.t.by("run")+" WHERE ns = ? AND run_hash = ?"+lock,
		[]any{r.Namespace, hash[:]}, func(from sqldialect.Rows) error {
			x, err := scan(from, &out.Now)
			out.Execution, found = x.Execution, true
			return err
		})
	if err == nil && !found {
		err = fmt.Errorf("run %s: %w", r.Key, store.ErrNotFound)
	}
	switch x := &out.Execution; {
	case x.ArgsHash != r.ArgsHash:
	case x.State == store.StatePending:
		free = r.Early || x.RunAt <= out.Now
	case x.State == store.StateRunning:
		free = x.LeaseUntil < out.Now || x.Owner == r.Owner
	}
	return out, free, err
}

func (s *Store) resume(ctx context.Context, tx sqldialect.Conn, r ResumeRequest, out *Resumed) error {
	x := &out.Execution
	if x.State == store.StateRunning && x.Owner == r.Owner {
		h, err := s.beat(ctx, tx, store.HeartbeatRequest{
			Namespace: r.Namespace, Owner: r.Owner, Lease: r.Lease, Beats: []store.Beat{{ID: x.ID, Attempt: x.Attempt}},
		})
		x.LeaseUntil = out.Now.Add(r.Lease)
		x.Version++
		out.Taken = err == nil && !h.Beats[0].Lost
		return err
	}
	to := store.FetchRequest{Namespace: r.Namespace, Owner: r.Owner, OwnerLabel: r.OwnerLabel, Lease: r.Lease}
	old := []row{{Execution: *x}}
	if x.State == store.StateRunning {
		var over store.TakenOver
		if err := s.bury(ctx, tx, to, old, out.Now, &over); err != nil {
			return err
		}
		if len(over.Settled) > 0 {
			*x = over.Settled[0]
			return nil
		}
		return out.took(over.Runs)
	}
	fences, err := s.drawFences(ctx, tx, r.Namespace, old)
	if err != nil {
		return err
	}
	rows, err := s.start(ctx, tx, to, old, out.Now, fences)
	if err != nil {
		return err
	}
	return out.took(executions(rows))
}

func (r *Resumed) took(runs []store.Execution) error {
	if len(runs) != 1 {
		return errors.New("the row changed although it was locked")
	}
	r.Execution, r.Taken = runs[0], true
	return nil
}

// Reopen lets a run that failed, was canceled or is indeterminate wait for an attempt
// more, due now, as [Store.Retry] does: that is for people, who ask for the run as it
// is, and this for programs, which decide by a version that they have read. Of several
// that did so one reopens it. The others are answered false, as for a run in another
// state; nothing is changed then. Why stands in the history.
func (s *Store) Reopen(ctx context.Context, ns string, id store.ID, version int64, why string) (bool, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	reopened := false
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		reopened = false
		rows, err := rowsOf(ctx, tx, "SELECT "+selected+" FROM "+s.t.executions+" WHERE id = ? AND ns = ?"+tx.LockRows, []any{id[:], ns})
		if err != nil || len(rows) == 0 || rows[0].Version != version || store.EndOf(rows[0].State) == "" {
			return err
		}
		if _, err = s.again(ctx, tx, rows[0], why); err == nil {
			reopened = true
		}
		return err
	})
	return reopened && err == nil, s.fail("reopen", err)
}

// Confirm makes a run that failed, was canceled or is indeterminate a success with this
// result, because its effect was found to be there. It answers false, and changes
// nothing, if the run is in another state or no longer of this version.
func (s *Store) Confirm(ctx context.Context, ns string, id store.ID, version int64, result []byte) (bool, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	var n int64
	err := s.conn.Retry(ctx, func() error {
		var err error
		n, err = s.conn.Exec(ctx, "UPDATE "+s.t.executions+" SET version = version + 1, reason = '', error_code = '', error_text = '',"+
			" cancel_requested = 0, finished_ms = "+s.conn.NowMillis+", result = ?, state = 3"+
			" WHERE ns = ? AND id = ? AND version = ? AND state IN (4, 5, 8)",
			bytesOrNull(result), ns, id[:], version)
		return err
	})
	return n == 1, s.fail("confirm", err)
}

// Forget deletes the record of a run that its attempt holds, with its steps, as if
// the key had never been seen. The answer is store.ErrFenced if the attempt does
// not hold it, also on a repeat.
func (s *Store) Forget(ctx context.Context, ref store.Ref) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		n, err := tx.Exec(ctx, "DELETE FROM "+s.t.executions+heldBy, heldArgs(ref)...)
		if err != nil {
			return err
		}
		if n == 0 {
			return store.ErrFenced
		}
		_, err = tx.Exec(ctx, "DELETE FROM "+s.steps()+" WHERE run_id = ?", ref.ID[:])
		return err
	})
	return s.fail("forget", err)
}

// heldBy picks the run of a Ref, while its attempt holds it.
const heldBy = " WHERE id = ? AND ns = ? AND state = 2 AND attempt = ? AND owner = ?"

func heldArgs(ref store.Ref) []any {
	return []any{ref.ID[:], ref.Namespace, ref.Attempt, ref.Owner[:]}
}

// Prefix begins the names of the store's tables.
func (s *Store) Prefix() string { return s.prefix }
