package store

import (
	"context"
	"errors"
	"time"
)

// Store keeps executions. Implementations are safe for concurrent use, answer
// within the caller's context, and return errors that match ErrUnavailable when
// the database cannot answer. Such an error says nothing about whether the
// request was applied. Every method is safe to repeat with the same request: a
// repeat of an applied Claim, Enqueue (with the caller's IDs) or Finish gives the
// answer it had, whatever happened to the job meanwhile (settled, paused, another
// schedule); but a Claim never answers OutcomeStarted for a row that has left the
// first attempt it gave the caller: that is OutcomeDuplicate. Rows of a Fetch or
// TakeOver whose answer was lost are taken over after their lease.
type Store interface {
	// Register makes the jobs known, in one transaction. A new job's watermark
	// is the store's time now: history is never run. A schedule other than the
	// one in force becomes a new revision if its number is not lower, from the store's
	// time + EarlyTolerance on, so that no tick which could have been claimed before is
	// the new one's; otherwise
	// the job is answered as it is and the caller sees that it is superseded. A
	// spec that is in force already changes nothing but its number, if higher.
	Register(ctx context.Context, ns string, jobs []JobSpec) (Registered, error)

	// Claim materialises ticks and keyed runs, in one transaction, in order. See
	// ClaimRequest and the outcomes.
	Claim(ctx context.Context, r ClaimRequest) (Claimed, error)

	// Enqueue inserts pending rows. The same key again is OutcomeDuplicate.
	Enqueue(ctx context.Context, ns string, rows []NewExecution) ([]Enqueued, error)

	// Fetch claims pending rows that are due, in the order priority, RunAt, ID.
	// It passes over rows whose active key is held, rows that have an earlier open
	// row of the same lock key, and paused jobs (but for class manual).
	Fetch(ctx context.Context, r FetchRequest) (Fetched, error)

	// TakeOver deals with running rows whose lease has ended: each is handed to
	// the caller as a new attempt, or settled by its crash policy or that of its job
	// (FetchRequest.OnCrash), whichever is the stricter. A row to be rerun
	// whose attempts are used up becomes failed(poison), and one that was asked to end
	// canceled(lost).
	TakeOver(ctx context.Context, r FetchRequest) (TakenOver, error)

	// Heartbeat starts the leases of the caller's running rows anew, in one
	// statement. The answer has one entry per beat, in order.
	Heartbeat(ctx context.Context, r HeartbeatRequest) (Heartbeats, error)

	// Finish moves rows out of running, each guarded by its Ref, in one
	// transaction. The answer has one entry per row, in order: nil, ErrFenced
	// when the attempt no longer holds the row (or there is no such row), ErrCanceled
	// when it was to be pending and is canceled, as somebody had asked, or an error
	// of that row. A repeat of a finish that was applied is answered alike.
	Finish(ctx context.Context, rows []Finish) ([]error, error)

	// Survey reads the jobs' states without a lock. Empty jobs means all.
	Survey(ctx context.Context, ns string, jobs []string) (Surveyed, error)

	// Settle accounts for expected ticks. For each job whose watermark is still
	// Seen it locks the job, collects what is recorded in (Seen, To], asks decide
	// what to write, writes it and moves the watermark to To, all in one
	// transaction. Decide is pure and may be called again. Jobs whose watermark
	// has moved are passed over.
	Settle(ctx context.Context, r SettleRequest, decide func(TickView) Settlement) (SettleResult, error)

	// Revive makes ticks that were skipped(degraded) pending again: those among the
	// latest Limit rows at or after Since whose reason is degraded. A revived row
	// keeps its reason, so that a second call revives nothing more.
	Revive(ctx context.Context, r ReviveRequest) (int, error)

	// SetPause pauses or resumes a job that is registered.
	SetPause(ctx context.Context, p Pause) (JobState, error)

	// Cancel ends a pending run at once and asks a running one to end: its owner
	// sees that at the next heartbeat. There is no other attempt of it: where it would
	// be pending again, or be run again after its owner's death, it is canceled.
	// The answer is the row afterwards.
	Cancel(ctx context.Context, ns string, id ID) (Execution, error)

	// Retry makes a run that failed, was canceled or is indeterminate pending again,
	// due now, with at least one attempt left: where they are used up, the bound rises
	// by one. The attempt that ended becomes part of the history, with the name of who
	// asked. A run that is open is answered as it is; any other, and one whose
	// arguments are pruned, is an error that matches ErrState. It does not ask whether
	// an indeterminate effect happened: whoever calls it has.
	Retry(ctx context.Context, ns string, id ID, by string) (Execution, error)

	// Attempts returns the attempts of an execution that ended without ending the run,
	// oldest first. The last attempt is the execution itself. One that was taken back
	// (Finish.Unstarted) is none. They go when their execution is pruned.
	Attempts(ctx context.Context, ns string, id ID) ([]Attempt, error)

	// Prune removes records that ended longer ago than the request's ages, by the
	// store's clock, in batches of a transaction each; a call that is cut short has
	// done some of its work. Open runs stay. Ticks go only when they are settled, and
	// the job's prune watermark is raised in the same transaction, so that no tick up
	// to it can be claimed ever again.
	Prune(ctx context.Context, r PruneRequest) (Pruned, error)

	// Get returns one execution, or ErrNotFound.
	Get(ctx context.Context, ns string, id ID) (Execution, error)

	// Find returns the execution of a key, or ErrNotFound.
	Find(ctx context.Context, ns string, key Key) (Execution, error)

	// List returns executions by filter, newest first (by tick or RunAt, then ID).
	List(ctx context.Context, f Filter) ([]Execution, error)

	// Ranges returns the tick ranges of a job that touch [from, to].
	Ranges(ctx context.Context, ns, job string, from, to Millis) ([]TickRange, error)

	// Ledger counts the records of class cron with a tick in (from, to], rows and
	// ranges together. A range counts as a whole, where its last tick lies. Ticks up to
	// the job's prune watermark are not counted, as some have lost their record: see
	// Ledger.Pruned.
	Ledger(ctx context.Context, ns, job string, from, to Millis) (Ledger, error)

	// Sizes tells how large the store's tables are, for metrics and for people.
	Sizes(ctx context.Context) ([]TableSize, error)

	// Now is the store's clock.
	Now(ctx context.Context) (Millis, error)
}

