package gormstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// hand is who rows are given to.
type hand struct {
	owner store.Owner
	label string
	lease time.Duration
}

func (h hand) check() error {
	if h.owner == (store.Owner{}) {
		return errors.New("no Owner: draw one with store.NewOwner")
	}
	if h.lease < time.Millisecond {
		return fmt.Errorf("a Lease of %v is too short: give at least a millisecond", h.lease)
	}
	return nil
}

// Claim implements [store.Store]: one transaction of 3 statements for any number
// of runs (rows go 500 to a statement). It locks the jobs and looks which active keys
// are held, inserts the rows, and raises the fences. What is there under the keys of
// runs whose rows the INSERT did not return as made costs one statement more, all
// together; MySQL, which returns nothing, needs it always. Runs whose active key was taken since it was looked at, as by a fetch or by
// another run of the same call, cost one more, all together; so do a dedup hash, a lock
// key, and a repeat.
func (s *Store) Claim(ctx context.Context, r store.ClaimRequest) (store.Claimed, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	h := hand{r.Owner, r.OwnerLabel, r.Lease}
	if err := h.check(); err != nil {
		return store.Claimed{}, s.fail("claim", err)
	}
	if len(r.Runs) == 0 {
		now, err := s.Now(ctx)
		return store.Claimed{Now: now}, err
	}
	news := make([]store.NewExecution, len(r.Runs))
	for i := range r.Runs {
		news[i] = r.Runs[i].NewExecution
	}
	if err := checkNew(news); err != nil {
		return store.Claimed{}, s.fail("claim", err)
	}
	var out store.Claimed
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		c := claim{s: s, tx: tx, ns: r.Namespace, hand: h, runs: r.Runs, news: news, plans: make([]plan, len(news))}
		var err error
		out, err = c.run(ctx)
		return err
	})
	if err != nil {
		return store.Claimed{}, s.fail("claim", err)
	}
	return out, nil
}

// claim is one try of a Claim.
type claim struct {
	s    *Store
	tx   sqldialect.Conn
	ns   string
	hand hand
	runs []store.ClaimRun
	news []store.NewExecution // the runs', with an ID each

	now   store.Millis
	jobs  map[string]*claimJob
	held  map[store.Hash]bool // active keys, when the jobs were asked for
	plans []plan
}

// claimJob is what a claim needs of a job's state, and the fences it draws.
type claimJob struct {
	store.JobState
	specHash string
	top      int64 // highest fence given out
	used     int64 // highest fence of a row that was inserted
}

// plan is what is to become of a run if its key has no record.
type plan struct {
	hash   store.Hash
	fresh  fresh // the row to insert; none when outcome is set, or what is held is refused
	refuse bool
	answer store.ClaimedRun
}

func (c *claim) run(ctx context.Context) (store.Claimed, error) {
	if err := c.lockJobs(ctx); err != nil {
		return store.Claimed{}, err
	}
	if err := c.plan(ctx); err != nil {
		return store.Claimed{}, err
	}
	if err := c.drawLocks(ctx); err != nil {
		return store.Claimed{}, err
	}
	rows := make([]*fresh, 0, len(c.plans))
	hashes := make([]store.Hash, len(c.plans))
	for i := range c.plans {
		hashes[i] = c.plans[i].hash
		if p := &c.plans[i]; p.answer.Outcome == 0 && !p.refuse {
			rows = append(rows, &p.fresh)
		}
	}
	found, err := insertAndRead(ctx, c.tx, c.s.t, c.ns, rows, hashes, "")
	if err != nil {
		return store.Claimed{}, err
	}
	if err := c.judge(ctx, found); err != nil {
		return store.Claimed{}, err
	}
	if err := c.raiseFences(ctx); err != nil {
		return store.Claimed{}, err
	}
	out := store.Claimed{Now: c.now, Runs: make([]store.ClaimedRun, len(c.plans))}
	for i := range c.plans {
		out.Runs[i] = c.plans[i].answer
	}
	return out, nil
}

