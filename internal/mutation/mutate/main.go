// Command mutate proves that the test suite has teeth. For every guard in
// internal/mutation/guards.txt it runs the named tests twice on one build with
// the tag "mutation": with nothing broken, where they must pass, and with that
// guard broken, where at least one must fail.
//
// It refuses a guard that the code asks about and the table lacks, a row whose
// guard no code asks about, a pattern that runs no test, and tests that do not
// compile or do not pass to begin with: none of these may look like a guard that
// was noticed. A run that exceeds -timeout counts as noticed, because a guard may be
// all that ends a wait.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	dir := flags.String("dir", ".", "root of the module")
	only := flags.String("guard", "", "break this guard only")
	timeout := flags.Duration("timeout", 2*time.Minute, "limit for the tests of one package")
	at := flags.Int("p", 3, "guards broken at a time, each in processes of its own")
	if err := flags.Parse(args); err != nil {
		return err
	}

	rows, err := readTable(*dir)
	if err != nil {
		return err
	}
	found, err := findGuards(*dir)
	if err != nil {
		return err
	}
	if err := match(rows, found); err != nil {
		return err
	}
	if *only != "" {
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.guard != *only })
		if len(rows) == 0 {
			return fmt.Errorf("no guard %q in %s", *only, tableFile)
		}
	}

	bin, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	if bin, err = filepath.Abs(bin); err != nil { // tests run in their packages
		return err
	}
	defer func() { _ = os.RemoveAll(bin) }() // temporary files; the verdict is what counts
	r := &runner{dir: *dir, bin: bin, timeout: *timeout, at: *at, out: out}
	return r.breakAll(ctx, rows)
}