var (
	// ErrUnavailable matches every error that says the database could not answer.
	ErrUnavailable = errors.New("store: unavailable")
	// ErrFenced says that the attempt no longer holds its run: another attempt or
	// owner does, or it is finished. What was to be written with it must not be.
	ErrFenced = errors.New("store: fenced: this attempt no longer holds the run")
	// ErrCanceled answers a finish as pending of a run that somebody had asked to end:
	// it is recorded as canceled instead.
	ErrCanceled = errors.New("store: the run was asked to end, and is canceled")
	// ErrNotFound says that there is no such record.
	ErrNotFound = errors.New("store: not found")
	// ErrSchema matches errors of a database whose tables are missing, older or
	// newer than this program.
	ErrSchema = errors.New("store: schema")
	// ErrTooLarge says that a result has more than MaxResult bytes. Where it was to be
	// kept together with writes, these were rolled back.
	ErrTooLarge = errors.New("store: the result is too large to be kept: put it into a table of yours, and its key into the result")
)

// MaxResult is the most bytes of a run's result that its record keeps. Package
// scheduler and package idempotent see to it; a store takes what it is given.
const MaxResult = 64 << 10

// EarlyTolerance is how far a tick may lie ahead of the store's clock and still
// be claimed.
const EarlyTolerance = 50 * time.Millisecond

// Registered is the answer to Register: the states in the order asked for.
type Registered struct {
	Now  Millis
	Jobs []JobState
}

// DefaultMaxAttempts bounds the attempts of an enqueued row that names no bound
// itself, so that one which kills its process every time does not do so for ever. What
// errors may use up is left to the job then.
const DefaultMaxAttempts = 34

