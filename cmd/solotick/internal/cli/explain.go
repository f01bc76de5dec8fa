package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// explanation is what became of a tick or a run, as "explain -o json" prints it.
type explanation struct {
	Job      string       `json:"job"`
	Tick     string       `json:"tick,omitempty"`
	Expected *bool        `json:"expected,omitempty"` // by the schedule in force then; none for what is not a tick
	Schedule string       `json:"schedule,omitempty"` // in force then
	TimeZone string       `json:"timezone,omitempty"`
	Previous string       `json:"previous,omitempty"` // tick, where the instant is none
	Next     string       `json:"next,omitempty"`
	Record   string       `json:"record"` // run, stretch, pruned, none
	Answer   []string     `json:"answer"` // in plain words
	Run      *runRow      `json:"run,omitempty"`
	Stretch  *runRow      `json:"stretch,omitempty"`
	Attempts []attemptRow `json:"attempts,omitempty"`
	Settled  string       `json:"settled,omitempty"` // every tick of the job up to here is accounted for
	Pruned   string       `json:"pruned,omitempty"`  // ticks up to here may have lost their record
}

// The kinds of records.
const (
	recordRun     = "run"
	recordStretch = "stretch"
	recordPruned  = "pruned"
	recordNone    = "none"
)

// attemptRow is an attempt, superseded or the last.
type attemptRow struct {
	Attempt    int    `json:"attempt"`
	End        string `json:"end"` // retry, lost, or the state that the run is in
	Reason     string `json:"reason,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Started    string `json:"started,omitempty"`
	Ended      string `json:"ended,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
	Fence      int64  `json:"fence,omitempty"`
	Mode       string `json:"mode,omitempty"`
	ErrorCode  string `json:"error_code,omitempty"`
	Error      string `json:"error,omitempty"`
	Note       string `json:"note,omitempty"`
}

func newExplain() *cobra.Command {
	var zone string
	cmd := &cobra.Command{
		Use:     "explain JOB TIME | explain RUN",
		GroupID: groupLook,
		Short:   "Tell what became of a tick or a run, and why",
		Long: `Tell what became of a tick or a run, and why.

For a job and a time: whether the schedule that was in force then owed a tick,
whether there is a record, each attempt with owner, times and outcome, and, if
nothing ran, why not. TIME without an offset is read in --tz.

For a run, by the id that 'solotick runs -o json' shows: its attempts.

` + defaultFileHelp + `

Exit codes: 0 it is explained, 1 the store knows nothing of it or did not answer,
2 bad arguments or configuration.`,
		Example: `  solotick explain nightly-report 2026-03-29T02:00:00Z -c solotick.yaml
  solotick explain nightly-report "2026-03-29 02:00" --tz Europe/Berlin -o json
  solotick explain 019bd1c4d0a07f3e8a1b2c3d4e5f6071`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return fmt.Errorf("%s given, want JOB and TIME, or RUN", plural(len(args), "argument"))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&zone, "tz", "UTC", "zone of a TIME without an offset")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		ask, err := question(args, zone)
		if err != nil {
			return err
		}
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		st, err := site.readStore(ctx)
		if err != nil {
			return err
		}
		x, err := ask(ctx, st, site.namespace())
		if err != nil {
			return err
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), x)
		}
		return x.print(cmd.OutOrStdout())
	})
	return cmd
}

// question reads the arguments.
func question(args []string, zone string) (func(context.Context, store.Store, string) (*explanation, error), error) {
	if len(args) == 1 {
		id, err := parseRun(args[0])
		return func(ctx context.Context, st store.Store, ns string) (*explanation, error) {
			return explainRun(ctx, st, ns, id)
		}, err
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return nil, usagef("--tz: %q is not a zone: write a name such as Europe/Berlin", zone)
	}
	at, err := parseInstant("TIME", args[1], time.Now(), loc)
	return func(ctx context.Context, st store.Store, ns string) (*explanation, error) {
		return explainTick(ctx, st, ns, args[0], store.MillisOf(at))
	}, err
}

func noRun(ns string, id store.ID) error {
	return fmt.Errorf("the store has no run %s in namespace %q: it may be pruned", id, ns)
}

func explainRun(ctx context.Context, st store.Store, ns string, id store.ID) (*explanation, error) {
	e, err := st.Get(ctx, ns, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noRun(ns, id)
	}
	if err != nil {
		return nil, err
	}
	now, err := st.Now(ctx)
	if err != nil {
		return nil, err
	}
	x := &explanation{Job: e.Key.Job, Tick: instant(e.Key.Tick)}
	return x, x.tell(ctx, st, e, now)
}

// tell fills in the record of a run, with its attempts.
func (x *explanation) tell(ctx context.Context, st store.Store, e store.Execution, now store.Millis) error {
	before, err := st.Attempts(ctx, e.Namespace, e.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) { // pruned meanwhile
		return err
	}
	row := rowOf(e)
	x.Record, x.Run = recordRun, &row
	x.Attempts = attemptRows(before, e)
	x.Answer = append(x.Answer, runInWords(e, now))
	return nil
}

