package cli

import (
	"fmt"
	"io"
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
		zone, from string
		count      int
	)
	cmd := &cobra.Command{
		Use:     "next SPEC",
		GroupID: groupLook,
		Short:   "Show the coming ticks of a schedule",
		Long: `Show the coming ticks of a schedule, with a note where a change of clocks moves
or repeats one.

SPEC has five fields (minute hour day-of-month month day-of-week), six with the
second in front, or is a shorthand such as @daily or "@every 30s".`,
		Example: `  solotick next "30 2 * * *" --tz Europe/Berlin --from 2026-03-27 -n 4
  solotick next "@every 90s" -n 3 -o json`,
		Args: cobra.ExactArgs(1),
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
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if count < 1 || count > maxNext {
			return usagef("-n: %d is outside 1 to %d", count, maxNext)
		}
		start, err := parseInstant("--from", from, time.Now(), time.UTC)
		if err != nil {
			return err
		}
		spec, err := cronspec.Parse(args[0], cronspec.Options{Zone: zone, Gap: cronspec.GapPolicy(gap.value), Fold: cronspec.FoldPolicy(fold.value)})
		if err != nil {
			return usageError(err)
		}
		return printTicks(cmd.OutOrStdout(), out.value, spec, start, count)
	}
	return cmd
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
