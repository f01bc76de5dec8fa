// Command plugin-lock shows a lock plugin of one's own: a lock server behind HTTP,
// and a program that takes its lock from whichever backend the file names, that one
// or a built-in one. README.md beside this file goes through it.
//
//	go run ./examples/plugin-lock serve [FILE]
//	go run ./examples/plugin-lock hold CONFIG KEY
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/examples/plugin-lock/httplock"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

const address = "127.0.0.1:7171"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plugin-lock:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx, filepath.Join(os.TempDir(), "solotick-plugin-lock.db"), address, out)
	case len(args) == 2 && args[0] == "serve":
		return serve(ctx, args[1], address, out)
	case len(args) == 3 && args[0] == "hold":
		return hold(ctx, args[1], args[2], out)
	}
	return errors.New("usage: plugin-lock serve [FILE], or plugin-lock hold CONFIG KEY")
}

// serve is the lock server: locks in a SQLite file, behind HTTP, until ctx ends.
func serve(ctx context.Context, file, address string, out io.Writer) (err error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	engine, err := sqllock.NewDriver(db)
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           httplock.NewHandler(engine, secret.New(os.Getenv("LOCK_TOKEN"))),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what is under way is unknown to its client, and settled
	defer stop()
	fmt.Fprintf(out, "locks of %s at http://%s\n", file, listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hold takes the lock called key from the backend that the file names, and gives it
// back when ctx ends.
func hold(ctx context.Context, file, key string, out io.Writer) (err error) {
	registry, err := locks.NewRegistry(memlock.Plugin(nil), redislock.Plugin(), httplock.Plugin())
	if err != nil {
		return err
	}
	loaded, err := configs.Load(file, configs.Options{LockDrivers: registry.Names()})
	if err != nil {
		return err
	}
	backend, err := registry.Open(ctx, loaded.Locks.Driver, loaded.Locks.Decode)
	if err != nil {
		return err
	}
	locker, err := locks.New(backend, loaded.Locks.Config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locker.Close(context.WithoutCancel(ctx))) }()

	lease, err := locker.TryAcquire(ctx, locks.Key(loaded.Namespace, "example", key))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is mine under fence %d; Ctrl-C gives it back\n", lease.Key(), lease.Fence())
	select {
	case <-lease.Done():
	case <-ctx.Done():
	}
	lost := lease.Err()
	if err := lease.Release(context.WithoutCancel(ctx)); lost == nil {
		return err
	}
	return lost
}
