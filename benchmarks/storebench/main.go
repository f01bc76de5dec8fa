// Command storebench measures what the store and the guard cost beside the same
// statements written by hand, and whether a claim and a fetch stay as cheap as they
// were when the table has grown. README.md says how to read what it prints.
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
	"strings"
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
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

// size is how much is measured.
type size struct {
	rounds    int
	round     time.Duration
	callers   []int
	finished  []int // rows that are finished already
	probes    int   // claims and fetches timed beside them
	burst     int   // rows that come at once; 0 for none
	workers   int
	batches   int
	batchSize int
}

var (
	full = size{
		rounds: 60, round: 100 * time.Millisecond, callers: []int{1, 8}, finished: []int{1000, 200_000}, probes: 400,
		burst: 20_000, workers: 4, batches: 200, batchSize: 10,
	}
	short = size{
		rounds: 12, round: 100 * time.Millisecond, callers: []int{1, 8}, finished: []int{1000, 20_000}, probes: 100,
		burst: 5000, workers: 4, batches: 100, batchSize: 10,
	}
	// smoke is for the test that everything still runs.
	smoke = size{
		rounds: 1, round: 10 * time.Millisecond, callers: []int{2}, finished: []int{20, 60}, probes: 3,
		burst: 50, workers: 2, batches: 2, batchSize: 3,
	}
)

func run(ctx context.Context, args []string, out, log io.Writer) (err error) {
	flags := flag.NewFlagSet("storebench", flag.ContinueOnError)
	flags.SetOutput(log)
	quick := flags.Bool("quick", false, "few and short rounds: less than a minute, for a first impression")
	asJSON := flags.Bool("json", false, "print one JSON object instead of tables")
	only := flags.String("only", "", "comma-separated words: leave out scenarios and databases that none of them names, such as \"cycle,postgres\"")
	rows := flags.Int("rows", 0, "the most finished rows beside which a claim and a fetch are measured; 5000000 takes an hour. Default 200000, with -quick 20000")
	burst := flags.Int("burst", 0, "how many rows come at once into an empty table. Default 20000, with -quick 5000")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := full
	if *quick {
		s = short
	}
	if *rows != 0 {
		if *rows <= s.finished[0] {
			return fmt.Errorf("-rows %d: ask for more than %d, beside which the figures are compared", *rows, s.finished[0])
		}
		s.finished = []int{s.finished[0], *rows}
	}
	if *burst != 0 {
		if *burst < s.batches*s.batchSize*4 {
			return fmt.Errorf("-burst %d: ask for at least %d", *burst, s.batches*s.batchSize*4)
		}
		s.burst = *burst
	}
	h := bench.NewHost(log)
	defer h.End(&err)
	r, err := measure(ctx, h, s, chosen(*only), log)
	if err != nil {
		return err
	}
	r.Command = strings.TrimSpace("storebench " + strings.Join(args, " "))
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	return r.print(out)
}

// chosen makes of the flag a test for pairs of scenario and database: each of the two
// that the words name at all must be among them.
func chosen(only string) func(scenario, database string) bool {
	return bench.Chosen(only, scenarioNames, databaseNames)
}

type scenario struct {
	name string
	run  func(ctx context.Context, d *database, s size) ([]row, error)
}

// The scenarios.
const (
	cycle = "cycle" // claim, effect, finish, one run after the other
	grown = "grown" // a claim and a fetch beside many finished rows
	burst = "burst" // many rows at once into a table that was empty
)

var (
	scenarios     = []scenario{{cycle, runCycle}, {grown, runGrown}, {burst, runBurst}}
	scenarioNames = []string{cycle, grown, burst}
)

func measure(ctx context.Context, tb testing.TB, s size, chosen func(scenario, database string) bool, log io.Writer) (report, error) {
	r := report{Began: time.Now().UTC().Truncate(time.Second), Machine: bench.ThisMachine(), LoadBefore: bench.Load()}
	open := map[string]*database{}
	for _, scenario := range scenarios {
		for _, name := range databaseNames {
			if !chosen(scenario.name, name) {
				continue
			}
			if open[name] == nil {
				open[name] = start(tb, name)
			}
			began := time.Now()
			rows, err := scenario.run(ctx, open[name], s)
			if err != nil {
				return r, fmt.Errorf("%s on %s: %w", scenario.name, name, err)
			}
			fmt.Fprintf(log, "%s on %s: %.1f s\n", scenario.name, name, time.Since(began).Seconds())
			r.Rows = append(r.Rows, rows...)
		}
	}
	r.LoadAfter = bench.Load()
	r.Took = time.Since(r.Began).Round(time.Second).String()
	return r, nil
}