// NewExecution is a row to be inserted. Fields that the store sets itself are
// not here.
type NewExecution struct {
	// ID is made by the caller, so that a repeated request is told from a rival's
	// for the same key; the zero ID lets the store make one.
	ID          ID
	Key         Key
	Queue       string
	LockKey     string
	Active      Hash // active key to hold while running; zero for none
	Dedup       Hash
	RunAt       Millis        // 0: the store's time now
	Delay       time.Duration // added to RunAt
	Priority    int
	MaxAttempts int           // bounds what the job allows; 0: no bound, see DefaultMaxAttempts
	OnCrash     OnCrash       // that of the job counts where it is stricter
	Timeout     time.Duration // of one attempt, where the job's is longer; 0: the job's
	Mode        Mode
	Zone        string
	SpecHash    string
	Args        []byte
	MissedCount int
	TraceParent string
	CreatedBy   string
}

// ClaimRequest asks for runs to start now.
type ClaimRequest struct {
	Namespace  string
	Owner      Owner
	OwnerLabel string
	Lease      time.Duration
	Runs       []ClaimRun
}

// BusyPolicy says how a run is recorded whose active key is held.
type BusyPolicy int8

// The policies for a held active key.
const (
	BusySkip   BusyPolicy = iota // skipped(overlap)
	BusyBuffer                   // pending: it runs when the key is free
	BusyRefuse                   // nothing is recorded
)

// ClaimRun is one run to claim. Its job must be registered. A SpecHash that is set
// refuses the claim (OutcomeSuperseded) unless it is that of the schedule in force
// or, for class cron, of the one that was in force at the tick. A run of class cron whose job is paused at the tick is recorded as skipped(paused).
type ClaimRun struct {
	NewExecution
	Busy BusyPolicy
	// Skip records the run as skipped for this reason instead of starting it.
	Skip Reason
}

// Outcome of a claim or an enqueue.
type Outcome int8

// The outcomes.
const (
	OutcomeStarted    Outcome = iota + 1 // running, held by the caller
	OutcomeEnqueued                      // pending
	OutcomeDuplicate                     // the key has a record, or its tick is settled or pruned
	OutcomeBusy                          // active key held: recorded by the busy policy
	OutcomeSkipped                       // recorded as skipped, as asked for or because the job is paused
	OutcomeEarly                         // later than the store's time + EarlyTolerance: nothing recorded, see Wait
	OutcomeSuperseded                    // another schedule is in force: nothing recorded
)

// String names the outcome.
func (o Outcome) String() string {
	names := [...]string{"", "started", "enqueued", "duplicate", "busy", "skipped", "early", "superseded"}
	if o > 0 && int(o) < len(names) {
		return names[o]
	}
	return "Outcome(?)"
}

// Claimed is the answer to Claim, one entry per run, in order.
type Claimed struct {
	Now  Millis
	Runs []ClaimedRun
}

// ClaimedRun is the answer for one run.
type ClaimedRun struct {
	Outcome Outcome
	// Execution is the row: the caller's when started, the recorded one when
	// busy, skipped or duplicate (zero when the row is pruned or in a range).
	Execution Execution
	Wait      time.Duration // OutcomeEarly: ask again after this
}

// Enqueued is the answer for one enqueued row.
type Enqueued struct {
	Outcome   Outcome // OutcomeEnqueued or OutcomeDuplicate
	Execution Execution
}

// FetchRequest asks for rows to run.
type FetchRequest struct {
	Namespace  string
	Owner      Owner
	OwnerLabel string
	Lease      time.Duration
	Jobs       []string // job names and kinds that the caller can run; never empty
	Limit      int      // at least 1
	// OnCrash has the crash policies of the jobs, for TakeOver. A job that is not in it
	// leaves it to the row.
	OnCrash map[string]OnCrash
}

// Fetched is the answer to Fetch. Every execution is running and the caller's.
type Fetched struct {
	Now  Millis
	Runs []Execution
	More bool // there may be more rows that are due
}

// TakenOver is the answer to TakeOver.
type TakenOver struct {
	Now     Millis
	Runs    []Execution // running and the caller's, a new attempt each
	Settled []Execution // settled by crash policy or attempt cap
	More    bool
}

