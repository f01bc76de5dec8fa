package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/solotick/solotick/locks"
)

func newLocks() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "locks",
		GroupID: groupLook,
		Short:   "Show who holds which lock, ask for one, or take one away",
		Long: `Show who holds which lock, ask whether one is still held, or take one away from
its holder.`,
		Example: `  solotick locks list -c solotick.yaml
  solotick locks release backup -c solotick.yaml`,
	}
	cmd.AddCommand(newLocksList(), newLocksRelease(), newLocksCheck())
	return cmd
}

// openLocks opens the lock backend to look at it. It makes nothing. It is more patient
// than who wants a lease: a list walks over all keys of some backends.
func (s *site) openLocks(ctx context.Context) (*locks.Locker, error) {
	if err := s.wantShared(); err != nil {
		return nil, err
	}
	if err := s.locksMustExist(); err != nil {
		return nil, err
	}
	return s.openLockerWith(ctx, locks.Config{TTL: max(time.Minute, s.loaded.Locks.TTL), RequestTimeout: 10 * time.Second})
}

// wantShared refuses a backend that no other process sees.
func (s *site) wantShared() error {
	if s.loaded.Locks.Driver == memoryDriver {
		return usagef("locks.driver memory of %s excludes nobody outside of one process: name another driver", s.file)
	}
	return nil
}

// explainHidden says what it means that a backend cannot be looked into.
func explainHidden(err error) error {
	if errors.Is(err, locks.ErrUnsupported) {
		return fmt.Errorf("%w; it does not tell who holds what, and nobody but the holder can give a lock back", err)
	}
	return err
}

// lockRow is a held lock, as "locks list -o json" prints it.
type lockRow struct {
	Key         string `json:"key"`
	Holder      string `json:"holder"`
	Since       string `json:"since,omitempty"` // none where the backend does not tell; so are the next
	Fence       int64  `json:"fence"`
	RemainingMS int64  `json:"remaining_ms,omitempty"`
	Waiters     int    `json:"waiters,omitempty"`
}

func rowOfHolder(h locks.Holder) lockRow {
	r := lockRow{Key: h.Key, Holder: h.Label, Fence: h.Fence, RemainingMS: h.Remaining.Milliseconds(), Waiters: h.Waiters}
	if !h.Since.IsZero() {
		r.Since = rfc3339(h.Since.Truncate(time.Millisecond))
	}
	return r
}

func (r lockRow) cells() []string {
	cells := []string{r.Key, r.Holder, r.Since, strconv.FormatInt(r.Fence, 10), "", ""}
	if r.RemainingMS > 0 {
		cells[4] = (time.Duration(r.RemainingMS) * time.Millisecond).String()
	}
	if r.Waiters > 0 {
		cells[5] = strconv.Itoa(r.Waiters)
	}
	return cells
}

const maxLocks = 10_000

func newLocksList() *cobra.Command {
	var (
		prefix string
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are held",
		Long: `List the locks that are held: by whom, since when, under which fence, for how much
longer if the holder does not renew, and how many wait in line for it.

What a backend does not tell shows as a dash. ZooKeeper does not tell how long a
session lives; etcd keeps no time, so since is by the holder's clock there; only
etcd, ZooKeeper and Redis with fair: true have a line. Locks of a SQL database in
mode row cannot be listed.

Those of the file's namespace are listed: lock:NAMESPACE:command:KEY is one of
'solotick lock KEY', lock:NAMESPACE:cron:JOB a job's, lock:NAMESPACE:leader the
leader's. --prefix goes on from lock:NAMESPACE: unless it begins with "lock:".

` + defaultFileHelp,
		Example: `  solotick locks list -c solotick.yaml
  solotick locks list -c solotick.yaml --prefix cron: -o json
  solotick locks list -c solotick.yaml --prefix lock:`,
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only keys that begin so")
	cmd.Flags().IntVar(&limit, "limit", 1000, "how many at most")
	complete(cmd, "prefix", "command:", "cron:", "queue:", "leader", "lock:")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if limit < 1 || limit > maxLocks {
			return usagef("--limit: %d is outside 1 to %d", limit, maxLocks)
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
		held, err := locker.List(ctx, keyPrefix(site.namespace(), prefix), limit+1)
		if err != nil {
			return explainHidden(err)
		}
		if len(held) > limit {
			held = held[:limit]
			warn(cmd.ErrOrStderr(), "there are more than %d: raise --limit, or narrow it with --prefix", limit)
		}
		return printLocks(cmd.OutOrStdout(), out.value, held)
	})
	return cmd
}

// keyPrefix is what the keys to list begin with.
func keyPrefix(namespace, text string) string {
	if strings.HasPrefix(text, "lock:") {
		return text
	}
	return locks.Key(namespace) + ":" + text
}

