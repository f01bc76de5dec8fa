package storetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/solotick/solotick/store"
)

// SeedEnv names the environment variable that repeats a run of the model case
// with the seed that it printed.
const SeedEnv = "STORETEST_SEED"

// model is the contract in its simplest form. Random operations go to the store
// and to the model, and the two must agree.
type model struct {
	*env
	rnd     *rand.Rand
	handles []store.Store
	owners  []store.Owner
	base    store.Millis // ticks are base+1 to base+40
	settled store.Millis
	seq     int

	rows  map[store.ID]*modelRow
	order []store.ID // rows in the order they came, so that a seed repeats
	refs  []store.Ref
}

type modelRow struct {
	store.Execution
	holds bool // the active key
}

const modelRule = "any order of operations by any handles gives what the contract says"

func modelCase(e *env) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(SeedEnv); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		e.must(err)
		seed = n
	}
	m := &model{env: e, rnd: rand.New(rand.NewPCG(seed, 0)), rows: map[store.ID]*modelRow{}}
	e.Logf("repeat with %s=%d", SeedEnv, seed)
	m.handles = []store.Store{e.s, e.h.Open(e), e.h.Open(e)}
	m.owners = []store.Owner{store.NewOwner(), store.NewOwner(), store.NewOwner()}
	m.base = e.register("cron", "queue") - 1
	m.settled = m.base
	e.until(m.base + 50)
	ops := []func(){
		m.claim, m.claim, m.claim, m.enqueue, m.enqueue, m.enqueue, m.fetch, m.fetch, m.fetch, m.takeOver,
		m.heartbeat, m.finish, m.finish, m.finish, m.finish, m.cancel, m.settle, m.wait,
	}
	for i := range 200 {
		who := m.rnd.IntN(len(m.handles))
		e.s, e.owner = m.handles[who], m.owners[who]
		ops[m.rnd.IntN(len(ops))]()
		if i%40 == 39 {
			m.compare()
		}
		if e.Failed() {
			e.Fatalf("after %d operations; repeat with %s=%d", i+1, SeedEnv, seed)
		}
	}
}

func (m *model) lease() time.Duration {
	if m.rnd.IntN(2) == 0 {
		return 4 * time.Millisecond
	}
	return long
}

func (m *model) nextID() store.ID {
	m.seq++
	return store.NewID(m.base + store.Millis(m.seq))
}

func (m *model) add(x store.Execution) {
	m.rows[x.ID] = &modelRow{Execution: x}
	m.order = append(m.order, x.ID)
}

// given notes that a row was handed to the owner.
func (m *model) given(x store.Execution, attempt int) {
	r := m.rows[x.ID]
	same(m.env, modelRule, x.Key.String()+" is running, attempt", fmt.Sprint(x.State, x.Attempt), fmt.Sprint(store.StateRunning, attempt))
	r.Execution = x
	r.holds = !r.Active.IsZero()
	m.refs = append(m.refs, x.Ref())
}

func (m *model) byKey(k store.Key) *modelRow {
	for _, r := range m.rows {
		if r.Key == k {
			return r
		}
	}
	return nil
}

func (m *model) held(r *modelRow, active store.Hash) bool {
	for _, o := range m.rows {
		if o != r && o.holds && o.Active == active {
			return true
		}
	}
	return false
}

func (m *model) claim() {
	c := cron("cron", m.base+1+store.Millis(m.rnd.IntN(40)))
	c.ID = m.nextID()
	if m.rnd.IntN(3) == 0 {
		c.Active = store.Hash{}
	}
	c.Busy = store.BusyPolicy(m.rnd.IntN(3))
	c.OnCrash = store.OnCrash(m.rnd.IntN(4))
	want := store.OutcomeStarted
	switch {
	case m.byKey(c.Key) != nil || c.Key.Tick <= m.settled:
		want = store.OutcomeDuplicate
	case !c.Active.IsZero() && m.held(nil, c.Active):
		want = store.OutcomeBusy
	}
	got := m.env.claim(m.lease(), c)[0]
	same(m.env, modelRule, "claim of "+c.Key.String(), got.Outcome, want)
	if want == store.OutcomeDuplicate || want == store.OutcomeBusy && c.Busy == store.BusyRefuse {
		return
	}
	x := got.Execution
	x.Active = c.Active // what a row that is not running tells of its key is up to the store
	m.add(x)
	if want == store.OutcomeStarted {
		m.given(x, 1)
	}
}

