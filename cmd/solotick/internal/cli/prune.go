package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// pruneRow is a line of "prune".
type pruneRow struct {
	What      string `json:"what"`
	OlderThan string `json:"older_than,omitempty"`
	Records   int    `json:"records"`
}

func newPrune() *cobra.Command {
	var (
		jobs            []string
		olderThan, keys string
		dry             bool
	)
	cmd := &cobra.Command{
		Use:     "prune",
		GroupID: groupSetUp,
		Short:   "Remove old records from the store",
		Long: `Remove records that ended longer ago than scheduler.retention says, in small
transactions, so that workers go on meanwhile. Workers do the same by themselves,
unless the file says retention: {off: true}.

What waits or runs stays, and so do ticks that are not accounted for yet. A tick
that was pruned never runs again. A queue job's key is remembered for longer than
its arguments and result: after --keys the key may run again.

` + defaultFileHelp + `

Interrupted, it has removed what it has told of.`,
		Example: `  solotick prune -c solotick.yaml --dry-run
  solotick prune -c solotick.yaml --older-than 30d --keys 90d
  solotick prune --job nightly-report --older-than 1d -o json`,
	}
	cmd.Flags().StringVar(&olderThan, "older-than", "", "age at which runs, ticks and stretches go, such as 12h or 30d (default: those of the file)")
	cmd.Flags().StringVar(&keys, "keys", "", "how long keys are remembered (default: that of the file, at least --older-than)")
	cmd.Flags().StringSliceVar(&jobs, "job", nil, "only these jobs")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "count, and remove nothing")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		keep, err := retentionOf(site.loaded.Scheduler.Retention, olderThan, keys)
		if err != nil {
			return err
		}
		st, err := site.readStore(ctx)
		if err != nil {
			return err
		}
		r := store.PruneRequest{Namespace: site.namespace(), Jobs: jobs, Retention: keep, DryRun: dry}
		got, err := pruneAll(ctx, st, r, cmd.ErrOrStderr())
		if printErr := printPruned(cmd.OutOrStdout(), out.value, keep, got, dry); err == nil {
			err = printErr
		}
		return err
	})
	return cmd
}

// retentionOf are the ages of the file, or those that the flags set.
func retentionOf(file scheduler.Retention, olderThan, keys string) (store.Retention, error) {
	age := func(flag, text string) (time.Duration, error) {
		if text == "" {
			return 0, nil
		}
		d, err := strictyaml.ParseDuration(text)
		if err != nil {
			return 0, usagef("%s: %w", flag, err)
		}
		if d < time.Minute {
			return 0, usagef("%s: %s is below 1m: what has just ended may still be asked for", flag, text)
		}
		return d, nil
	}
	all, err := age("--older-than", olderThan)
	if err != nil {
		return store.Retention{}, err
	}
	key, err := age("--keys", keys)
	if err != nil {
		return store.Retention{}, err
	}
	if all != 0 {
		file.Keys = max(file.Ages().Keys, all)
		file.Succeeded, file.Failed, file.Canceled, file.Skipped, file.Ranges = all, all, all, all, all
	}
	if key != 0 {
		file.Keys = key
	}
	if err := file.Validate(); err != nil {
		return store.Retention{}, usageError(err)
	}
	return file.Ages(), nil
}

// pruneAll calls until nothing is left, and tells how far it is.
func pruneAll(ctx context.Context, st store.Store, r store.PruneRequest, told io.Writer) (store.Pruned, error) {
	var total store.Pruned
	last := time.Now()
	for {
		got, err := st.Prune(ctx, r)
		total.Add(got)
		if err != nil || !got.More {
			return total, err
		}
		if time.Since(last) >= time.Second {
			last = time.Now()
			warn(told, "%d records removed so far", total.Records())
		}
	}
}

func printPruned(w io.Writer, format string, keep store.Retention, got store.Pruned, dry bool) error {
	rows := []pruneRow{
		{"succeeded", age(keep.Succeeded), got.Succeeded},
		{"failed or indeterminate", age(keep.Failed), got.Failed},
		{"canceled", age(keep.Canceled), got.Canceled},
		{"skipped or missed", age(keep.Idle), got.Idle},
		{"stretches of ticks", age(keep.Ranges), got.Ranges},
		{"arguments and results of keys", "", got.Emptied},
		{"keys", age(keep.Keys), got.Keys},
	}
	if !dry {
		rows = append(rows, pruneRow{"attempts of the above", "", got.Attempts})
	}
	if format == "json" {
		return printJSON(w, rows)
	}
	cells := make([][]string, len(rows))
	for i, r := range rows {
		cells[i] = []string{r.What, r.OlderThan, strconv.Itoa(r.Records)}
	}
	heading := "REMOVED"
	if dry {
		heading = "TO REMOVE"
	}
	return printTable(w, []string{"WHAT", "OLDER THAN", heading}, cells)
}

// age shows a duration in days where it has whole ones.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return ""
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}
