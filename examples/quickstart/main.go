// Command quickstart runs a cron job on an embedded SQLite file. Start it in two
// terminals: each tick runs in one of them. Ctrl-C ends it.
//
//	go run ./examples/quickstart [FILE]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	file := filepath.Join(os.TempDir(), "solotick-quickstart.db")
	if len(os.Args) > 1 {
		file = os.Args[1]
	}
	if err := run(ctx, file, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run works until ctx ends, and then lets runs in progress finish.
func run(ctx context.Context, file string, out io.Writer) (err error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	st, err := gormstore.New(db)
	if err != nil {
		return err
	}
	if err := st.Migrate(ctx); err != nil {
		return err
	}
	locker, err := sqllock.New(db, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close(context.WithoutCancel(ctx))) }()

	s, err := scheduler.New(scheduler.Config{Namespace: "quickstart"}, scheduler.Deps{Store: st, Locker: locker})
	if err != nil {
		return err
	}
	err = s.Add(scheduler.Cron("hello", "@every 1s", func(_ context.Context, run *scheduler.Run) error {
		_, err := fmt.Fprintf(out, "%s ran in process %d\n", run.Tick().Format(time.RFC3339), os.Getpid())
		return err
	}))
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
