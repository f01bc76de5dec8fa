package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/store"
)

// runRow is a run, or a stretch of ticks that did not run for one reason, as "runs
// -o json" prints it.
type runRow struct {
	ID          string `json:"id,omitempty"` // none for a stretch
	Job         string `json:"job"`
	Class       string `json:"class"`
	Key         string `json:"key,omitempty"`  // of a queue job or a command run once
	Tick        string `json:"tick,omitempty"` // first tick of a stretch
	LastTick    string `json:"last_tick,omitempty"`
	Count       int64  `json:"count"` // ticks: 1, or those of the stretch
	State       string `json:"state"`
	Reason      string `json:"reason,omitempty"`
	Mode        string `json:"mode,omitempty"` // degradation mode it ran under
	Attempt     int    `json:"attempt"`
	MissedCount int    `json:"missed_count,omitempty"` // ticks that a catch-up stands for
	Owner       string `json:"owner,omitempty"`
	Fence       int64  `json:"fence,omitempty"`
	RunAt       string `json:"run_at,omitempty"`
	Created     string `json:"created,omitempty"`
	Started     string `json:"started,omitempty"`
	Finished    string `json:"finished,omitempty"`
	DurationMS  int64  `json:"duration_ms,omitempty"`
	ErrorCode   string `json:"error_code,omitempty"`
	Error       string `json:"error,omitempty"`
	Result      string `json:"result,omitempty"` // the end of a command's output, or what a handler has set, at most 4 KiB

	at store.Millis // for the order
}

const maxRuns = 10_000

func newRuns() *cobra.Command {
	var (
		jobs, states []string
		since, until string
		limit        int
	)
	cmd := &cobra.Command{
		Use:     "runs",
		GroupID: groupLook,
		Short:   "List runs, newest first, and what was skipped or missed",
		Long: `List runs, newest first, and the ticks that were skipped or missed, with the
reason. A stretch of ticks that did not run for one reason is one line.

States: pending, running, succeeded, failed, canceled, skipped, missed,
indeterminate.

` + defaultFileHelp,
		Example: `  solotick runs -c solotick.yaml --job nightly-report --since -24h
  solotick runs --state failed,missed --since 2026-03-01 --until 2026-04-01 -o json`,
	}
	cmd.Flags().StringSliceVar(&jobs, "job", nil, "only these jobs")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only these states")
	cmd.Flags().StringVar(&since, "since", "", "only ticks (queue jobs: due times) at or after this time, such as -2h")
	cmd.Flags().StringVar(&until, "until", "", "only ticks at or before this time")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	names := make([]string, 0, len(store.States()))
	for _, s := range store.States() {
		names = append(names, s.String())
	}
	complete(cmd, "state", names...)
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		f, err := runFilter(jobs, states, since, until, limit)
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
		f.Namespace = site.namespace()
		rows, known, err := listRuns(ctx, st, f)
		if err != nil {
			return err
		}
		for _, name := range jobs {
			if !site.hasJob(name) && !known[name] {
				warn(cmd.ErrOrStderr(), "warning: neither the store nor %s has a job %q", site.file, name)
			}
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), rows)
		}
		cells := make([][]string, len(rows))
		for i, r := range rows {
			cells[i] = r.cells()
		}
		return printTable(cmd.OutOrStdout(), []string{"JOB", "TICK OR KEY", "STATE", "ATTEMPT", "STARTED", "TOOK", "OWNER", "NOTE"}, cells)
	})
	return cmd
}

func runFilter(jobs, states []string, since, until string, limit int) (store.Filter, error) {
	f := store.Filter{Jobs: jobs, Limit: limit}
	if limit < 1 || limit > maxRuns {
		return f, usagef("--limit: %d is outside 1 to %d", limit, maxRuns)
	}
	for _, name := range states {
		s, ok := store.ParseState(name)
		if !ok {
			return f, usagef("--state: %q is none of %v", name, store.States())
		}
		f.States = append(f.States, s)
	}
	now := time.Now()
	for _, bound := range []struct {
		flag, value string
		into        *store.Millis
	}{{"--since", since, &f.From}, {"--until", until, &f.To}} {
		if bound.value == "" {
			continue
		}
		t, err := parseInstant(bound.flag, bound.value, now, time.UTC)
		if err != nil {
			return f, err
		}
		*bound.into = store.MillisOf(t)
	}
	if f.To != 0 && f.To < f.From {
		return f, usagef("--until lies before --since")
	}
	return f, nil
}

