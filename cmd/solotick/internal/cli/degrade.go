package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/store"
)

func newDegrade() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "degrade",
		GroupID: groupLook,
		Short:   "Show or throw the degradation switch of all workers",
		Long: `Show or throw the degradation switch of all workers: which mode takes the place
of the locks, and whether it does so when they cannot answer (auto), now (forced)
or never (off).

Without a command it shows what is set in the configuration centre that the file
names (degradation.centre), what the file says, and what comes of it for each
job. Which workers see it by now is not known here: each obeys within a second
of being able to read it.

` + defaultFileHelp + `

Exit codes: 0 shown, 1 the centre did not answer, 2 bad arguments.`,
		Example: `  solotick degrade -c solotick.yaml
  solotick degrade set store_only -c solotick.yaml --reason "etcd upgrade" --for 30m
  solotick degrade clear -c solotick.yaml --reason "upgrade done"
  solotick degrade history -c solotick.yaml -n 5`,
	}
	cmd.RunE = degradeStatus(cmd)
	status := &cobra.Command{
		Use:   "status",
		Short: "Show what the switch of all workers is set to, and what comes of it",
		Long: `Show what the switch of all workers is set to, by whom and why, until when, what
the file says, and the mode of each job.

` + defaultFileHelp + `

Exit codes: 0 shown, 1 the centre did not answer, 2 bad arguments.`,
		Example: `  solotick degrade status -c solotick.yaml -o json`,
	}
	status.RunE = degradeStatus(status)
	cmd.AddCommand(status, newDegradeSet(), newDegradeClear(), newDegradeHistory())
	return cmd
}

func degradeStatus(cmd *cobra.Command) func(*cobra.Command, []string) error {
	file, out := fileFlag(cmd), outputFlag(cmd)
	return interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		st, err := site.degradation(ctx)
		if err != nil {
			return err
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), st)
		}
		return st.print(cmd.OutOrStdout())
	})
}

// degradation is what "degrade -o json" prints.
type degradation struct {
	Namespace string                   `json:"namespace"`
	Centre    string                   `json:"centre"`
	Position  scheduler.SwitchPosition `json:"position"` // in force; beside Refused only in workers that start
	Mode      store.Mode               `json:"mode"`     // the same, for jobs without their own
	// Setting is what the centre has; null if nothing. Ended: its time is over. Refused
	// says why a value is not obeyed.
	Setting     *scheduler.SwitchSetting `json:"setting"`
	RemainingMS int64                    `json:"remaining_ms,omitempty"`
	Ended       bool                     `json:"ended,omitempty"`
	Refused     string                   `json:"refused,omitempty"`
	Configured  configured               `json:"configured"`
	Jobs        []jobMode                `json:"jobs"`

	value []byte
}

type configured struct {
	Switch       scheduler.SwitchPosition `json:"switch"`
	Mode         store.Mode               `json:"mode"`
	After        string                   `json:"after"`
	RecoverAfter string                   `json:"recover_after"`
	Jobs         map[string]store.Mode    `json:"jobs,omitempty"`
}

type jobMode struct {
	Job  string     `json:"job"`
	Mode store.Mode `json:"mode"`
	By   string     `json:"by"` // centre, file (degradation.jobs), job (its degraded), general
}

// noCentre is the answer where the file says that there is none.
func (s *site) noCentre() error {
	return usagef("%s: degradation.centre.driver is none: name store, %s", s.file, strings.Join(centreDrivers(), " or "))
}

// degradation asks the centre.
func (s *site) degradation(ctx context.Context) (*degradation, error) {
	driver, now := s.loaded.Degradation.Centre.Driver, time.Now()
	if driver == configs.CentreInStore {
		if _, err := s.readStore(ctx); err != nil {
			return nil, err
		}
		at, err := s.store.Now(ctx) // settings end by the store's clock
		if err != nil {
			return nil, err
		}
		now = at.Time()
	}
	c, err := s.centre()
	if err != nil {
		return nil, err
	}
	st := &degradation{Namespace: s.namespace(), Centre: driver}
	if c != nil {
		if st.value, err = loadCentre(ctx, c); err != nil {
			return nil, err
		}
	}
	st.lay(s.loaded, now)
	return st, nil
}

