package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/store"
)

// personLabel names who runs the command, for the record.
func personLabel() string {
	user := cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), os.Getenv("USERNAME"))
	host, err := os.Hostname()
	switch {
	case user == "":
		return processLabel()
	case err != nil:
		return user
	}
	return user + "@" + host
}

// parseRun reads the id of a run.
func parseRun(text string) (store.ID, error) {
	id, err := store.ParseID(text)
	if err != nil {
		return id, usagef("RUN: %q is not the id of a run: 'solotick runs -o json' shows them, 32 hex digits each", text)
	}
	return id, nil
}

func newRetry() *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use:     "retry RUN",
		GroupID: groupWork,
		Short:   "Run again what failed, was canceled or is indeterminate",
		Long: `Run again what failed, was canceled or is indeterminate: any worker takes it, as a
new attempt of the same run. If its attempts were used up, it gets one more.

An indeterminate run may have had its effect: look before you say so.

The attempt that ended, and who asked for another, stay visible: see 'solotick
explain RUN'. A run that waits or runs is left as it is.

` + defaultFileHelp + `

Exit codes: 0 it waits to run, 1 there is no such run or it cannot be retried, 2
bad arguments or configuration.`,
		Example: `  solotick retry 019bd1c4d0a07f3e8a1b2c3d4e5f6071 -c solotick.yaml
  solotick retry 019bd1c4d0a07f3e8a1b2c3d4e5f6071 --by "ann, ticket 17" -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&by, "by", "", "who asks, for the record (default: user@host)")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		id, err := parseRun(args[0])
		if err != nil {
			return err
		}
		if len(by) > maxBy {
			return usagef("--by has %d bytes, the most is %d", len(by), maxBy)
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
		row, err := retryRun(ctx, st, site.namespace(), id, cmp.Or(strings.TrimSpace(by), personLabel()))
		if err != nil {
			return err
		}
		if out.value == "json" {
			return printJSON(cmd.OutOrStdout(), row)
		}
		return printTable(cmd.OutOrStdout(), runHeading(), [][]string{row.cells()})
	})
	return cmd
}

const maxBy = 200

func runHeading() []string {
	return []string{"JOB", "TICK OR KEY", "STATE", "ATTEMPT", "STARTED", "TOOK", "OWNER", "NOTE"}
}

func retryRun(ctx context.Context, st store.Store, ns string, id store.ID, by string) (runRow, error) {
	e, err := st.Retry(ctx, ns, id, by)
	if errors.Is(err, store.ErrNotFound) {
		return runRow{}, noRun(ns, id)
	}
	if err != nil {
		return runRow{}, err
	}
	return rowOf(e), nil
}