// Beat names a running attempt of the caller's.
type Beat struct {
	ID      ID
	Attempt int
}

// HeartbeatRequest renews leases.
type HeartbeatRequest struct {
	Namespace string
	Owner     Owner
	Lease     time.Duration
	Beats     []Beat
}

// BeatAnswer is the answer for one beat.
type BeatAnswer struct {
	Lost            bool // the attempt no longer holds the row
	CancelRequested bool
}

// Heartbeats is the answer to Heartbeat.
type Heartbeats struct {
	Now   Millis // 0 if this store does not read its clock here
	Beats []BeatAnswer
}

// Finish moves a row out of running.
type Finish struct {
	Ref       Ref
	State     State         // pending means: try again after Delay
	Delay     time.Duration // for pending, by the store's clock
	Reason    Reason        // replaces the row's unless empty
	Mode      Mode          // replaces the row's unless empty
	Result    []byte
	ErrorCode string
	ErrorText string
	// Unstarted takes the attempt back (pending only): the handler was not called.
	Unstarted bool
}

// Surveyed is the answer to Survey.
type Surveyed struct {
	Now          Millis
	Jobs         []JobState // in name order
	NextLeaseEnd Millis     // earliest lease end of the running rows; 0 when none runs
	NextRunAt    Millis     // earliest RunAt of the pending rows; 0 when none waits
}

// SettleJob is a job with ticks to account for in (Seen, To].
type SettleJob struct {
	Job  string
	Seen Millis // watermark as surveyed
	To   Millis
}

// SettleRequest settles jobs.
type SettleRequest struct {
	Namespace string
	Jobs      []SettleJob
}

// TickRecord is a recorded tick.
type TickRecord struct {
	Tick  Millis
	State State
}

// Span is the time during which a run of the job held its place, from the claim
// of a pending or new row, over takeovers, to its end; To is 0 while it runs. The
// time that a row waits for a retry does not belong to it.
type Span struct{ From, To Millis }

// TickView is what decide sees of one job.
type TickView struct {
	SettleJob
	Now      Millis
	State    JobState
	Recorded []TickRecord // class cron, tick in (Seen, To], oldest first
	Runs     []Span       // runs of any class that touch [Seen, now], oldest first
	// LastRun is the latest tick of class cron that ran, runs or waits to; 0 if none
	// is known. It may lie after To.
	LastRun Millis
}

// SettleTick is a tick to be recorded by a row of its own.
type SettleTick struct {
	NewExecution
	State  State // pending, skipped or missed
	Reason Reason
}

// Settlement is what decide wants written. Every expected tick in (Seen, To]
// that is not in Recorded must be in exactly one of the two.
type Settlement struct {
	Ticks  []SettleTick
	Ranges []TickRange
	// To, if not 0, moves the watermark only this far (bounded work per sweep). At Seen it
	// stays, and the store still writes something.
	To Millis
}

// SettleResult tells what was written.
type SettleResult struct {
	Now     Millis
	Settled int // jobs whose watermark moved
	Pending int // rows inserted pending
	Passed  int // jobs whose watermark had moved before
}

// ReviveRequest revives ticks of one job that were skipped(degraded).
type ReviveRequest struct {
	Namespace string
	Job       string
	Since     Millis
	Limit     int
}

// Filter selects executions. Zero fields do not restrict.
type Filter struct {
	Namespace string
	Jobs      []string
	Queues    []string
	Classes   []Class
	States    []State
	From, To  Millis // tick, or RunAt where there is none
	Limit     int    // 0 means 100
}

// Ledger counts ticks by what became of them.
type Ledger struct {
	// Pruned is the job's prune watermark if it lies after the beginning of the stretch
	// asked for: the count begins there, and what is owed must be counted from there,
	// too. 0 if all that was asked for is counted.
	Pruned Millis

	Pending, Running int64
	Ran              int64 // succeeded, failed, canceled, indeterminate
	Skipped, Missed  int64
}

// Total is the number of ticks with a record.
func (l Ledger) Total() int64 { return l.Pending + l.Running + l.Ran + l.Skipped + l.Missed }
