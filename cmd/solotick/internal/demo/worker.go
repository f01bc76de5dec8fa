package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// WorkerOptions of one replica.
type WorkerOptions struct {
	Dir     string        // where the database is
	Replica int           // from 1
	Skew    time.Duration // added to this replica's clock
}

const databaseFile = "demo.db"

// Worker is a replica: it runs the demo's jobs until stdin ends, which it does
// when the process that started it closes it or dies. It says "ready" on stdout
// once the scheduler has started, and logs to stderr.
func Worker(ctx context.Context, o WorkerOptions, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	db, err := sqlitedb.Open(filepath.Join(o.Dir, databaseFile), &sqlitedb.Options{Logger: log}) //nolint:contextcheck // Open bounds itself
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	backend, err := sqllock.NewDriver(db)
	if err != nil {
		return err
	}
	label := fmt.Sprintf("replica-%d:%d", o.Replica, os.Getpid())
	locker, err := locks.New(backend, locks.Config{TTL: lease, Label: label})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close(context.WithoutCancel(ctx))) }()
	st, err := gormstore.New(db)
	if err != nil {
		return err
	}
	s, err := scheduler.New(scheduler.Config{
		Namespace: namespace, Lease: lease, DrainTimeout: 500 * time.Millisecond, PollInterval: 500 * time.Millisecond,
		Label: label, ClockOffset: o.Skew,
	}, scheduler.Deps{Store: st, Locker: locker, Logger: log})
	if err != nil {
		return err
	}
	if err := s.Add(schedulerJobs(db, idempotent.New(st), identity{o.Replica, os.Getpid()})...); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // ends with an error or without: either way the parent is gone
		stop()
	}()
	if err := s.Start(ctx); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	<-ctx.Done()
	return s.Stop(context.WithoutCancel(ctx))
}
