package storetest

import (
	"errors"
	"time"

	"github.com/solotick/solotick/store"
)

var claimCases = []suiteCase{
	{"claim/one of fifty starts", oneOfFifty},
	{"claim/all ticks of an instant in one call", manyInOneCall},
	{"claim/started row", startedRow},
	{"claim/early tick is refused", earlyTick},
	{"claim/unknown job", unknownJob},
	{"claim/repeat", claimRepeat},
	{"claim/repeat of what was not started", claimRepeatOther},
	{"claim/skip with a reason", claimSkip},
	{"claim/paused", claimPaused},
	{"claim/superseded", claimSuperseded},
	{"claim/former_schedule", claimFormer},
	{"claim/dedup", claimDedup},
	{"claim/at the watermark", claimAtWatermark},
	{"claim/every part of the key counts", keyParts},
}

const oneRow = "one row per run key: of all that claim a tick one starts it, the others are told duplicate"

func oneOfFifty(e *env) {
	tick := e.register("report")
	handles := []store.Store{e.s, e.h.Open(e), e.h.Open(e), e.h.Open(e), e.h.Open(e)}
	type answer struct {
		store.ClaimedRun
		err error
	}
	answers := make(chan answer)
	begin := make(chan struct{})
	for i := range 50 {
		go func() {
			<-begin
			r := e.request(long, free("report", tick)) // no active key: the run key alone must do it
			r.Owner = store.NewOwner()
			c, err := handles[i%len(handles)].Claim(e.ctx, r)
			if err != nil {
				answers <- answer{err: err}
				return
			}
			answers <- answer{ClaimedRun: c.Runs[0]}
		}()
	}
	close(begin)
	count := map[store.Outcome]int{}
	ids := map[store.ID]bool{}
	for range 50 {
		a := <-answers
		if a.err != nil {
			e.Errorf("claim: %v", a.err)
			continue
		}
		count[a.Outcome]++
		ids[a.Execution.ID] = true
	}
	same(e, oneRow, "started", count[store.OutcomeStarted], 1)
	same(e, oneRow, "duplicate", count[store.OutcomeDuplicate], 49)
	same(e, oneRow, "rows in the answers", len(ids), 1)
	rows, err := e.s.List(e.ctx, store.Filter{Namespace: space, Jobs: []string{"report"}})
	e.must(err)
	same(e, oneRow, "rows in the store", len(rows), 1)
}

func manyInOneCall(e *env) {
	const rule = "a claim of many runs answers each, in order"
	jobs := []string{"d", "b", "a", "c", "e"}
	tick := e.register(jobs...)
	e.start(long, cron("a", tick))
	held := e.start(long, cron("c", tick))
	runs := []store.ClaimRun{cron("d", tick), cron("b", tick), cron("a", tick), cron("c", tick+1), cron("e", tick), cron("e", tick)}
	got := e.claim(long, runs...)
	want := []store.Outcome{
		store.OutcomeStarted, store.OutcomeStarted, store.OutcomeDuplicate,
		store.OutcomeBusy, store.OutcomeStarted, store.OutcomeDuplicate,
	}
	for i := range want {
		same(e, rule, runs[i].Key.String(), got[i].Outcome, want[i])
		if got[i].Execution.Key.Job != runs[i].Key.Job {
			e.broken(rule, "answer %d is for %s, want %s", i, got[i].Execution.Key, runs[i].Key)
		}
	}
	same(e, rule, "a held row is not touched", e.get(held.ID).Version, held.Version)

	var many []store.ClaimRun
	for i := range 40 {
		many = append(many, free("d", tick+1+store.Millis(i)))
	}
	seen := map[int64]bool{}
	for i, c := range e.claim(long, many...) {
		same(e, rule, many[i].Key.String(), c.Outcome, store.OutcomeStarted)
		same(e, rule, "tick", c.Execution.Key.Tick, many[i].Key.Tick)
		if seen[c.Execution.Fence] {
			e.broken(fencesRise, "fence %d was drawn twice in one claim", c.Execution.Fence)
		}
		seen[c.Execution.Fence] = true
	}
}