func loadCentre(ctx context.Context, c switchwatch.Centre) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, centreTimeout)
	defer cancel()
	return c.Load(ctx)
}

// lay lays what the centre has over what the file says, as a worker does.
func (d *degradation) lay(l *configs.Loaded, now time.Time) {
	cfg := l.Degradation.Degradation
	cfg.Switch, cfg.Mode = cmp.Or(cfg.Switch, scheduler.SwitchAuto), cmp.Or(cfg.Mode, store.ModeFailFast)
	cfg.After, cfg.RecoverAfter = cmp.Or(cfg.After, 5*time.Second), cmp.Or(cfg.RecoverAfter, 10*time.Second)
	d.Configured = configured{
		Switch: cfg.Switch, Mode: cfg.Mode, After: cfg.After.String(), RecoverAfter: cfg.RecoverAfter.String(), Jobs: cfg.Jobs,
	}
	set := d.read(now)
	if set == nil {
		set = &scheduler.SwitchSetting{}
	}
	d.Position, d.Mode = cfg.Switch, cfg.Mode
	if set.Position != "" {
		d.Position = set.Position
	}
	if set.Mode != "" {
		d.Mode = set.Mode
	}
	d.Jobs = []jobMode{}
	for i := range l.Jobs {
		j := &l.Jobs[i]
		gate := j.Gate
		if gate == "" {
			gate = l.Scheduler.Gate
		}
		if j.Queue || gate == scheduler.GateNone {
			continue
		}
		row := jobMode{j.Name, d.Mode, "general"}
		if m, ok := set.Jobs[j.Name]; ok {
			row.Mode, row.By = m, "centre"
		} else if m, ok := cfg.Jobs[j.Name]; ok {
			row.Mode, row.By = m, "file"
		} else if j.Degraded != "" {
			row.Mode, row.By = j.Degraded, "job"
		}
		d.Jobs = append(d.Jobs, row)
	}
}

// read is the setting in force, if there is one.
func (d *degradation) read(now time.Time) *scheduler.SwitchSetting {
	if len(d.value) == 0 {
		return nil
	}
	set, err := scheduler.ParseSwitchSetting(d.value)
	if err != nil {
		d.Refused = err.Error()
		return nil
	}
	d.Setting = &set
	if set.Until.IsZero() {
		return &set
	}
	if left := set.Until.Sub(now); left > 0 {
		d.RemainingMS = left.Milliseconds()
		return &set
	}
	d.Ended = true
	return nil
}

// line is a setting in a few words.
func (d *degradation) line() string {
	switch {
	case d.Refused != "":
		return "a value that workers refuse: " + printable(d.Refused)
	case d.Setting == nil:
		return "nothing"
	case d.Ended:
		return d.Setting.String() + " (over)"
	}
	return d.Setting.String()
}

func (d *degradation) print(w io.Writer) error {
	fmt.Fprintf(w, "In force:  %s %s", d.Position, d.Mode)
	if d.Refused != "" { // what they had is not known here
		fmt.Fprint(w, " in workers that start; the others keep what they had")
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "Centre:    %s: %s\n", d.Centre, d.line())
	if t := d.Setting; t != nil {
		fmt.Fprintf(w, "           by %s: %s\n", printable(t.By), printable(t.Reason))
		if !t.At.IsZero() {
			fmt.Fprintf(w, "           since %s\n", moment(t.At.Truncate(time.Second)))
		}
		switch {
		case t.Until.IsZero():
			fmt.Fprintln(w, "           until it is cleared")
		default:
			fmt.Fprintf(w, "           until %s, %s\n", moment(t.Until), leftOf(d))
		}
	}
	fmt.Fprintf(w, "File:      %s %s, after %s, back after %s%s\n", d.Configured.Switch, d.Configured.Mode, d.Configured.After, d.Configured.RecoverAfter, modesOf(d.Configured.Jobs))
	if len(d.Jobs) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	cells := make([][]string, len(d.Jobs))
	for i, j := range d.Jobs {
		cells[i] = []string{j.Job, string(j.Mode), j.By}
	}
	return printTable(w, []string{"JOB", "MODE", "SAID BY"}, cells)
}