// listRuns reads rows and ranges and puts them into one order. It tells which jobs
// the store has a trace of.
func listRuns(ctx context.Context, st store.Store, f store.Filter) (rows []runRow, jobs map[string]bool, err error) {
	executions, err := st.List(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	rows, jobs = make([]runRow, 0, len(executions)), map[string]bool{}
	for _, e := range executions {
		jobs[e.Key.Job] = true
		rows = append(rows, rowOf(e))
	}
	known, err := st.Survey(ctx, f.Namespace, f.Jobs)
	if err != nil {
		return nil, nil, err
	}
	to := f.To
	if to == 0 {
		to = known.Now
	}
	for _, j := range known.Jobs {
		jobs[j.Job] = true
		ranges, err := st.Ranges(ctx, f.Namespace, j.Job, f.From, to)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range ranges {
			if len(f.States) == 0 || slices.Contains(f.States, r.State) {
				rows = append(rows, rowOfRange(r))
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b runRow) int { return cmp.Compare(b.at, a.at) })
	return rows[:min(len(rows), f.Limit)], jobs, nil
}

func rowOf(e store.Execution) runRow {
	r := runRow{
		ID: e.ID.String(), Job: e.Key.Job, Class: e.Key.Class.String(), Tick: instant(e.Key.Tick), Count: 1,
		State: e.State.String(), Reason: string(e.Reason), Mode: string(e.Mode), Attempt: e.Attempt, MissedCount: e.MissedCount,
		Owner: e.OwnerLabel, Fence: e.Fence, RunAt: instant(e.RunAt), Created: instant(e.Created),
		Started: instant(e.Started), Finished: instant(e.Finished), ErrorCode: e.ErrorCode, Error: e.ErrorText,
		at: e.Key.Tick,
	}
	r.Result = resultText(e)
	if e.Key.Class == store.ClassKey {
		r.Key = e.Key.Name
	}
	if r.at == 0 {
		r.at = e.RunAt
	}
	if e.Started != 0 && e.Finished >= e.Started {
		r.DurationMS = e.Finished.Sub(e.Started).Milliseconds()
	}
	return r
}

// resultText is the end of what the run left behind, as text.
func resultText(e store.Execution) string {
	const most = 4 << 10
	text := string(e.Result)
	if e.Key.Class == store.ClassKey {
		if once := parseOutcome(e.Result); once.ExitCode != nil {
			text = once.Output
		}
	}
	return strings.ToValidUTF8(text[max(0, len(text)-most):], "\uFFFD")
}

func rowOfRange(t store.TickRange) runRow {
	return runRow{
		Job: t.Job, Class: store.ClassCron.String(), Tick: instant(t.From), LastTick: instant(t.To), Count: t.Count,
		State: t.State.String(), Reason: string(t.Reason), Created: instant(t.Recorded), at: t.To,
	}
}

func (r runRow) cells() []string {
	what := r.Tick
	switch {
	case r.LastTick != "" && r.LastTick != r.Tick:
		what = fmt.Sprintf("%s to %s (%d ticks)", r.Tick, r.LastTick, r.Count)
	case r.Key != "":
		what = r.Key
	}
	state := r.State
	if r.Reason != "" {
		state += " (" + r.Reason + ")"
	}
	took, attempt := "", ""
	if r.Finished != "" && r.Started != "" {
		took = (time.Duration(r.DurationMS) * time.Millisecond).String()
	}
	if r.Attempt > 0 {
		attempt = strconv.Itoa(r.Attempt)
	}
	note := r.Error
	if r.Mode != "" {
		note = "ran under " + r.Mode + " " + note
	}
	if r.MissedCount > 0 {
		note = fmt.Sprintf("stands for %d missed ticks %s", r.MissedCount, note)
	}
	return []string{r.Job, what, state, attempt, r.Started, took, r.Owner, oneLine(note)}
}

// oneLine keeps a cell on its line.
func oneLine(s string) string {
	const most = 80
	out := []rune{}
	for _, c := range s {
		if c == '\n' || c == '\t' || c == '\r' {
			c = ' '
		}
		if out = append(out, c); len(out) > most {
			return string(out[:most-1]) + "…"
		}
	}
	return string(out)
}
