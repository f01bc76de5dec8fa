package main

import (
	"context"
	"fmt"
	"testing" //nolint:depguard // the servers are those of the tests

	"github.com/solotick/solotick/internal/testenv" //nolint:depguard // the servers are those of the tests
)

// env has the servers, each started at its first use.
type env struct {
	tb       testing.TB
	servers  map[string][]string
	redisPid int
	count    int
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
	return e.started("redis", func() []string {
		s := testenv.Redis(e.tb)
		e.redisPid = s.Pid()
		return addresses(s)
	})[0]
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
