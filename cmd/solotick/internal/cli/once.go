package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

func newOnce() *cobra.Command {
	var job, key string
	cmd := &cobra.Command{
		Use:                   "once [flags] --job JOB --key KEY -- CMD ARG...",
		DisableFlagsInUseLine: true,
		GroupID:               groupWork,
		Short:                 "Run a command once per key, across machines",
		Long: `Run a command once per key, across all machines that share a store: for system
cron and for CI.

The first to come runs the command, and its exit code and the end of its output
are stored. A repeat with the same job and key prints the stored output and exits
with the stored code, also when that is not 0. While another runs it, the exit
code is 75. A run whose process died is taken over, as a new attempt, by the first
call after its lease; one that was stopped by a signal to this process is open to
the next call at once.

The command finds SOLOTICK_JOB, SOLOTICK_KEY, SOLOTICK_ATTEMPT and SOLOTICK_FENCE
in its environment. The fence grows with every attempt of the job.

What is once is the stored outcome: a command whose machine dies in the middle is
started again, so it has to bear a second start. A command that cannot be started
leaves no outcome: the key stays free for the corrected one.

If solotick itself is killed with SIGKILL, the command ends with it (on Linux),
but what the command started may go on.

` + defaultFileHelp + `

Exit codes: the command's own or the stored one, 75 in progress elsewhere, 76 the
run was lost to another, 2 bad arguments or configuration, 1 no answer.`,
		Example: `  solotick once --job nightly --key "$(date +%F)" -- ./nightly.sh
  solotick once --job deploy --key v1.4.2 -c solotick.yaml -- ./deploy.sh v1.4.2`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().StringVar(&job, "job", "", "what is run, a name of your choice")
	cmd.Flags().StringVar(&key, "key", "", "which run of it: one per key")
	file := fileFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, argv, err := splitCommand(cmd, args, 0)
		if err != nil {
			return err
		}
		if err := scheduler.ValidateName(job); err != nil {
			return usagef("--job %w", err)
		}
		if err := validateKey(key); err != nil {
			return err
		}
		signals := newRelay()
		defer signals.stop()
		ctx := context.Background()
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		if site.hasJob(job) {
			return usagef("--job %q is a job of %s: choose another name", job, site.file)
		}
		st, err := site.openStore(ctx)
		if err != nil {
			return err
		}
		o := onceRun{
			store: st, namespace: site.namespace(), job: job, key: key, signals: signals,
			owner: store.NewOwner(), label: processLabel(), lease: site.lease(),
			command: child.Command{Argv: argv, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()},
		}
		return o.run(ctx)
	}
	return cmd
}

const maxKeyBytes = 256

func validateKey(key string) error {
	switch {
	case key == "":
		return usagef("--key is empty: name the run")
	case len(key) > maxKeyBytes:
		return usagef("--key has %d bytes, the most is %d", len(key), maxKeyBytes)
	}
	return nil
}

// replay ends as the stored run did.
func (o *onceRun) replay(e store.Execution) error {
	out := outcomeOf(e)
	ended := instant(e.Finished)
	warn(o.command.Stderr, "%s has run before: %s at %s on %s, attempt %d", e.Key, out.describe(e), ended, e.OwnerLabel, e.Attempt)
	if out.Truncated {
		warn(o.command.Stderr, "its output is cut to the last %d bytes", len(out.Output))
	}
	if _, err := fmt.Fprint(o.command.Stdout, out.Output); err != nil {
		return err
	}
	if out.ExitCode == nil {
		if e.State == store.StateSucceeded {
			return nil
		}
		return endWith(exitFailure)
	}
	return endWith(*out.ExitCode)
}

// inProgress says who runs it and for how long that is sure.
func inProgress(e store.Execution, now store.Millis) error {
	left := e.LeaseUntil.Sub(now).Round(time.Millisecond)
	return &exitError{code: exitBusy, err: fmt.Errorf(
		"%s is in progress on %s, attempt %d; if that process has died, another call can take over in %v", e.Key, e.OwnerLabel, e.Attempt, left)}
}
