// Package cli holds the commands of the solotick binary: what they read, what
// they print and how they exit. What they do is the work of other packages.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit codes. 75 and 76 are EX_TEMPFAIL and its neighbour of sysexits.h, so
// that a caller can tell "try again later" from a command's own codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2  // bad arguments or a bad configuration file
	exitBusy    = 75 // the lock is held, or the run is in progress elsewhere
	exitLost    = 76 // the lock or the run was lost while the command ran
)

// exitError carries the code that the process ends with. A nil err prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError marks a mistake in the arguments or in the configuration.
func usageError(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUsage, err: err}
}

func usagef(format string, args ...any) error { return usageError(fmt.Errorf(format, args...)) }

// Run executes the program with its arguments (without the program's name) and
// returns the exit code. It blocks until the command is done; it does not end the
// process itself.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	entered := false
	enter(root, &entered)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err != nil && !entered {
		err = usagef("%w; see '%s --help'", err, cmd.CommandPath())
	}
	return report(stderr, err)
}

// enter notes when a command's own code begins: what went wrong before that is a
// mistake in the arguments.
func enter(cmd *cobra.Command, entered *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*entered = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		enter(sub, entered)
	}
}

// report prints err, one line per mistake, and returns its exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	code := exitFailure
	if coded, ok := errors.AsType[*exitError](err); ok {
		code = coded.code
		if coded.err == nil {
			return code
		}
	}
	for line := range strings.SplitSeq(strings.TrimRight(err.Error(), "\n"), "\n") {
		fmt.Fprintln(stderr, "solotick:", line)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "solotick",
		Short: "Cron and queue jobs that exactly one of many replicas runs",
		Long: `Cron and queue jobs that exactly one of many replicas runs.

With no services at hand, store and locks are one SQLite file, which any number
of processes on one host can share.

Exit codes: 0 done, 1 failed, 2 bad arguments or configuration, 75 the lock is
held or the run is in progress elsewhere, 76 the lock or the run was lost.`,
		Example: `  solotick demo --for 20s
  solotick run -c solotick.yaml
  solotick next "30 2 * * *" --tz Europe/Berlin -n 5`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Run work:"},
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupSetUp, Title: "Set up:"},
	)
	root.AddCommand(commands()...)
	root.SetHelpCommandGroupID(groupSetUp)
	mark(root)
	return root
}

const (
	groupWork  = "work"
	groupLook  = "look"
	groupSetUp = "setup"
)

// mark gives the commands of the tree the argument checks that cobra has not:
// none are taken unless a command says so, and an unknown command is told with the
// names near it.
func mark(cmd *cobra.Command) {
	switch {
	case cmd.HasSubCommands():
		cmd.SuggestionsMinimumDistance = 2
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return fmt.Errorf("unknown command %q: did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return fmt.Errorf("unknown command %q", args[0])
		}
		if cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	case cmd.Args == nil:
		cmd.Args = cobra.NoArgs
	}
	for _, sub := range cmd.Commands() {
		mark(sub)
	}
}

// interruptible gives a command a context that ends with SIGINT or SIGTERM; a
// second signal ends the process the hard way. Commands that pass signals on use
// their own.
func interruptible(run func(ctx context.Context, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop)
		return run(ctx, cmd, args)
	}
}
