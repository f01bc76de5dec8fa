// Command flash-sale sells 100 items to a crowd: 10,000 requests, each request sent twice
// to different ones of three processes. In the end 100 items are sold, the stock was never
// negative, and each request has one answer, however often it was sent.
//
// Three protections make it so, and each can be turned off:
//
//	lock    one buyer at a time looks and buys (locks/sqllock in the same database). It
//	        spares the database conflicts; nothing depends on it.
//	update  the stock is lowered where it is above zero (conditional), or if its row is as
//	        it was read (swap: idempotent.Swap). Off, it is set to what was seen, less
//	        one (blind): then two who saw the same stock sell one item twice.
//	key     a request is a call of idempotent.Once, so a repeat gets the first answer. Off,
//	        a repeat buys again.
//
// What is missing is provoked, not left to luck: where there is neither lock nor update,
// two buyers look before either writes; and -freeze stops a process (SIGSTOP) between its
// look and its write, with the lock in its hands, until the others are through.
//
//	go run ./examples/flash-sale              all protections
//	go run ./examples/flash-sale -each        a table: with all, and without one after the other
//	go run ./examples/flash-sale -lock=false -update=blind -json
//	FLASH_SALE_DSN=... go run ./examples/flash-sale -db postgres
//
// The database is a SQLite file that is removed at the end, or with -db postgres or
// mariadb the one that FLASH_SALE_DSN names in the form of its driver. There the tables
// flash_items and flash_sales are dropped and made anew, and the store's tables stay.
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
	"path/filepath"
	"syscall"
)

// Setup is a sale, and what protects it. Workers get it as it is.
type Setup struct {
	DB        string `json:"db"`
	DSN       string `json:"-"` // goes by the environment
	Items     int    `json:"items"`
	Requests  int    `json:"requests"` // in all, repeats among them
	Repeats   int    `json:"repeats"`  // how often each is sent
	Processes int    `json:"processes"`
	Callers   int    `json:"callers"` // of each process

	Lock   bool   `json:"lock"`
	Update string `json:"update"` // conditional, swap or blind
	Key    bool   `json:"key"`
	Freeze bool   `json:"freeze"`

	Namespace string `json:"namespace"`
}

func (s Setup) check() error {
	switch {
	case s.DB != "sqlite" && s.DB != "postgres" && s.DB != "mariadb":
		return fmt.Errorf("-db %q: use sqlite, postgres or mariadb", s.DB)
	case s.DB != "sqlite" && s.DSN == "":
		return errors.New("FLASH_SALE_DSN is empty: name the database in it")
	case s.Update != "conditional" && s.Update != "swap" && s.Update != "blind":
		return fmt.Errorf("-update %q: use conditional, swap or blind", s.Update)
	case s.Items < 2 || s.Processes < 2 || s.Callers < 2 || s.Repeats < 1 || s.Repeats > s.Processes:
		return errors.New("use 2 items, processes and callers or more, and 1 repeat to as many as there are processes")
	case s.Requests < 4*s.Items*s.Repeats:
		return fmt.Errorf("-requests %d: use %d or more, so that the items sell out", s.Requests, 4*s.Items*s.Repeats)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if text := os.Getenv(workerEnv); text != "" {
		fail(work(ctx, text, os.Stdin, os.Stdout))
		return
	}
	fail(start(ctx, os.Args[1:], os.Stdout))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "flash-sale:", err)
		os.Exit(1)
	}
}

// start does what the command line says.
func start(ctx context.Context, args []string, out io.Writer) (err error) {
	s := Setup{DSN: os.Getenv(dsnEnv)}
	var each, asJSON bool
	flags := flag.NewFlagSet("flash-sale", flag.ContinueOnError)
	flags.StringVar(&s.DB, "db", "sqlite", "sqlite, postgres or mariadb")
	flags.IntVar(&s.Items, "items", 100, "items in stock")
	flags.IntVar(&s.Requests, "requests", 10000, "requests in all, repeats among them")
	flags.IntVar(&s.Repeats, "repeats", 2, "how often each request is sent")
	flags.IntVar(&s.Processes, "processes", 3, "processes that sell")
	flags.IntVar(&s.Callers, "callers", 8, "callers at a time in each process")
	flags.BoolVar(&s.Lock, "lock", true, "one buyer at a time")
	flags.StringVar(&s.Update, "update", "conditional", "conditional, swap or blind")
	flags.BoolVar(&s.Key, "key", true, "a repeat gets the first answer")
	flags.BoolVar(&s.Freeze, "freeze", false, "freeze a process between its look and its write")
	flags.BoolVar(&each, "each", false, "sell with all protections, and without one after the other")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	if s.DB == "sqlite" {
		dir, err := os.MkdirTemp("", "solotick-flash-sale-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		s.DSN = filepath.Join(dir, "shop.db")
	}
	setups := []Setup{s}
	if each {
		setups = oneByOne(s)
	}
	var results []Result
	for _, one := range setups {
		r, err := sell(ctx, one)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(results)
	} else {
		err = table(out, results)
	}
	return errors.Join(err, broken(results))
}

// oneByOne are the sales of -each.
func oneByOne(s Setup) []Setup {
	with := func(lock bool, update string, key, freeze bool) Setup {
		one := s
		one.Lock, one.Update, one.Key, one.Freeze = lock, update, key, freeze
		return one
	}
	return []Setup{
		with(true, "conditional", true, true),
		with(true, "swap", true, true),
		with(false, "conditional", true, true),
		with(true, "conditional", false, true),
		with(false, "blind", true, false),
		with(true, "blind", false, true),
		with(false, "blind", false, false),
	}
}