func leftOf(d *degradation) string {
	if d.Ended {
		return "which is over"
	}
	return "in " + (time.Duration(d.RemainingMS) * time.Millisecond).Round(time.Second).String()
}

func modesOf(jobs map[string]store.Mode) string {
	var b strings.Builder
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		fmt.Fprintf(&b, ", %s=%s", job, jobs[job])
	}
	return b.String()
}

func newDegradeHistory() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show the changes of the switch, the newest first",
		Long: `Show the changes of the switch, the newest first, from the audit in the store:
those for all workers, those that one process made by its file, its admin server
or its code, and what ended by itself (way expiry).

` + defaultFileHelp,
		Example: `  solotick degrade history -c solotick.yaml -n 5
  solotick degrade history -c solotick.yaml -o json`,
	}
	file, out := fileFlag(cmd), outputFlag(cmd)
	n := cmd.Flags().IntP("number", "n", 20, "at most so many")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if *n < 1 || *n > 10_000 {
			return usagef("-n: %d is outside 1 to 10000", *n)
		}
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		if _, err := site.readStore(ctx); err != nil {
			return err
		}
		changes, now, err := site.store.SwitchChanges(ctx, site.namespace(), false, *n)
		if err != nil {
			return err
		}
		changes = withEnds(changes, now)
		return printChanges(cmd.OutOrStdout(), out.value, changes[:min(len(changes), *n)])
	})
	return cmd
}

// withEnds adds the ends of settings for all workers, which nobody records: each
// worker finds by the store's clock that the time is over.
func withEnds(changes []store.SwitchChange, now store.Millis) []store.SwitchChange {
	next := now // until when the one that is looked at was in force
	var all []store.SwitchChange
	for _, c := range changes {
		if c.Fleet {
			if c.Until > 0 && c.Until < next {
				all = append(all, store.SwitchChange{ID: c.ID, At: c.Until, Fleet: true, Source: "expiry", By: c.By, Reason: c.Reason, From: c.To})
			}
			next = c.At
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b store.SwitchChange) int { return cmp.Compare(b.At, a.At) })
	return all
}

// changeRow is what "degrade history -o json" prints for each change.
type changeRow struct {
	ID      int64  `json:"id"`
	At      string `json:"at"`
	Fleet   bool   `json:"fleet"`
	Process string `json:"process,omitempty"`
	Source  string `json:"source"`
	By      string `json:"by"`
	Reason  string `json:"reason"`
	From    any    `json:"from,omitempty"` // the setting; absent: what the file says
	To      any    `json:"to,omitempty"`
	Until   string `json:"until,omitempty"`
}

// settingOf is a setting of the audit as JSON has it; what is none, such as one that a
// newer build wrote otherwise, stays a text.
func settingOf(text string) any {
	switch {
	case text == "":
		return nil
	case json.Valid([]byte(text)):
		return json.RawMessage(text)
	}
	return text
}

func printChanges(w io.Writer, format string, changes []store.SwitchChange) error {
	rows := make([]changeRow, len(changes))
	for i, c := range changes {
		rows[i] = changeRow{c.ID, instant(c.At), c.Fleet, c.Process, c.Source, c.By, c.Reason, settingOf(c.From), settingOf(c.To), instant(c.Until)}
	}
	if format == "json" {
		return printJSON(w, rows)
	}
	cells := make([][]string, len(rows))
	for i, r := range rows {
		where := "all"
		if !r.Fleet {
			where = r.Process
		}
		cells[i] = []string{r.At, where, r.Source, r.By, shortly(changes[i].From), shortly(changes[i].To), r.Until, r.Reason}
	}
	return printTable(w, []string{"AT", "WORKERS", "WAY", "BY", "FROM", "TO", "UNTIL", "REASON"}, cells)
}

// shortly is a setting of the audit in a few words; what is none, such as a part of a
// file, stays as it is.
func shortly(text string) string {
	if text == "" {
		return "file"
	}
	if t, err := scheduler.ParseSwitchSetting([]byte(text)); err == nil {
		return t.String()
	}
	return text
}

var errNotThrown = errors.New("nothing was changed")
