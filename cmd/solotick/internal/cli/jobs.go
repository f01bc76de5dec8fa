package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// jobRow is a job, as "jobs -o json" prints it.
type jobRow struct {
	Name        string `json:"name"`
	Kind        string `json:"kind"` // cron, or queue for what has no schedule
	Schedule    string `json:"schedule"`
	TimeZone    string `json:"timezone"`
	Next        string `json:"next"`    // next tick; empty if there is none
	Settled     string `json:"settled"` // every tick until here has a record; empty if no worker has registered the job
	Paused      bool   `json:"paused"`
	PausedUntil string `json:"paused_until,omitempty"`
	PausedBy    string `json:"paused_by,omitempty"`
	PauseReason string `json:"pause_reason,omitempty"`
	InFile      bool   `json:"in_file"`
	InStore     bool   `json:"in_store"`
	Superseded  bool   `json:"superseded"` // the store has another schedule in force than the file
}

func newJobs() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "jobs",
		GroupID: groupLook,
		Short:   "List the jobs of the file and of the store",
		Long: `List the jobs of the file and of the store, with the schedule in force and the
next tick.

` + defaultFileHelp,
		Example: `  solotick jobs -c solotick.yaml
  solotick jobs -c solotick.yaml -o json`,
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		st, err := site.readStore(ctx)
		if err != nil {
			return err
		}
		known, err := st.Survey(ctx, site.namespace(), nil)
		if err != nil {
			return err
		}
		specs, err := site.specs()
		if err != nil {
			return err
		}
		rows, err := mergeJobs(specs, known)
		if err != nil {
			return err
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), rows)
		}
		cells := make([][]string, len(rows))
		for i, r := range rows {
			cells[i] = []string{r.Name, r.Kind, r.Schedule, r.TimeZone, r.Next, r.Settled, r.status()}
		}
		return printTable(cmd.OutOrStdout(), []string{"JOB", "KIND", "SCHEDULE", "ZONE", "NEXT", "SETTLED UNTIL", "STATUS"}, cells)
	})
	return cmd
}

func (r jobRow) status() string {
	switch {
	case r.Paused:
		s := "paused"
		if r.PauseReason != "" {
			s += ": " + r.PauseReason
		}
		return s
	case r.Superseded:
		return "another schedule is in force"
	case !r.InStore:
		return "never started"
	case !r.InFile:
		return "not in this file"
	}
	return "ok"
}

// fileJob is a job as the file gives it.
type fileJob struct {
	name string
	spec *cronspec.Spec // nil for queue jobs
}

// mergeJobs joins the file's jobs with the store's, by name. The schedule shown is
// the one in force.
func mergeJobs(file []fileJob, known store.Surveyed) ([]jobRow, error) {
	rows := map[string]*jobRow{}
	now := known.Now.Time()
	for _, j := range file {
		r := &jobRow{Name: j.name, Kind: "queue", InFile: true}
		r.schedule(j.spec, now)
		rows[j.name] = r
	}
	for _, state := range known.Jobs {
		r := rows[state.Job]
		if r == nil {
			r = &jobRow{Name: state.Job, Kind: "queue"}
			rows[state.Job] = r
		}
		r.InStore = true
		r.Settled = instant(state.Settled)
		if state.PausedAt(known.Now) {
			r.Paused, r.PausedUntil, r.PausedBy, r.PauseReason = true, instant(state.PausedUntil), state.PausedBy, state.PauseReason
		}
		current := state.Current()
		if current.Spec == "" {
			continue
		}
		spec, err := cronspec.Unmarshal(current.Spec)
		if err != nil {
			return nil, err
		}
		for _, j := range file {
			if j.name == state.Job && j.spec != nil && j.spec.Hash() != current.Hash {
				r.Superseded = true
			}
		}
		r.schedule(spec, now)
	}
	sorted := make([]jobRow, 0, len(rows))
	for _, r := range rows {
		sorted = append(sorted, *r)
	}
	slices.SortFunc(sorted, func(a, b jobRow) int { return strings.Compare(a.Name, b.Name) })
	return sorted, nil
}

func (r *jobRow) schedule(spec *cronspec.Spec, now time.Time) {
	if spec == nil {
		return
	}
	r.Kind, r.Schedule, r.TimeZone = "cron", spec.String(), spec.Zone()
	if next, ok := spec.Next(now); ok {
		r.Next = rfc3339(next)
	}
}
