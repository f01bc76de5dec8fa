// Command lockbench measures solotick's lock backends beside other libraries and beside
// the bare protocol, on real servers that it starts itself. README.md says how to
// read what it prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"testing" //nolint:depguard // the servers are those of the tests
	"time"

	"github.com/solotick/solotick/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) //nolint:forbidigo // the root of the program
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "lockbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	flags := flag.NewFlagSet("lockbench", flag.ContinueOnError)
	flags.SetOutput(log)
	quick := flags.Bool("quick", false, "few and short rounds with at most 8 waiters: less than a minute, for a first impression")
	asJSON := flags.Bool("json", false, "print one JSON object instead of tables")
	markdown := flags.Bool("markdown", false, "print the tables as the README of the benchmarks has them")
	only := flags.String("only", "", "comma-separated words: leave out scenarios and backends that none of them names, such as \"redis\" or \"cycle,memory\"")
	if err := flags.Parse(args); err != nil {
		return err
	}
	size := full
	if *quick {
		size = short
	}
	r, err := measure(ctx, size, chosen(*only), log)
	if err != nil {
		return err
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	return r.print(out, *markdown)
}

// chosen makes of the flag a test for pairs of scenario and backend: each of the two
// that the words name at all must be among them.
func chosen(only string) func(scenario, backend string) bool {
	return bench.Chosen(only, scenarioNames, backendNames)
}

// measure starts the servers and runs the scenarios, one after the other.
func measure(ctx context.Context, size size, chosen func(scenario, backend string) bool, log io.Writer) (_ report, err error) {
	h := bench.NewHost(log)
	defer h.End(&err)
	return measureOn(ctx, h, size, chosen, log)
}

func measureOn(ctx context.Context, h testing.TB, size size, chosen func(scenario, backend string) bool, log io.Writer) (report, error) {
	e := &env{tb: h}
	machine := bench.ThisMachine()
	r := report{Started: time.Now().UTC().Truncate(time.Second), CPU: machine.CPU, CPUs: machine.CPUs, LoadBefore: bench.Load()}
	for _, scenario := range scenarios {
		for _, backend := range backends {
			if !chosen(scenario.name, backend.name) {
				continue
			}
			began := time.Now()
			rows, err := scenario.run(ctx, e, backend, size)
			if err != nil {
				return r, fmt.Errorf("%s on %s: %w", scenario.name, backend.name, err)
			}
			if len(rows) > 0 {
				fmt.Fprintf(log, "%s on %s: %.1f s\n", scenario.name, backend.name, time.Since(began).Seconds())
			}
			r.Rows = append(r.Rows, rows...)
		}
	}
	r.LoadAfter = bench.Load()
	r.Took = time.Since(r.Started).Round(time.Second).String()
	return r, nil
}
