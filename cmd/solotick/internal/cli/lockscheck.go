package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/locks"
)

func newLocksCheck() *cobra.Command {
	var fence int64
	cmd := &cobra.Command{
		Use:   "check KEY --fence N",
		Short: "Ask whether a lock is still held under a fence",
		Long: `Ask the lock backend whether a lock is still held under a fence. This is for a
command under 'solotick lock --on-loss checkpoint', where it may be broken off; it
finds both in SOLOTICK_LOCK and SOLOTICK_FENCE.

The answer is of the moment in which the backend was asked, and no promise for the
next one: only a resource that checks the fence keeps a late holder out.

A KEY is that of 'solotick lock', or a whole name that begins with "lock:".

` + defaultFileHelp + `

Exit codes: 0 it is held under that fence, 76 it is not, 1 the backend did not
answer, 2 bad arguments or configuration.`,
		Example: `  solotick locks check "$SOLOTICK_LOCK" --fence "$SOLOTICK_FENCE" -c solotick.yaml || exit`,
		Args:    cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Int64Var(&fence, "fence", 0, "the number of the lock, from SOLOTICK_FENCE")
	file := fileFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		switch {
		case args[0] == "":
			return usagef("KEY is empty: name the lock")
		case fence < 1:
			return usagef("--fence: %d is none: give the number that the command found in SOLOTICK_FENCE", fence)
		}
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		locker, err := site.openLocks(ctx)
		if err != nil {
			return err
		}
		err = checkLock(ctx, locker, lockKey(site.namespace(), args[0]), fence, cmd.OutOrStdout())
		if errors.Is(err, locks.ErrInvalid) {
			return usageError(err)
		}
		return explainHidden(err)
	})
	return cmd
}

// checkLock says who has the key, and is an error with exitLost where that is another
// grant than the one of the fence.
func checkLock(ctx context.Context, locker *locks.Locker, key string, fence int64, out io.Writer) error {
	switch holder, err := locker.Inspect(ctx, key); {
	case errors.Is(err, locks.ErrFree):
		return &exitError{code: exitLost, err: fmt.Errorf("%s is not held under fence %d any more: nobody holds it", printable(key), fence)}
	case err != nil:
		return err
	case holder.Fence != fence:
		return &exitError{code: exitLost, err: fmt.Errorf("%s is not held under fence %d any more: %s", printable(key), fence, describe(holder))}
	}
	_, err := fmt.Fprintf(out, "%s is held under fence %d\n", printable(key), fence)
	return err
}
