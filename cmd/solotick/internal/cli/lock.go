package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
	"github.com/solotick/solotick/locks"
)

func newLock() *cobra.Command {
	var ttl, wait time.Duration
	onLoss := &choice{value: locks.Abort.String(), allowed: []string{locks.Abort.String(), locks.Continue.String(), locks.Checkpoint.String()}}
	cmd := &cobra.Command{
		Use:                   "lock [flags] KEY -- CMD ARG...",
		DisableFlagsInUseLine: true,
		GroupID:               groupWork,
		Short:                 "Run a command under a lock",
		Long: `Run a command under a lock, so that nobody else with the same configuration runs
one under the same key at the same time.

The command finds the number of its lock in SOLOTICK_FENCE: it grows with every
grant of the key, so a resource that remembers the highest it has seen can refuse
a holder that was frozen and woke too late. Signals are passed on to the command.

If the lock is lost, or cannot be renewed in time, --on-loss says what becomes of
the command. Under abort it and all it started get SIGTERM, and SIGKILL before the
lock ends. Under continue it goes on, beside the next holder, for work that is
better finished than broken off; the loss is told on standard error. Under
checkpoint it goes on too, and asks 'solotick locks check' where it may be broken
off. Under all three the exit code is then 76.

If solotick itself is killed with SIGKILL, the command ends with it (on Linux),
but what the command started may go on.

A KEY that begins with "lock:" is taken as the whole name of a lock, such as
lock:shop:cron:report, which the scheduler holds while that job runs.

` + defaultFileHelp + `

Exit codes: the command's own, 75 the lock is held by another, 76 the lock was
lost, 2 bad arguments or configuration, 1 the lock backend did not answer.`,
		Example: `  solotick lock backup -- /usr/local/bin/backup --all
  solotick lock migrate -c solotick.yaml --wait 30s --ttl 20s -- ./migrate.sh
  solotick lock copy -c solotick.yaml --on-loss checkpoint -- ./copy-in-parts.sh`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the lock outlives this process if it dies (default: the file's)")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for a holder to go")
	cmd.Flags().Var(onLoss, "on-loss", "what becomes of the command if the lock is lost")
	complete(cmd, "on-loss", onLoss.allowed...)
	file := fileFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names, argv, err := splitCommand(cmd, args, 1)
		if err != nil {
			return err
		}
		if names[0] == "" {
			return usagef("KEY is empty: name the lock")
		}
		if ttl < 0 || wait < 0 {
			return usagef("--ttl and --wait cannot be negative")
		}
		signals := newRelay()
		defer signals.stop()
		ctx := context.Background()
		site, err := openSite(cmd, *file)
		if err != nil {
			return err
		}
		defer site.close()
		if err := site.wantShared(); err != nil {
			return err
		}
		site.ttl = ttl
		locker, err := site.openLocker(ctx)
		if err != nil {
			return err
		}
		j := lockJob{
			locker: locker, key: lockKey(site.namespace(), names[0]), ttl: ttl, wait: wait, goesOn: onLoss.value != locks.Abort.String(), signals: signals,
			command: child.Command{Argv: argv, Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()},
		}
		return j.run(ctx)
	}
	return cmd
}

func lockKey(namespace, key string) string {
	if strings.HasPrefix(key, "lock:") {
		return key
	}
	return locks.Key(namespace, "command", key)
}

// lockJob is a command to run under a lock.
type lockJob struct {
	locker  *locks.Locker
	key     string
	ttl     time.Duration // 0 for the locker's own
	wait    time.Duration
	goesOn  bool // after a loss
	signals *relay
	command child.Command
}

func (j lockJob) run(ctx context.Context) error {
	lease, err := j.acquire(ctx)
	if err != nil {
		return err
	}
	j.command.Env = append(j.command.Env, fmt.Sprintf("SOLOTICK_FENCE=%d", lease.Fence()), "SOLOTICK_LOCK="+j.key)
	// Renewals come every third of the TTL: with less than a quarter left they are failing.
	j.command.Grace = time.Until(lease.ValidUntil()) / 4
	var right child.Right = heldLease{lease}
	if j.goesOn {
		right = anyway{}
	}
	told := j.tellLoss(lease)
	result, err := child.Run(j.command, right, j.signals.signals)
	told()
	lost := lease.Err()
	releaseErr := lease.Release(context.WithoutCancel(ctx))
	switch {
	case err != nil:
		return commandFailed(err)
	case result.Lost:
		if lost == nil {
			lost = fmt.Errorf("the lock %q could not be renewed in time", j.key)
		}
		return &exitError{code: exitLost, err: fmt.Errorf("%w; the command was stopped (its code: %d)", lost, result.Code)}
	case errors.Is(releaseErr, locks.ErrLost):
		return &exitError{code: exitLost, err: fmt.Errorf("the command ended with code %d, but the lock was lost before: %w", result.Code, releaseErr)}
	case releaseErr != nil:
		warn(j.command.Stderr, "%v; others may have to wait until it has expired", releaseErr)
	}
	return endWith(result.Code)
}

// tellLoss tells of a loss after which the command goes on, when it happens. The
// answer ends that, and is called before the release.
func (j lockJob) tellLoss(lease *locks.Lease) (end func()) {
	if !j.goesOn {
		return func() {}
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-lease.Done():
			warn(j.command.Stderr, "%v; the command goes on, and another may have the lock", lease.Err())
		case <-ended:
		}
	})
	return func() { close(ended); wg.Wait() }
}

func (j lockJob) acquire(ctx context.Context) (*locks.Lease, error) {
	var opts []locks.Option
	if j.ttl > 0 {
		opts = append(opts, locks.WithTTL(j.ttl))
	}
	var lease *locks.Lease
	err := j.signals.until(ctx, func(ctx context.Context) (err error) {
		if j.wait == 0 {
			lease, err = j.locker.TryAcquire(ctx, j.key, opts...)
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, j.wait)
		defer cancel()
		lease, err = j.locker.Acquire(ctx, j.key, opts...)
		return err
	})
	var told *exitError
	switch {
	case err == nil:
		return lease, nil
	case errors.As(err, &told): // stopped, perhaps in the moment it got the lock
		if lease != nil {
			return nil, errors.Join(err, lease.Release(ctx))
		}
		return nil, err
	case errors.Is(err, locks.ErrHeld):
		remedy := "try again later, or wait for it with --wait"
		if j.wait > 0 {
			remedy = fmt.Sprintf("it did not become free within %v", j.wait)
		}
		if held, ok := errors.AsType[*locks.HeldError](err); ok {
			err = held // without the words about the wait
		}
		return nil, &exitError{code: exitBusy, err: fmt.Errorf("%w; %s", err, remedy)}
	case errors.Is(err, locks.ErrInvalid):
		return nil, usageError(err)
	}
	return nil, err
}

// heldLease is a lease as a right to go on.
type heldLease struct{ *locks.Lease }

func (h heldLease) Lost() <-chan struct{} { return h.Done() }

func (h heldLease) Remaining() time.Duration { return time.Until(h.ValidUntil()) }

// anyway is the right to go on whatever becomes of the lease.
type anyway struct{}

func (anyway) Lost() <-chan struct{} { return nil }

func (anyway) Remaining() time.Duration { return math.MaxInt64 }
