package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// queued is what "enqueue -o json" prints.
type queued struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Key       string `json:"key"`
	RunAt     string `json:"run_at"`
	State     string `json:"state"`
	Duplicate bool   `json:"duplicate"`
}

func newEnqueue() *cobra.Command {
	var (
		key, at string
		in      time.Duration
	)
	cmd := &cobra.Command{
		Use:     "enqueue KIND JSON",
		GroupID: groupWork,
		Short:   "Put a job into the queue",
		Long: `Put a job into the queue. JSON is what the handler of this kind gets as its
arguments.

A key makes the job unique among those of its kind: the same key again changes
nothing, says so, and is no error. Without --key every call puts a new job.

` + defaultFileHelp,
		Example: `  solotick enqueue send_invoice '{"order": 4711}' --key order-4711
  solotick enqueue cleanup '{}' --in 15m -c solotick.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s given, want two: KIND, the name of a queue job, and JSON, its arguments in one pair of quotes", plural(len(args), "argument"))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "at most one job of this kind has this key (default: a new one)")
	cmd.Flags().StringVar(&at, "at", "", "not before this time; without an offset it is read as UTC")
	cmd.Flags().DurationVar(&in, "in", 0, "not before this much time has passed")
	cmd.MarkFlagsMutuallyExclusive("at", "in")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("key") && key == "" {
			return usagef("--key is empty: name the job, or leave --key away for a key of its own")
		}
		row, err := newRow(args[0], args[1], key)
		if err != nil {
			return err
		}
		if in < 0 {
			return usagef("--in: %v is negative", in)
		}
		row.Delay = in
		if at != "" {
			due, err := parseInstant("--at", at, time.Now(), time.UTC)
			if err != nil {
				return err
			}
			row.RunAt = store.MillisOf(due)
		}
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		if err := site.prepareRow(&row); err != nil {
			return err
		}
		if *file != "" && !site.hasJob(args[0]) {
			warn(cmd.ErrOrStderr(), "warning: %s has no job %q: the row waits for a worker that has one in code or in another file", site.file, args[0])
		}
		st, err := site.openStore(ctx)
		if err != nil {
			return err
		}
		put, err := st.Enqueue(ctx, site.namespace(), []store.NewExecution{row})
		if err != nil {
			return err
		}
		return printQueued(cmd, out.value, put[0])
	})
	return cmd
}

// newRow checks the arguments of a queue job.
func newRow(kind, args, key string) (store.NewExecution, error) {
	if err := scheduler.ValidateName(kind); err != nil {
		return store.NewExecution{}, usagef("KIND %w", err)
	}
	var raw json.RawMessage
	if err := json.Unmarshal([]byte(args), &raw); err != nil {
		where := ""
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			where = fmt.Sprintf(" at byte %d", syntax.Offset)
		}
		return store.NewExecution{}, usagef("JSON: %q is not JSON%s: %w; quote it for the shell, as in '{\"order\": 1}'", args, where, err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return store.NewExecution{}, usagef("JSON: %w", err)
	}
	id := store.NewID(store.MillisOf(time.Now()))
	if key == "" {
		key = id.String()
	} else if err := validateKey(key); err != nil {
		return store.NewExecution{}, err
	}
	return store.NewExecution{
		ID: id, Key: store.Key{Class: store.ClassKey, Job: kind, Name: key}, Args: compact.Bytes(), CreatedBy: processLabel(),
	}, nil
}

func printQueued(cmd *cobra.Command, format string, put store.Enqueued) error {
	e := put.Execution
	q := queued{
		ID: e.ID.String(), Kind: e.Key.Job, Key: e.Key.Name, RunAt: instant(e.RunAt), State: e.State.String(),
		Duplicate: put.Outcome == store.OutcomeDuplicate,
	}
	if q.Duplicate {
		warn(cmd.ErrOrStderr(), "%s is there already (%s): nothing was put", e.Key, q.State)
	}
	if format == "json" {
		return printJSON(cmd.OutOrStdout(), q)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), q.ID)
	return err
}