func (x *explanation) say(format string, args ...any) {
	x.Answer = append(x.Answer, fmt.Sprintf(format, args...))
}

// attemptRows are the superseded attempts and the last one, which is the record's.
func attemptRows(before []store.Attempt, e store.Execution) []attemptRow {
	rows := make([]attemptRow, 0, len(before)+1)
	kept := false
	for _, a := range before {
		kept = a.Number == e.Attempt
		rows = append(rows, attemptRow{
			Attempt: a.Number, End: string(a.End), Reason: string(a.Reason), Owner: a.OwnerLabel, Started: instant(a.Started),
			Ended: instant(a.Ended), DurationMS: max(a.Ended.Sub(a.Started).Milliseconds(), 0), Fence: a.Fence, Mode: string(a.Mode),
			ErrorCode: a.ErrorCode, Error: a.ErrorText, Note: a.Note,
		})
	}
	if e.Attempt == 0 || kept { // it waits for the next
		return rows
	}
	last := rowOf(e)
	return append(rows, attemptRow{
		Attempt: e.Attempt, End: last.State, Reason: last.Reason, Owner: last.Owner, Started: last.Started, Ended: last.Finished,
		DurationMS: last.DurationMS, Fence: last.Fence, Mode: last.Mode, ErrorCode: last.ErrorCode, Error: last.Error,
	})
}

// runInWords tells the state of a run.
func runInWords(e store.Execution, now store.Millis) string {
	switch e.State {
	case store.StatePending:
		switch {
		case e.RunAt > now:
			return fmt.Sprintf("It waits until %s, then it is attempt %d.", instant(e.RunAt), e.Attempt+1)
		case e.Attempt > 0:
			return fmt.Sprintf("It waits for a worker to take up attempt %d.", e.Attempt+1)
		}
		return "It waits for a worker: none that knows the job has room, the job is paused, or a run that it must not overlap is in progress."
	case store.StateRunning:
		text := fmt.Sprintf("Attempt %d runs on %s since %s.", e.Attempt, orDefault(e.OwnerLabel, "a process without a label"), instant(e.Started))
		if e.LeaseUntil < now {
			text += fmt.Sprintf(" Its lease ended at %s: the process is gone or stuck, and another worker will take over.", instant(e.LeaseUntil))
		}
		if e.CancelRequested {
			text += " Somebody has asked it to stop."
		}
		return text
	case store.StateSucceeded:
		text := fmt.Sprintf("It ran: attempt %d succeeded at %s.", e.Attempt, instant(e.Finished))
		if e.MissedCount > 0 {
			text += fmt.Sprintf(" It stands for %s before it that did not run.", plural(e.MissedCount, "tick"))
		}
		return text
	case store.StateFailed:
		return fmt.Sprintf("It failed at %s, on attempt %d%s. 'solotick retry %s' runs it again.", instant(e.Finished), e.Attempt, because(e.Reason), e.ID)
	case store.StateCanceled:
		if e.Attempt == 0 {
			return "Somebody canceled it before it ran."
		}
		text := fmt.Sprintf("It was canceled at %s, on attempt %d", instant(e.Finished), e.Attempt)
		if e.Reason == store.ReasonLost {
			text += ", in which its worker died"
		}
		return text + "."
	case store.StateIndeterminate:
		return fmt.Sprintf("It may have had its effect: its worker was lost at attempt %d, and the job must not run twice. Find out; 'solotick retry %s' runs it again.", e.Attempt, e.ID)
	case store.StateSkipped, store.StateMissed:
		return "It did not run" + because(e.Reason) + "."
	}
	return "Its state is unknown to this program: " + e.State.String() + "."
}

// because tells a reason in words.
func because(r store.Reason) string {
	switch r {
	case store.ReasonNone:
		return ""
	case store.ReasonOverlap:
		return ": the previous run was still in progress"
	case store.ReasonPaused:
		return ": the job was paused"
	case store.ReasonDegraded:
		return ": the coordinator was away, and the job fails fast then"
	case store.ReasonSuperseded:
		return ": it was late, and a later tick ran in its place"
	case store.ReasonMisfire:
		return ": it was late, and the job's policy is to skip late ticks"
	case store.ReasonWindow:
		return ": it was older than the catch-up window, or over its cap, when a worker came to it"
	case store.ReasonLost:
		return ": its worker died, and the job's policy is not to run it again"
	case store.ReasonPoison:
		return ": its worker died on every attempt that it had"
	}
	return " (" + string(r) + ")"
}