// lockJobs locks the jobs' rows in key order, so that claims of the same jobs
// cannot deadlock, and reads what decides about the runs.
func (c *claim) lockJobs(ctx context.Context) error {
	c.jobs = map[string]*claimJob{}
	for i := range c.news {
		c.jobs[c.news[i].Key.Job] = nil
	}
	keys := c.activeKeys()
	args := make([]any, 0, 2+len(keys)+len(c.jobs))
	if len(keys) > 0 {
		args = append(append(args, c.ns), keys...)
	}
	args = append(args, c.ns)
	names := len(args)
	for name := range c.jobs {
		args = append(args, name)
	}
	slices.SortFunc(args[names:], func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	var query string
	if len(keys) == 1 && len(c.jobs) == 1 {
		query = c.s.q.lockOne
	} else {
		query = lockSQL(c.s.t, c.tx.Dialect, heldSQL(c.s.t, c.tx.Dialect, len(keys)), len(c.jobs))
	}
	err := c.tx.Query(ctx, query, args, func(from sqldialect.Rows) error {
		j := &claimJob{}
		var held sql.NullString
		if err := from.Scan(&j.Job, &j.Settled, &j.Pruned, &j.Fence, &j.Paused, &j.PausedUntil, &j.specHash, &c.now, &held); err != nil {
			return err
		}
		if held.Valid && c.held == nil { // the same in every row
			c.held = map[store.Hash]bool{}
			for text := range strings.SplitSeq(held.String, ",") {
				if key, err := hex.DecodeString(text); err == nil && len(key) == len(store.Hash{}) {
					c.held[store.Hash(key)] = true
				}
			}
		}
		j.top = j.Fence
		c.jobs[j.Job] = j
		return nil
	})
	if err != nil {
		return err
	}
	for name, j := range c.jobs {
		if j == nil {
			return fmt.Errorf("job %q is not registered: call Register first: %w", name, store.ErrNotFound)
		}
	}
	return nil
}

// activeKeys are those of the runs, or none if they are too many to ask for.
func (c *claim) activeKeys() []any {
	keys := make([]any, 0, len(c.news))
	for i := range c.news {
		if key := activeKey(&c.news[i]); !key.IsZero() {
			keys = append(keys, key[:])
		}
	}
	if len(keys) > insertMax {
		return nil
	}
	return keys
}

// lockSQL locks jobs and reads what decides about their runs, and a column more.
func lockSQL(t tables, d *sqldialect.Dialect, held string, jobs int) string {
	query := "SELECT job, settled_ms, pruned_ms, fence, paused_ms, paused_until_ms, spec_hash, " + d.NowMillis + ", " + held +
		" FROM " + t.jobs + " WHERE ns = ? AND job IN " + d.List(jobs)
	if jobs > 1 {
		query += " ORDER BY job"
	}
	return query + d.LockRows
}

// heldSQL is a column with those of n active keys that are held, in hex. It is a
// guess that saves a statement: under READ COMMITTED it is from before a wait for
// the jobs' locks, and MySQL cuts it off after 1024 characters. The unique index
// decides, and who was held up by a run that has ended meanwhile was held up.
func heldSQL(t tables, d *sqldialect.Dialect, n int) string {
	if n == 0 {
		return "NULL"
	}
	list := map[*sqldialect.Dialect][2]string{
		sqldialect.Postgres(): {"encode(a.active_hash, 'hex')", "string_agg(encode(a.active_hash, 'hex'), ',')"},
		sqldialect.MySQL():    {"HEX(a.active_hash)", "GROUP_CONCAT(HEX(a.active_hash))"},
		sqldialect.SQLite():   {"hex(a.active_hash)", "group_concat(hex(a.active_hash))"},
	}[d]
	column := list[min(n-1, 1)] // an index is unique: of one key there is one row at most
	return "(SELECT " + column + " FROM " + t.executions + " a WHERE a.ns = ? AND a.active_hash IN " + d.List(n) + ")"
}

// plan decides each run by the state of its job.
func (c *claim) plan(ctx context.Context) error {
	blocked, err := byDedup(ctx, c.tx, c.s.t, c.ns, dedups(c.news), "")
	if err != nil {
		return err
	}
	former, err := c.former(ctx)
	if err != nil {
		return err
	}
	for i := range c.runs {
		n, p, j := &c.news[i], &c.plans[i], c.jobs[c.news[i].Key.Job]
		p.hash = n.Key.Hash()
		late := n.Key.Class == store.ClassCron && n.Key.Tick <= max(j.Settled, j.Pruned)
		switch {
		case n.Key.Tick > c.now.Add(store.EarlyTolerance):
			p.answer = store.ClaimedRun{Outcome: store.OutcomeEarly, Wait: n.Key.Tick.Sub(c.now)}
		case n.SpecHash != "" && n.SpecHash != j.specHash && !former[i]:
			p.answer = store.ClaimedRun{Outcome: store.OutcomeSuperseded}
		case late:
			p.answer = store.ClaimedRun{Outcome: store.OutcomeDuplicate}
		case n.Key.Class == store.ClassCron && j.PausedAt(n.Key.Tick):
			p.fresh = newRow(c.ns, n, store.StateSkipped, store.ReasonPaused, c.now)
			p.fresh.claimed = store.OutcomeSkipped
		case c.runs[i].Skip != store.ReasonNone:
			p.fresh = newRow(c.ns, n, store.StateSkipped, c.runs[i].Skip, c.now)
			p.fresh.claimed = store.OutcomeSkipped
		default:
			if r, ok := blocked[n.Dedup]; ok {
				p.answer = store.ClaimedRun{Outcome: store.OutcomeDuplicate, Execution: r.Execution}
				continue
			}
			if c.held[activeKey(n)] {
				p.fresh, p.refuse = c.busy(i), c.runs[i].Busy == store.BusyRefuse
				continue
			}
			p.fresh = c.started(n, j)
		}
	}
	return nil
}

// former tells of the runs under a schedule that is not in force whether it was at
// their tick. Only where there are such runs it costs a statement.
func (c *claim) former(ctx context.Context) (map[int]bool, error) {
	asked := map[int]string{}
	for i := range c.news {
		if n := &c.news[i]; n.Key.Class == store.ClassCron && n.SpecHash != "" && n.SpecHash != c.jobs[n.Key.Job].specHash {
			asked[i] = n.Key.Job
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	states, _, err := c.s.jobStates(ctx, c.tx, c.ns, slices.Compact(slices.Sorted(maps.Values(asked))), "")
	if err != nil {
		return nil, err
	}
	by, former := index(states), make(map[int]bool, len(asked))
	for i, job := range asked {
		if j := by[job]; j != nil {
			former[i] = j.At(c.news[i].Key.Tick).Hash == c.news[i].SpecHash
		}
	}
	return former, nil
}

// busy is the row of a run whose active key is held.
func (c *claim) busy(i int) fresh {
	f := newRow(c.ns, &c.news[i], store.StateSkipped, store.ReasonOverlap, c.now)
	if c.runs[i].Busy == store.BusyBuffer {
		f = newRow(c.ns, &c.news[i], store.StatePending, store.ReasonNone, c.now)
	}
	f.claimed = store.OutcomeBusy
	return f
}

// started is the row of a run that begins now.
func (c *claim) started(n *store.NewExecution, j *claimJob) fresh {
	f := newRow(c.ns, n, store.StateRunning, store.ReasonNone, c.now)
	f.hold = true
	f.Attempt, f.Owner, f.OwnerLabel = 1, c.hand.owner, c.hand.label
	f.LeaseUntil = c.now.Add(c.hand.lease)
	f.since, f.Started, f.Finished = c.now, c.now, 0
	f.claimed = store.OutcomeStarted
	if n.LockKey == "" {
		j.top++
		f.Fence = j.top
	}
	return f
}

// drawLocks gives fences to runs with a lock key, whose counters are not the jobs'.
func (c *claim) drawLocks(ctx context.Context) error {
	var keys []store.Hash
	for i := range c.plans {
		if f := &c.plans[i].fresh; f.State == store.StateRunning && f.LockKey != "" {
			keys = append(keys, f.Active)
		}
	}
	top, err := c.s.drawLockFences(ctx, c.tx, c.ns, keys)
	if err != nil {
		return err
	}
	for i := range c.plans {
		if f := &c.plans[i].fresh; f.State == store.StateRunning && f.LockKey != "" {
			f.Fence = top.take(f.Active)
		}
	}
	return nil
}

// judge tells for each run what the rows under its key mean, and records the
// runs whose active key is held.
func (c *claim) judge(ctx context.Context, found map[store.Hash]*row) error {
	var busy []*fresh
	var again []store.Beat
	for i := range c.plans {
		p, n := &c.plans[i], &c.news[i]
		r, exists := found[p.hash]
		switch {
		case exists:
			p.answer = store.ClaimedRun{Outcome: c.repeated(r, i), Execution: r.Execution}
			if p.answer.Outcome != store.OutcomeStarted {
				continue
			}
			if r.ID == p.fresh.ID && r.Fence == p.fresh.Fence { // inserted just now
				if r.LockKey == "" {
					j := c.jobs[r.Key.Job]
					j.used = max(j.used, r.Fence)
				}
			} else {
				// The caller counts its lease from this request on.
				p.answer.Execution.LeaseUntil = c.now.Add(c.hand.lease)
				p.answer.Execution.Version++
				again = append(again, store.Beat{ID: r.ID, Attempt: r.Attempt})
			}
		case p.answer.Outcome != 0:
		case p.fresh.Active.IsZero():
			return errIDTaken(n)
		case c.runs[i].Busy == store.BusyRefuse:
			p.answer = store.ClaimedRun{Outcome: store.OutcomeBusy}
		default:
			f := c.busy(i)
			busy = append(busy, &f)
			p.answer = store.ClaimedRun{Outcome: store.OutcomeBusy, Execution: f.Execution}
			found[p.hash] = &f.row // the same key again in this request
		}
	}
	if len(again) > 0 {
		if _, err := c.s.beat(ctx, c.tx, store.HeartbeatRequest{Namespace: c.ns, Owner: c.hand.owner, Lease: c.hand.lease, Beats: again}); err != nil {
			return err
		}
	}
	if len(busy) == 0 {
		return nil
	}
	if err := c.s.insert(ctx, c.tx, busy); err != nil {
		return err
	}
	return nil
}

// repeated is the outcome of a run whose key has a record: what it was if the
// record is the caller's own, by the ID that it made.
func (c *claim) repeated(r *row, i int) store.Outcome {
	switch {
	case r.ID != c.news[i].ID || r.claimed == 0:
		return store.OutcomeDuplicate
	case r.claimed != store.OutcomeStarted:
		return r.claimed
	case r.State == store.StateRunning && r.Attempt == 1 && r.Owner == c.hand.owner && r.Started == r.Created:
		return store.OutcomeStarted
	}
	return store.OutcomeDuplicate
}

func (c *claim) raiseFences(ctx context.Context) error {
	used := map[string]int64{}
	for name, j := range c.jobs {
		if j.used > 0 {
			used[name] = j.used
		}
	}
	return c.s.setJobFences(ctx, c.tx, c.ns, used)
}

func dedups(rows []store.NewExecution) []store.Hash {
	var out []store.Hash
	for i := range rows {
		if h := rows[i].Dedup; !h.IsZero() {
			out = append(out, h)
		}
	}
	return out
}