func startedRow(e *env) {
	const rule = "a started row is running, attempt 1, the caller's, with a lease by the store's clock"
	tick := e.register("report")
	before := e.now()
	x := e.start(long, cron("report", tick))
	after := e.now()
	same(e, rule, "state", x.State, store.StateRunning)
	same(e, rule, "attempt", x.Attempt, 1)
	same(e, rule, "owner", x.Owner, e.owner)
	same(e, rule, "owner label", x.OwnerLabel, "host:1")
	same(e, rule, "namespace", x.Namespace, space)
	same(e, rule, "finished", x.Finished, 0)
	same(e, rule, "active key", x.Active, store.ActiveCron("report", 0))
	if x.Fence < 1 {
		e.broken(rule, "fence is %d", x.Fence)
	}
	if x.LeaseUntil < before.Add(long) || x.LeaseUntil > after.Add(long) {
		e.broken(rule, "lease until %s, claimed between %s and %s for %v", x.LeaseUntil, before, after, long)
	}
	for _, at := range []store.Millis{x.Started, x.Created, x.RunAt} {
		if at < before || at > after {
			e.broken(rule, "started %s, created %s, run at %s: claimed between %s and %s", x.Started, x.Created, x.RunAt, before, after)
			break
		}
	}
	stored := e.get(x.ID)
	same(e, rule, "what Get says", stored.Ref(), x.Ref())
	same(e, rule, "lease that Get says", stored.LeaseUntil, x.LeaseUntil)
	found, err := e.s.Find(e.ctx, space, x.Key)
	e.must(err)
	same(e, rule, "what Find says", found.ID, x.ID)
}

func earlyTick(e *env) {
	const rule = "a tick later than the store's time + EarlyTolerance is refused with a wait, and nothing is recorded"
	e.register("report")
	tick := e.now().Add(time.Minute)
	run := cron("report", tick)
	for _, skip := range []store.Reason{store.ReasonNone, store.ReasonDegraded} {
		run.Skip = skip
		c, err := e.s.Claim(e.ctx, e.request(long, run))
		e.must(err)
		same(e, rule, "outcome", c.Runs[0].Outcome, store.OutcomeEarly)
		same(e, rule, "wait", c.Runs[0].Wait, tick.Sub(c.Now))
		same(e, rule, "execution", c.Runs[0].Execution.ID, store.ID{})
	}
	if _, err := e.s.Find(e.ctx, space, run.Key); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "Find after a refused claim: %v, want ErrNotFound", err)
	}
	near := cron("report", e.now()+40)
	same(e, "a tick within EarlyTolerance is claimed", "outcome", e.claim(long, near)[0].Outcome, store.OutcomeStarted)
}

func unknownJob(e *env) {
	const rule = "the job of a claim must be registered, else nothing of the request is applied"
	tick := e.register("report")
	_, err := e.s.Claim(e.ctx, e.request(long, cron("report", tick), cron("stranger", tick)))
	if err == nil {
		e.broken(rule, "claim of a job that nobody registered: no error")
	}
	if _, err := e.s.Find(e.ctx, space, cronKey("report", tick)); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "the other run of the request: %v, want ErrNotFound", err)
	}
}

const repeatSafe = "a repeat of an applied claim gives the answer it had; a rival's claim of the key is a duplicate"