func explainTick(ctx context.Context, st store.Store, ns, job string, tick store.Millis) (*explanation, error) {
	known, err := st.Survey(ctx, ns, []string{job})
	if err != nil {
		return nil, err
	}
	if len(known.Jobs) == 0 {
		return nil, fmt.Errorf("the store has no job %q in namespace %q: no worker has registered it", job, ns)
	}
	state := known.Jobs[0]
	x := &explanation{Job: job, Tick: instant(tick), Record: recordNone, Settled: instant(state.Settled), Pruned: instant(state.Pruned)}
	expected, err := x.expect(state, tick)
	if err != nil {
		return nil, err
	}
	e, err := st.Find(ctx, ns, store.Key{Class: store.ClassCron, Job: job, Tick: tick})
	switch {
	case err == nil:
		return x, x.tell(ctx, st, e, known.Now)
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	ranges, err := st.Ranges(ctx, ns, job, tick, tick)
	if err != nil {
		return nil, err
	}
	if len(ranges) > 0 && expected {
		row := rowOfRange(ranges[0])
		x.Record, x.Stretch = recordStretch, &row
		x.say("It did not run%s.", because(ranges[0].Reason))
		if ranges[0].Count > 1 {
			x.say("So did none of %s from %s to %s.", plural(int(ranges[0].Count), "tick"), instant(ranges[0].From), instant(ranges[0].To))
		}
		return x, nil
	}
	x.absent(state, tick, known.Now, expected)
	return x, nil
}

// expect tells by the schedule that was in force then whether a tick was owed.
func (x *explanation) expect(state store.JobState, tick store.Millis) (bool, error) {
	expected := false
	x.Expected = &expected
	var in store.Revision
	for i, r := range state.Revisions {
		if r.From < tick || i == 0 { // a revision owes what lies after it
			in = r
		}
	}
	switch {
	case len(state.Revisions) == 0 || in.Spec == "":
		x.say("%s had no schedule then: it runs when it is enqueued or triggered.", x.Job)
		return false, nil
	case tick <= in.From:
		x.say("The job was registered at %s: what lies before that is never run.", instant(in.From))
		return false, nil
	}
	spec, err := cronspec.Unmarshal(in.Spec)
	if err != nil {
		return false, fmt.Errorf("the schedule in force at %s cannot be read by this program: %w", instant(tick), err)
	}
	x.Schedule, x.TimeZone = spec.String(), spec.Zone()
	next, ok := spec.Next(tick.Add(-time.Millisecond).Time())
	if expected = ok && store.MillisOf(next) == tick; expected {
		x.say("The schedule in force then, %s in %s, owed this tick.", spec, spec.Zone())
		return true, nil
	}
	x.say("The schedule in force then, %s in %s, owed no tick at this instant.", spec, spec.Zone())
	if ok {
		x.Next = rfc3339(next)
	}
	if last, ok := spec.Last(tick.Time(), in.From.Time()); ok {
		x.Previous = rfc3339(last)
	}
	return false, nil
}

// absent tells why there is no record of the tick.
func (x *explanation) absent(state store.JobState, tick, now store.Millis, expected bool) {
	switch {
	case !expected:
		if x.Previous != "" || x.Next != "" {
			x.say("The ticks around it: %s and %s.", orDefault(x.Previous, "none"), orDefault(x.Next, "none"))
		}
	case tick <= state.Pruned:
		x.Record = recordPruned
		x.say("Its record is gone: old records were pruned, ticks up to %s among them. It cannot run again.", instant(state.Pruned))
	case tick <= state.Settled:
		x.say("It is accounted for, and yet has no record. That must not happen: please report it.")
	case tick > now:
		x.say("It is not due yet.")
		if state.PausedAt(tick) {
			x.say("It will be skipped: the job is paused%s.", pausedBy(state))
		}
	default:
		x.say("It has no record yet: ticks are accounted for up to %s. A worker that runs the job will make up for it, or record why not.", instant(state.Settled))
		if state.PausedAt(tick) {
			x.say("It will be skipped: the job was paused%s.", pausedBy(state))
		}
	}
}

func pausedBy(state store.JobState) string {
	text := ""
	if state.PausedBy != "" {
		text += " by " + state.PausedBy
	}
	if state.PauseReason != "" {
		text += " (" + state.PauseReason + ")"
	}
	return text
}

func (x *explanation) print(w io.Writer) error {
	what := x.Job
	switch {
	case x.Tick != "":
		what += " at " + x.Tick
	case x.Run != nil && x.Run.Key != "":
		what += "/" + x.Run.Key
	}
	fmt.Fprintln(w, printable(what))
	for _, line := range x.Answer {
		fmt.Fprintln(w, printable(line))
	}
	if len(x.Attempts) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	cells := make([][]string, len(x.Attempts))
	for i, a := range x.Attempts {
		end, took := a.End, ""
		if a.Reason != "" {
			end += " (" + a.Reason + ")"
		}
		if a.Ended != "" {
			took = (time.Duration(a.DurationMS) * time.Millisecond).String()
		}
		note := a.Error
		if a.Mode != "" {
			note = "ran under " + a.Mode + " " + note
		}
		if a.Note != "" {
			note = a.Note + ": " + note
		}
		cells[i] = []string{strconv.Itoa(a.Attempt), end, a.Owner, a.Started, a.Ended, took, strconv.FormatInt(a.Fence, 10), oneLine(note)}
	}
	return printTable(w, []string{"ATTEMPT", "END", "OWNER", "STARTED", "ENDED", "TOOK", "FENCE", "NOTE"}, cells)
}
