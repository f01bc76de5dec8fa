package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/scheduler/cronspec"
)

// tick is one coming instant, as "next -o json" prints it.
type tick struct {
	At   string `json:"at"`
	Note string `json:"note"`
}

const maxNext = 100_000

func newNext() *cobra.Command {
	var (
		zone, from, job string
		count           int
	)
	cmd := &cobra.Command{
		Use:     "next SPEC | next --job NAME -c FILE",
		GroupID: groupLook,
		Short:   "Show the coming ticks of a schedule",
		Long: `Show the coming ticks of a schedule, with a note where a change of clocks moves
or repeats one.

SPEC has five fields (minute hour day-of-month month day-of-week), six with the
second in front, or is a shorthand such as @daily or "@every 30s". With --job, the
schedule is that of a job of the file.`,
		Example: `  solotick next "30 2 * * *" --tz Europe/Berlin --from 2026-03-27 -n 4
  solotick next "@every 90s" -n 3 -o json
  solotick next --job nightly-report -c solotick.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%d arguments given: put the schedule in quotes: solotick next \"%s\"", len(args), strings.Join(args, " "))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&zone, "tz", "", "time zone of the schedule, an IANA name (default UTC)")
	gap := &choice{value: string(cronspec.GapNextValid), allowed: []string{string(cronspec.GapNextValid), string(cronspec.GapShift), string(cronspec.GapSkip)}}
	fold := &choice{value: string(cronspec.FoldFirst), allowed: []string{string(cronspec.FoldFirst), string(cronspec.FoldLast), string(cronspec.FoldBoth)}}
	cmd.Flags().Var(gap, "dst-gap", "what becomes of fixed times that clocks skip")
	cmd.Flags().Var(fold, "dst-fold", "which of two equal local times counts")
	complete(cmd, "dst-gap", gap.allowed...)
	complete(cmd, "dst-fold", fold.allowed...)
	cmd.Flags().StringVar(&from, "from", "now", "show ticks after this time; without an offset it is read as UTC")
	cmd.Flags().IntVarP(&count, "count", "n", 10, "how many")
	cmd.Flags().StringVar(&job, "job", "", "a job of the file, instead of SPEC")
	file, out := fileFlag(cmd), outputFlag(cmd)
	for _, flag := range []string{"tz", "dst-gap", "dst-fold"} {
		cmd.MarkFlagsMutuallyExclusive("job", flag)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if count < 1 || count > maxNext {
			return usagef("-n: %d is outside 1 to %d", count, maxNext)
		}
		start, err := parseInstant("--from", from, time.Now(), time.UTC)
		if err != nil {
			return err
		}
		var spec *cronspec.Spec
		switch {
		case (job == "") == (len(args) == 0):
			return usagef("want either SPEC or --job; see '%s --help'", cmd.CommandPath())
		case job != "":
			spec, err = jobSpec(cmd, *file, job)
		default:
			spec, err = cronspec.Parse(args[0], cronspec.Options{Zone: zone, Gap: cronspec.GapPolicy(gap.value), Fold: cronspec.FoldPolicy(fold.value)})
		}
		if err != nil {
			return usageError(err)
		}
		return printTicks(cmd.OutOrStdout(), out.value, spec, start, count)
	}
	return cmd
}

// jobSpec is the schedule of a job of the file.
func jobSpec(cmd *cobra.Command, file, name string) (*cronspec.Spec, error) {
	if file == "" {
		return nil, usagef("--job needs the file that has the job: name it with -c")
	}
	s, err := openSite(cmd, file)
	if err != nil {
		return nil, err
	}
	defer s.close()
	j := s.job(name)
	switch {
	case j == nil:
		return nil, usagef("--job %q is not in %s", name, file)
	case j.Queue:
		return nil, usagef("--job %q is a queue job: it has no schedule", name)
	}
	return s.spec(j)
}

func printTicks(w io.Writer, format string, spec *cronspec.Spec, from time.Time, count int) error {
	var instants []time.Time
	for at := from; len(instants) < count; {
		next, ok := spec.Next(at)
		if !ok {
			break
		}
		instants = append(instants, next)
		at = next
	}
	if format == "json" {
		ticks := make([]tick, len(instants))
		for i, at := range instants {
			ticks[i] = tick{At: rfc3339(at), Note: spec.Note(at)}
		}
		return printJSON(w, ticks)
	}
	heading, local := []string{"AT", "NOTE"}, localClock(spec.Zone())
	if local != nil {
		heading = []string{"AT", "IN " + spec.Zone(), "NOTE"}
	}
	rows := make([][]string, len(instants))
	for i, at := range instants {
		rows[i] = []string{rfc3339(at), spec.Note(at)}
		if local != nil {
			rows[i] = []string{rfc3339(at), at.In(local).Format("Mon 2006-01-02 15:04:05 MST"), spec.Note(at)}
		}
	}
	if err := printTable(w, heading, rows); err != nil {
		return err
	}
	if len(instants) < count {
		_, err := fmt.Fprintln(w, "The schedule has no more ticks.")
		return err
	}
	return nil
}

// localClock is the zone to show beside UTC; nil when there is nothing to add.
func localClock(zone string) *time.Location {
	if zone == "UTC" {
		return nil
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return nil
	}
	return loc
}