func claimRepeat(e *env) {
	tick := e.register("report", "other")
	run := cron("report", tick)
	first := e.start(long, run)
	again := e.claim(long, run)[0]
	same(e, repeatSafe, "outcome of the repeat", again.Outcome, store.OutcomeStarted)
	same(e, repeatSafe, "proof in the repeat", again.Execution.Ref(), first.Ref())
	rival := run
	rival.ID = store.NewID(e.now())
	got := e.claim(long, rival)[0]
	same(e, repeatSafe, "rival of the same process", got.Outcome, store.OutcomeDuplicate)
	same(e, repeatSafe, "row that the rival sees", got.Execution.ID, first.ID)

	// What befalls the job between the two does not change the answer.
	e.until(tick)
	_, err := e.s.Settle(e.ctx, settleOne("report", tick-1, tick), nothing)
	e.must(err)
	_, err = e.s.Register(e.ctx, space, []store.JobSpec{{Job: "report", Spec: "hourly", Hash: "spec-2", Revision: 2}})
	e.must(err)
	_, err = e.s.SetPause(e.ctx, store.Pause{Namespace: space, Job: "report"})
	e.must(err)
	same(e, repeatSafe, "repeat after the tick was settled", e.claim(long, run)[0].Outcome, store.OutcomeStarted)

	const moved = "a claim never answers started for a row that has left the first attempt it gave the caller"
	e.end(first, store.StateSucceeded)
	same(e, moved, "repeat after the run finished", e.claim(long, run)[0].Outcome, store.OutcomeDuplicate)
	run = cron("other", tick)
	lost := e.start(brief, run)
	e.until(lost.LeaseUntil)
	e.takeOver(long, 10, "other")
	same(e, moved, "repeat after a takeover", e.claim(long, run)[0].Outcome, store.OutcomeDuplicate)
}

func claimRepeatOther(e *env) {
	tick := e.register("report")
	e.start(long, cron("report", tick))
	skip, buffer, asked := cron("report", tick+1), cron("report", tick+2), cron("report", tick+3)
	buffer.Busy = store.BusyBuffer
	asked.Skip = store.ReasonDegraded
	want := []store.Outcome{store.OutcomeBusy, store.OutcomeBusy, store.OutcomeSkipped}
	for range 2 {
		for i, c := range e.claim(long, skip, buffer, asked) {
			same(e, repeatSafe, "outcome "+c.Execution.Key.String(), c.Outcome, want[i])
		}
	}
	twice := row(queueKey("mail", "1"))
	for range 2 {
		q := e.enqueue(twice)[0]
		same(e, "a repeat of an applied enqueue gives the answer it had", "outcome", q.Outcome, store.OutcomeEnqueued)
		same(e, "a repeat of an applied enqueue gives the answer it had", "row", q.Execution.ID, twice.ID)
	}
}

func claimSkip(e *env) {
	const rule = "a claim with Skip records the tick as skipped for that reason, and holds nothing"
	tick := e.register("report")
	run := cron("report", tick)
	run.Skip = store.ReasonDegraded
	run.Mode = store.ModeFailFast
	c := e.claim(long, run)[0]
	same(e, rule, "outcome", c.Outcome, store.OutcomeSkipped)
	x := e.get(c.Execution.ID)
	same(e, rule, "state", x.State, store.StateSkipped)
	same(e, rule, "reason", x.Reason, store.ReasonDegraded)
	same(e, rule, "mode", x.Mode, store.ModeFailFast)
	same(e, rule, "attempt", x.Attempt, 0)
	if x.Finished == 0 || x.Started != 0 {
		e.broken(rule, "started %d, finished %d", x.Started, x.Finished)
	}
	same(e, rule, "the active key afterwards", e.claim(long, cron("report", tick+1))[0].Outcome, store.OutcomeStarted)
}

