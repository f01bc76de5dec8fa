package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing" //nolint:depguard // the servers are those of the tests

	"github.com/solotick/solotick/internal/testenv" //nolint:depguard // the servers are those of the tests
)

// tester is what package testenv starts servers for: a test, or this program.
type tester = testing.TB

// host makes of the program what testenv asks of a test. A method of testing.TB that
// it does not have would panic; testenv uses none.
type host struct {
	testing.TB
	log      io.Writer
	cleanups []func()
	failed   bool
}

// fatal is what ends the program from within testenv.
type fatal struct{ error }

// end runs the clean-ups, and turns a fatal panic into an error.
func (h *host) end(err *error) {
	if p := recover(); p != nil {
		f, ok := p.(fatal)
		if !ok {
			panic(p)
		}
		*err = errors.Join(*err, f.error)
		h.failed = true
	}
	for len(h.cleanups) > 0 {
		last := len(h.cleanups) - 1
		clean := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		clean()
	}
}

func (h *host) Helper()                   {}
func (h *host) Failed() bool              { return h.failed }
func (h *host) Cleanup(f func())          { h.cleanups = append(h.cleanups, f) }
func (h *host) Logf(f string, a ...any)   { fmt.Fprintf(h.log, f+"\n", a...) }
func (h *host) Error(a ...any)            { h.failed = true; fmt.Fprintln(h.log, a...) }
func (h *host) Errorf(f string, a ...any) { h.failed = true; h.Logf(f, a...) }
func (h *host) Fatal(a ...any)            { panic(fatal{errors.New(fmt.Sprint(a...))}) }
func (h *host) Fatalf(f string, a ...any) { panic(fatal{fmt.Errorf(f, a...)}) }

// TempDir is only asked for by this program.
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "solotick-bench")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) }) // what is left is in the system's folder for that
	return dir
}

func (h *host) Skip(a ...any) { h.Fatal(a...) }

// env has the servers, each started at its first use.
type env struct {
	tb      tester
	servers map[string][]string
	count   int
}

func (e *env) started(name string, start func() []string) []string {
	if e.servers == nil {
		e.servers = map[string][]string{}
	}
	if e.servers[name] == nil {
		e.servers[name] = start()
	}
	return e.servers[name]
}

func addresses(servers ...*testenv.Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}

func (e *env) redis() string {
	return e.started("redis", func() []string { return addresses(testenv.Redis(e.tb)) })[0]
}

func (e *env) redises() []string {
	return e.started("redlock", func() []string { return addresses(testenv.Redises(e.tb, 3)...) })
}

func (e *env) etcd() string {
	return e.started("etcd", func() []string { return addresses(testenv.Etcd(e.tb, 1)...) })[0]
}

func (e *env) zookeeper() string {
	return e.started("zookeeper", func() []string { return addresses(testenv.ZooKeeper(e.tb)) })[0]
}

func (e *env) postgres() string {
	return e.started("postgres", func() []string {
		return []string{testenv.Postgres(e.tb, "-c", "max_connections=400").DSN()}
	})[0]
}

func (e *env) mariadb() string {
	return e.started("mariadb", func() []string { return []string{testenv.MariaDB(e.tb).DSN()} })[0]
}

func (e *env) sqlite() string {
	return e.started("sqlite", func() []string { return []string{e.tb.TempDir() + "/locks.db"} })[0]
}

// name returns one that no other contender of this run has, for keys and tables.
func (e *env) name() string {
	e.count++
	return fmt.Sprintf("b%d", e.count)
}

// bounded is the time limit of everything that is not itself measured.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, limit)
}