func (m *model) enqueue() {
	n := row(queueKey("queue", strconv.Itoa(m.rnd.IntN(60))))
	if l := m.rnd.IntN(3); l > 0 {
		n = keyed("queue", n.Key.Name, strconv.Itoa(l))
	} else {
		n.Priority = m.rnd.IntN(3) - 1
	}
	n.ID = m.nextID()
	n.RunAt = m.base - 1000 + store.Millis(m.seq)
	n.MaxAttempts = m.rnd.IntN(4)
	want := store.OutcomeEnqueued
	if m.byKey(n.Key) != nil {
		want = store.OutcomeDuplicate
	}
	got := m.env.enqueue(n)[0]
	same(m.env, modelRule, "enqueue of "+n.Key.String(), got.Outcome, want)
	if want == store.OutcomeEnqueued {
		x := got.Execution
		x.Active = n.Active
		m.add(x)
	}
}

func (m *model) fetch() {
	limit := 1 + m.rnd.IntN(3)
	before := m.now()
	f := m.env.fetch(m.lease(), limit, "cron", "queue")
	// The store looked for due rows at some instant between the two readings of its
	// clock, and a row may have become due in between.
	var want []*modelRow
	for at := before; at <= f.Now; at++ {
		if want = m.due(at, limit); slices.EqualFunc(f.Runs, want, func(x store.Execution, r *modelRow) bool { return x.ID == r.ID }) {
			break
		}
	}
	if len(f.Runs) != len(want) {
		m.broken(modelRule, "fetched %v at %s, want %d rows", names(f.Runs), f.Now, len(want))
		return
	}
	for i, r := range want {
		r.holds = !r.Active.IsZero()
		same(m.env, modelRule, fmt.Sprint("fetched row ", i), f.Runs[i].Key, r.Key)
		m.given(f.Runs[i], r.Attempt+1)
	}
}