func claimPaused(e *env) {
	const rule = "a tick of a paused job is recorded as skipped(paused); other classes start"
	tick := e.register("report")
	pause := store.Pause{Namespace: space, Job: "report", By: "ann", Reason: "audit"}
	st, err := e.s.SetPause(e.ctx, pause)
	e.must(err)
	e.until(max(st.Paused, tick))
	before := cron("report", st.Paused-1)
	during := cron("report", st.Paused+1)
	if before.Key.Tick >= tick {
		same(e, "a tick before the pause is claimed", "outcome", e.claim(long, before)[0].Outcome, store.OutcomeStarted)
	}
	c := e.claim(long, during)[0]
	same(e, rule, "outcome", c.Outcome, store.OutcomeSkipped)
	same(e, rule, "state", c.Execution.State, store.StateSkipped)
	same(e, rule, "reason", c.Execution.Reason, store.ReasonPaused)
	manual := store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassManual, Job: "report", Request: "r1"})}
	same(e, rule, "manual run", e.claim(long, manual)[0].Outcome, store.OutcomeStarted)

	e.until(during.Key.Tick + 1)
	pause.Off = true
	st, err = e.s.SetPause(e.ctx, pause)
	e.must(err)
	same(e, "a tick that fell into a pause is skipped(paused), also after it", "outcome", e.claim(long, free("report", during.Key.Tick+1))[0].Outcome, store.OutcomeSkipped)
	same(e, "a resumed job runs", "outcome", e.claim(long, free("report", st.PausedUntil))[0].Outcome, store.OutcomeStarted)
	pause.Off, pause.For = false, 5*time.Millisecond
	st, err = e.s.SetPause(e.ctx, pause)
	e.must(err)
	e.until(st.PausedUntil)
	same(e, "a pause with an end ends by itself", "outcome", e.claim(long, free("report", st.PausedUntil))[0].Outcome, store.OutcomeStarted)
}

func claimSuperseded(e *env) {
	const rule = "a claim under a schedule that is not in force is refused, and nothing is recorded"
	tick := e.register("report")
	old := cron("report", tick)
	old.SpecHash = "spec-0"
	c := e.claim(long, old)[0]
	same(e, rule, "outcome", c.Outcome, store.OutcomeSuperseded)
	if _, err := e.s.Find(e.ctx, space, old.Key); !errors.Is(err, store.ErrNotFound) {
		e.broken(rule, "Find after a refused claim: %v, want ErrNotFound", err)
	}
	old.SpecHash = "spec-1"
	same(e, "a claim under the schedule in force starts", "outcome", e.claim(long, old)[0].Outcome, store.OutcomeStarted)
}

// claimFormer changes the schedule between ticks and their claims, as a replica does
// whose configuration is changed while others have a tick on its way.
func claimFormer(e *env) {
	const rule = "a tick belongs to the schedule that was in force at it, and another's claim of it is refused once that is known"
	e.register("report")
	e.until(e.now())
	before := e.now()
	r, err := e.s.Register(e.ctx, space, []store.JobSpec{{Job: "report", Spec: "new", Hash: "spec-2", Revision: 9}})
	e.must(err)
	from := r.Jobs[0].Current().From
	if from < before.Add(store.EarlyTolerance) || from > e.now().Add(store.EarlyTolerance) {
		e.broken("a schedule that replaces another is in force from the store's time + EarlyTolerance on", "from %s, registered after %s", from, before)
	}
	e.until(from.Add(2 * time.Millisecond))
	claim := func(tick store.Millis, hash string) store.Outcome {
		c := free("report", tick)
		c.SpecHash = hash
		return e.claim(long, c)[0].Outcome
	}
	same(e, rule, "the former schedule after its end", claim(from+1, "spec-1"), store.OutcomeSuperseded)
	same(e, rule, "no schedule of the job", claim(from, "spec-0"), store.OutcomeSuperseded)
	same(e, rule, "the former schedule at its end", claim(from, "spec-1"), store.OutcomeStarted)
	same(e, rule, "the schedule in force", claim(from+1, "spec-2"), store.OutcomeStarted)
	keyed := free("report", 0)
	keyed.Key, keyed.SpecHash = store.Key{Class: store.ClassKey, Job: "report", Name: "by hand"}, "spec-1"
	same(e, "only a tick is bound to a time", "a key under the former schedule", e.claim(long, keyed)[0].Outcome, store.OutcomeSuperseded)
}

