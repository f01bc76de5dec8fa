package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/solotick/solotick/cmd/solotick/internal/demo"
)

func newDemo() *cobra.Command {
	var o demo.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: groupWork,
		Short:   "Watch replicas being killed, and no tick lost or doubled",
		Long: `Watch replicas being killed, and no tick lost or doubled.

Replicas run as real processes on one SQLite file in a temporary directory, with
cron jobs every second, a longer one, and queue jobs. Every now and then one of
them is killed with SIGKILL, preferably in the middle of the longer job, and a new
one takes its place. In the end the effects are counted: rows that the jobs wrote,
against the ticks that their schedules give. After --for the last runs have at
most 4s (the lease, 2s, and 2s) to come to an end.

With --json, progress goes to stderr, and the last line of stdout is one object:
replicas, seconds, kills, ticks, runs, skipped, duplicates, missed, waiting
(recorded and not yet run), takeovers. Duplicates, missed and waiting count queue
jobs as well as ticks.

Exit codes: 0 the promise was kept, 1 something was lost, doubled or not run in
time, or the demo could not run, 2 bad arguments.`,
		Example: `  solotick demo
  solotick demo --for 20s --replicas 3 --kill-every 5s --json
  solotick demo --for 1m --replicas 5 --kill-every 6s --skew 700ms`,
	}
	cmd.Flags().DurationVar(&o.For, "for", 20*time.Second, "how long ticks are due and replicas are killed")
	cmd.Flags().IntVar(&o.Replicas, "replicas", 3, "how many processes")
	cmd.Flags().DurationVar(&o.KillEvery, "kill-every", 5*time.Second, "how often one is killed, from 5s; 0 for never")
	cmd.Flags().DurationVar(&o.Skew, "skew", 0, "set the replicas' clocks wrong by -SKEW, 0 and +SKEW in turn")
	cmd.Flags().StringVar(&o.Dir, "dir", "", "keep database and logs in this directory (default: a temporary one, removed if all went well)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object as the last line")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return usageError(err)
		}
		o.Screen = newScreen(cmd.OutOrStdout())
		if asJSON {
			o.Screen = &demo.Screen{Out: cmd.ErrOrStderr()}
		}
		report, err := demo.Run(ctx, o)
		if err != nil {
			return err
		}
		if asJSON {
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(report); err != nil {
				return err
			}
		}
		if !report.Kept() {
			return &exitError{code: exitFailure, err: fmt.Errorf("demo: %d missed, %d doubled, %d recorded and still waiting", report.Missed, report.Duplicates, report.Waiting)}
		}
		return nil
	})
	return cmd
}

// newScreen draws in place on a terminal, in colours unless NO_COLOR asks for none
// (https://no-color.org).
func newScreen(w io.Writer) *demo.Screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return &demo.Screen{Out: w}
	}
	return &demo.Screen{Out: w, Live: true, Color: os.Getenv("NO_COLOR") == "", Size: func() (int, int) {
		columns, lines, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 80, 24
		}
		return columns, lines
	}}
}

func newDemoWorker() *cobra.Command {
	var o demo.WorkerOptions
	cmd := &cobra.Command{
		Use:     "demo-worker",
		Short:   "One replica of the demo, which starts it",
		Example: "  solotick demo-worker --dir /tmp/demo --replica 1",
		Hidden:  true,
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory of the demo's database")
	cmd.Flags().IntVar(&o.Replica, "replica", 1, "number of the replica")
	cmd.Flags().DurationVar(&o.Skew, "skew", 0, "error of its clock")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		return demo.Worker(ctx, o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
	return cmd
}