// due is what a fetch hands out that looks at the instant at.
func (m *model) due(at store.Millis, limit int) []*modelRow {
	var due, out []*modelRow
	for _, r := range m.rows {
		if r.State == store.StatePending && r.RunAt <= at {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *modelRow) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.RunAt, b.RunAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	for _, r := range due {
		free := r.Active.IsZero() || !m.held(r, r.Active) &&
			!slices.ContainsFunc(out, func(o *modelRow) bool { return o.Active == r.Active })
		if len(out) < limit && free {
			out = append(out, r)
		}
	}
	return out
}

func (m *model) takeOver() {
	t := m.env.takeOver(m.lease(), 1000, "cron", "queue")
	taken := map[store.ID]store.Execution{}
	for _, x := range slices.Concat(t.Runs, t.Settled) {
		taken[x.ID] = x
	}
	for _, id := range m.order {
		r := m.rows[id]
		x, got := taken[id]
		dead := r.State == store.StateRunning && r.LeaseUntil < t.Now
		same(m.env, modelRule, fmt.Sprintf("takeover at %s of %s, %v, lease until %s", t.Now, r.Key, r.State, r.LeaseUntil), got, dead)
		if !dead {
			continue
		}
		end := map[store.OnCrash]store.State{
			store.CrashFail: store.StateFailed, store.CrashNextTick: store.StateMissed, store.CrashIndeterminate: store.StateIndeterminate,
		}[r.OnCrash]
		why := store.ReasonLost
		if end == 0 && r.CancelRequested {
			end = store.StateCanceled
		}
		if end == 0 && r.MaxAttempts > 0 && r.Attempt >= r.MaxAttempts {
			end, why = store.StateFailed, store.ReasonPoison
		}
		if end == 0 {
			m.given(x, r.Attempt+1)
			continue
		}
		r.State, r.Reason, r.holds = end, why, false
	}
}

// holder is the row that the ref holds; nil if it holds none.
func (m *model) holder(ref store.Ref) *modelRow {
	r := m.rows[ref.ID]
	if r.State == store.StateRunning && r.Attempt == ref.Attempt && r.Owner == ref.Owner {
		return r
	}
	return nil
}

func (m *model) heartbeat() {
	if len(m.refs) == 0 {
		return
	}
	ref := m.refs[m.rnd.IntN(len(m.refs))]
	r := m.holder(ref)
	got := m.beat(ref.Owner, m.lease(), store.Beat{ID: ref.ID, Attempt: ref.Attempt})[0]
	want := store.BeatAnswer{Lost: r == nil}
	if r != nil {
		want.CancelRequested = r.CancelRequested
		r.LeaseUntil = m.get(ref.ID).LeaseUntil
	}
	same(m.env, modelRule, "beat of "+m.rows[ref.ID].Key.String(), got, want)
}

func (m *model) finish() {
	if len(m.refs) == 0 {
		return
	}
	ref := m.refs[max(0, len(m.refs)-1-m.rnd.IntN(8))]
	f := store.Finish{Ref: ref, State: store.StateSucceeded}
	switch m.rnd.IntN(6) {
	case 0:
		f.State = store.StateFailed
	case 1:
		f.State = store.StatePending
	case 2:
		f.State, f.Delay = store.StatePending, 3*time.Millisecond
	case 3:
		f.State, f.Unstarted = store.StatePending, true
	}
	r := m.holder(ref)
	asItIs := func(now store.State) bool {
		return now == f.State || now == store.StateCanceled && f.State == store.StatePending // asked to end
	}
	if now := m.rows[ref.ID]; r == nil && now.Owner == ref.Owner && asItIs(now.State) {
		return // perhaps a repeat, which has a case of its own
	}
	err := m.env.finish(f)
	if r != nil && r.CancelRequested && f.State == store.StatePending {
		same(m.env, askedToEnd, "answer for "+r.Key.String(), errors.Is(err, store.ErrCanceled), true)
		f.State, err = store.StateCanceled, nil
	}
	if r == nil {
		if !errors.Is(err, store.ErrFenced) {
			m.broken(finishGuard, "finish of %s by attempt %d: got %v, want ErrFenced", m.rows[ref.ID].Key, ref.Attempt, err)
		}
		return
	}
	if err != nil {
		m.broken(modelRule, "finish of %s by its holder: %v", r.Key, err)
		return
	}
	x := m.get(ref.ID)
	r.State, r.RunAt, r.LeaseUntil = f.State, x.RunAt, 0
	r.holds = f.State == store.StatePending && r.LockKey != ""
	if f.Unstarted {
		r.Attempt--
	}
}

func (m *model) cancel() {
	if len(m.order) == 0 {
		return
	}
	r := m.rows[m.order[m.rnd.IntN(len(m.order))]]
	x, err := m.s.Cancel(m.ctx, space, r.ID)
	m.must(err)
	r.CancelRequested = r.CancelRequested || r.State == store.StateRunning
	if r.State == store.StatePending {
		r.State, r.holds = store.StateCanceled, false
	}
	same(m.env, modelRule, "cancel of "+r.Key.String(), x.State, r.State)
}

func (m *model) settle() {
	to := min(m.base+40, m.settled+1+store.Millis(m.rnd.IntN(2)))
	if to == m.settled {
		return
	}
	var wrote []store.SettleTick
	var view store.TickView
	m.env.settle(settleOne("cron", m.settled, to), func(v store.TickView) store.Settlement {
		view, wrote = v, nil
		for tick := v.Seen + 1; tick <= v.To; tick++ {
			if !slices.ContainsFunc(v.Recorded, func(r store.TickRecord) bool { return r.Tick == tick }) {
				t := missing("cron", tick, store.StatePending, store.ReasonNone)
				t.ID = m.nextID()
				wrote = append(wrote, t)
			}
		}
		return store.Settlement{Ticks: wrote}
	})
	var want []store.TickRecord
	for tick := m.settled + 1; tick <= to; tick++ {
		if r := m.byKey(cronKey("cron", tick)); r != nil {
			want = append(want, store.TickRecord{Tick: tick, State: r.State})
		}
	}
	if !slices.Equal(view.Recorded, want) {
		m.broken(modelRule, "settle of (%s, %s] saw %v, want %v", m.settled, to, view.Recorded, want)
	}
	m.settled = to
	for _, t := range wrote {
		x := m.get(t.ID)
		x.Active = t.Active
		m.add(x)
	}
}

func (m *model) wait() { m.until(m.now() + 3) }

func (m *model) compare() {
	rows, err := m.s.List(m.ctx, store.Filter{Namespace: space, Limit: 1000})
	m.must(err)
	same(m.env, modelRule, "rows", len(rows), len(m.rows))
	for _, x := range rows {
		r := m.rows[x.ID]
		if r == nil {
			m.broken(modelRule, "%s is in the store and nowhere else", x.Key)
			continue
		}
		same(m.env, modelRule, "state and attempt of "+x.Key.String(), fmt.Sprint(x.State, x.Attempt), fmt.Sprint(r.State, r.Attempt))
		if x.State == store.StateRunning {
			same(m.env, modelRule, "holder of "+x.Key.String(), x.Ref(), r.Ref())
		}
	}
}