func claimDedup(e *env) {
	const rule = "at most one row has a dedup key; it is free again when the run starts"
	tick := e.register("report")
	held := e.start(long, cron("report", tick))
	slot := store.HashOf("test", "slot")
	waits := func(at store.Millis) store.ClaimRun {
		c := cron("report", at)
		c.Busy, c.Dedup = store.BusyBuffer, slot
		return c
	}
	a := e.claim(long, waits(tick+1))[0]
	same(e, rule, "first in the slot", a.Outcome, store.OutcomeBusy)
	same(e, rule, "first in the slot", a.Execution.State, store.StatePending)
	b := e.claim(long, waits(tick+2))[0]
	same(e, rule, "second in the slot", b.Outcome, store.OutcomeDuplicate)
	same(e, rule, "row that blocks", b.Execution.ID, a.Execution.ID)
	other := row(queueKey("mail", "1"))
	other.Dedup = slot
	same(e, rule, "enqueue into the slot", e.enqueue(other)[0].Outcome, store.OutcomeDuplicate)
	e.end(held, store.StateSucceeded)
	if got := e.fetch(long, 1, "report").Runs; len(got) != 1 || got[0].ID != a.Execution.ID {
		e.Fatalf("fetch of the buffered tick: got %d rows", len(got))
	}
	c := e.claim(long, waits(tick+3))[0]
	same(e, rule, "slot after the start", c.Outcome, store.OutcomeBusy)
	_, err := e.s.Cancel(e.ctx, space, c.Execution.ID)
	e.must(err)
	same(e, "a dedup key is free when its row ends unstarted", "enqueue", e.enqueue(other)[0].Outcome, store.OutcomeEnqueued)
}

func claimAtWatermark(e *env) {
	const rule = "a tick at or before the settled watermark is a duplicate, whether or not it has a row; other classes go on"
	first := e.register("report")
	e.until(first + 10)
	_, err := e.s.Settle(e.ctx, settleOne("report", first-1, first+5), nothing)
	e.must(err)
	for _, tick := range []store.Millis{first - 1000, first, first + 5} {
		c := e.claim(long, cron("report", tick))[0]
		same(e, rule, "outcome "+tick.String(), c.Outcome, store.OutcomeDuplicate)
		same(e, rule, "row", c.Execution.ID, store.ID{})
	}
	backfill := store.ClaimRun{NewExecution: row(store.Key{Class: store.ClassBackfill, Job: "report", Tick: first, Request: "r"})}
	same(e, rule, "backfill", e.claim(long, backfill)[0].Outcome, store.OutcomeStarted)
	same(e, "a tick after the watermark is claimed", "outcome", e.claim(long, cron("report", first+6))[0].Outcome, store.OutcomeStarted)
}

func keyParts(e *env) {
	tick := e.register("report", "mail")
	keys := []store.Key{
		cronKey("report", tick),
		cronKey("mail", tick),
		cronKey("report", tick+1),
		{Class: store.ClassCron, Job: "report", Tick: tick, Shard: 1},
		{Class: store.ClassBackfill, Job: "report", Tick: tick},
		{Class: store.ClassBackfill, Job: "report", Tick: tick, Request: "a"},
		{Class: store.ClassManual, Job: "report", Request: "a"},
		{Class: store.ClassManual, Job: "report", Request: "b"},
		queueKey("mail", "a"),
		queueKey("mail", "b"),
	}
	for _, k := range keys {
		c := store.ClaimRun{NewExecution: row(k)}
		same(e, "runs that differ in one part of the key are two", k.String(), e.claim(long, c)[0].Outcome, store.OutcomeStarted)
	}
	for _, k := range keys {
		c := store.ClaimRun{NewExecution: row(k)}
		same(e, oneRow, k.String(), e.claim(long, c)[0].Outcome, store.OutcomeDuplicate)
	}
}