func printLocks(w io.Writer, format string, held []locks.Holder) error {
	rows := make([]lockRow, len(held))
	cells := make([][]string, len(held))
	for i, h := range held {
		rows[i] = rowOfHolder(h)
		cells[i] = rows[i].cells()
	}
	if format == "json" {
		return printJSON(w, rows)
	}
	return printTable(w, []string{"KEY", "HOLDER", "SINCE", "FENCE", "REMAINING", "WAITERS"}, cells)
}

func newLocksRelease() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "release KEY",
		Short: "Take a lock away from its holder",
		Long: `Take a lock away from its holder, whoever that is, so that the next one gets it.

The holder is told: at once on etcd and ZooKeeper, elsewhere at its next renewal,
which comes within a third of its TTL. Until then two may work. The fence of the
next holder is higher, so a resource that checks it refuses the one thrown out.

This is for a holder that lives and must not go on: the lock of one that has died
is free when its TTL has ended.

It tells who holds the lock and asks; --yes answers, and is required where there
is no terminal. If the holder has changed by then, nothing is done.

A KEY is that of 'solotick lock', or a whole name that begins with "lock:", as
'solotick locks list' shows them.

` + defaultFileHelp + `

Exit codes: 0 it is free, 1 the backend did not answer, you said no, or the holder
has changed, 2 bad arguments or configuration.`,
		Example: `  solotick locks release backup -c solotick.yaml
  solotick locks release lock:shop:cron:report -c solotick.yaml --yes -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	file, out := fileFlag(cmd), outputFlag(cmd)
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if args[0] == "" {
			return usagef("KEY is empty: name the lock")
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
		r := eviction{locker: locker, key: lockKey(site.namespace(), args[0]), out: cmd.OutOrStdout(), told: cmd.ErrOrStderr(), json: out.value == "json"}
		if !yes {
			r.ask = func() (bool, error) { return confirm(cmd.InOrStdin(), cmd.ErrOrStderr()) }
		}
		err = r.run(ctx)
		if errors.Is(err, locks.ErrInvalid) {
			return usageError(err)
		}
		return explainHidden(err)
	})
	return cmd
}

// eviction takes one lock away from its holder.
type eviction struct {
	locker    *locks.Locker
	key       string
	ask       func() (bool, error) // nil to go on without asking
	out, told io.Writer
	json      bool // what came of it, for programs
}

// evicted is what came of it: the key is free now, and who held it before.
type evicted struct {
	Key      string   `json:"key"`
	Released bool     `json:"released"` // false where nobody held it any more
	Holder   *lockRow `json:"holder"`   // null where there was none to be thrown out
}

func (e eviction) tell(holder *lockRow, released bool, text string) error {
	if e.json {
		return printJSON(e.out, evicted{e.key, released, holder})
	}
	_, err := fmt.Fprintf(e.out, "%s is %s\n", printable(e.key), text)
	return err
}

func (e eviction) run(ctx context.Context) error {
	holder, err := e.locker.Inspect(ctx, e.key)
	if errors.Is(err, locks.ErrFree) {
		return e.tell(nil, false, "free: nobody holds it")
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(e.told, describe(holder))
	fmt.Fprintln(e.told, "Released by force, it goes to the next one at once. Its holder is told by its next renewal\nat the latest; until then both may work, and only a check of the fence keeps the old one out.")
	if e.ask != nil {
		if yes, err := e.ask(); err != nil {
			return err
		} else if !yes {
			return errors.New("nothing was released")
		}
		if now, err := e.locker.Inspect(ctx, e.key); err == nil && (now.Token != holder.Token || now.Fence != holder.Fence) {
			return fmt.Errorf("the holder has changed, nothing was released: %s", describe(now))
		}
	}
	released, err := e.locker.ForceRelease(ctx, e.key)
	if err != nil {
		return err
	}
	if released == locks.ReleasedGone {
		return e.tell(nil, false, "free: its holder has let it go meanwhile")
	}
	row := rowOfHolder(holder)
	return e.tell(&row, true, fmt.Sprintf("released: the next fence is above %d", holder.Fence))
}

// describe tells people who holds a lock.
func describe(h locks.Holder) string {
	row := rowOfHolder(h)
	text := fmt.Sprintf("%s is held by %s", printable(h.Key), printable(orDefault(h.Label, "somebody without a label")))
	if row.Since != "" {
		text += " since " + row.Since
	}
	text += fmt.Sprintf(", fence %d", h.Fence)
	if row.RemainingMS > 0 {
		text += fmt.Sprintf(", and ends in %v if it is not renewed", time.Duration(row.RemainingMS)*time.Millisecond)
	}
	if row.Waiters > 0 {
		text += fmt.Sprintf("; %d wait in line", row.Waiters)
	}
	return text + "."
}

// confirm asks at a terminal. Where there is none, nobody is asked.
func confirm(in io.Reader, out io.Writer) (bool, error) { return ask(in, out, "Release it?") }

// ask is confirm with a question of its own.
func ask(in io.Reader, out io.Writer, question string) (bool, error) {
	if f, ok := in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		return false, usagef("there is no terminal to ask at: say --yes")
	}
	fmt.Fprint(out, question+" [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}
