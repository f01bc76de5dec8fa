package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	leaderdriver "github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/leader/leadertest/terms"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/locks/zklock"
)

// electionKey is what gate leader's election is called.
const electionKey = "lock:e2e:leader"

// lockBackend is a lock backend whose servers a test can cut a replica off from.
type lockBackend struct {
	name   string
	plugin func() locks.Plugin
	native bool // by the backend's own election recipe
	// place is what a test has of the servers: their addresses, and what a replica's file
	// says with proxies in their places. Nil for SQLite, which has no server.
	place func(t *testing.T) lockPlace
}

type lockPlace struct {
	addrs []string
	part  func(addrs []string) string
}

var lockBackends = []lockBackend{
	{name: "sqlite"},
	{name: "redis", plugin: redislock.Plugin, place: func(t *testing.T) lockPlace {
		space := testenv.SharedRedis(t)
		return lockPlace{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{addrs: [%q], db: %d}", a[0], space.DB) }}
	}},
	{name: "redlock", plugin: redlock.Plugin, place: func(t *testing.T) lockPlace {
		var addrs []string
		for _, node := range testenv.Redises(t, 3) {
			addrs = append(addrs, node.Addr())
		}
		return lockPlace{addrs, func(a []string) string {
			return fmt.Sprintf("{addrs: [%q, %q, %q], max_ttl: 4s}", a[0], a[1], a[2])
		}}
	}},
	{name: "etcd", plugin: etcdlock.Plugin, place: etcdPlace},
	{name: "etcd, own recipe", plugin: etcdlock.Plugin, native: true, place: etcdPlace},
	{name: "zookeeper", plugin: zklock.Plugin, place: zookeeperPlace},
	{name: "zookeeper, own recipe", plugin: zklock.Plugin, native: true, place: zookeeperPlace},
	{name: "postgres", plugin: postgres.Plugin, place: func(t *testing.T) lockPlace {
		space := testenv.SharedPostgres(t)
		return lockPlace{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{dsn: %q, max_conns: 4}", space.DSNAt(a[0])) }}
	}},
	{name: "mariadb", plugin: func() locks.Plugin { return mysql.Plugins()[0] }, place: func(t *testing.T) lockPlace {
		space := testenv.SharedMySQL(t)
		return lockPlace{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{dsn: %q, max_conns: 4}", space.DSNAt(a[0])) }}
	}},
}

func etcdPlace(t *testing.T) lockPlace {
	space := testenv.SharedEtcd(t)
	return lockPlace{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{endpoints: [%q], prefix: %q}", a[0], space.Name) }}
}

func zookeeperPlace(t *testing.T) lockPlace {
	space := testenv.SharedZooKeeper(t)
	return lockPlace{[]string{space.Addr}, func(a []string) string {
		return fmt.Sprintf("{servers: [%q], session_timeout: %v, prefix: %q}", a[0], lockTTL*3/2, "/"+space.Name)
	}}
}

// openLocks opens the replica's lock backend. Recipe is nil where the driver has none.
func (p plan) openLocks(ctx context.Context, db *gorm.DB) (l *locks.Locker, recipe leaderdriver.QueueLock, err error) {
	cfg := locks.Config{TTL: p.LockTTL, Label: p.Name}
	if p.Locks == "" {
		l, err = sqllock.New(db, &cfg)
		return l, nil, err
	}
	for _, b := range lockBackends {
		if b.name != p.Locks {
			continue
		}
		doc := strictyaml.Parse([]byte("part: "+p.LocksPart), strictyaml.Options{})
		var c struct {
			Part strictyaml.Raw `yaml:"part"`
		}
		doc.Decode(&c)
		if err := doc.Err(); err != nil {
			return nil, nil, err
		}
		d, err := b.plugin().Open(ctx, c.Part.Decode)
		if err != nil {
			return nil, nil, err
		}
		recipe, _ = d.(leaderdriver.QueueLock)
		l, err = locks.New(d, cfg)
		return l, recipe, err
	}
	return nil, nil, errors.New("no lock backend " + p.Locks)
}

// closeLocks gives up within a bound: a replica may be cut off.
func (p plan) closeLocks(ctx context.Context, l *locks.Locker) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := l.Close(ctx)
	if p.Follow {
		return nil // what a replica leaves behind is for its successor to cope with
	}
	return err
}

// monotonic is a clock that all processes of the host share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// follow tells what the replica believes of its own term, and what the backend tells of
// who leads, until the returned function is called.
func (p plan) follow(ctx context.Context, e *leader.Elector) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	look := func(l terms.Look) { p.tell(note{What: "look", Look: &l}) }
	var wg sync.WaitGroup
	wg.Go(func() { terms.Follow(ctx, e, 250*time.Millisecond, monotonic, look) })
	wg.Go(func() {
		for ctx.Err() == nil {
			call := monotonic()
			l, err := e.Leader(ctx)
			if err == nil || errors.Is(err, leader.ErrNoLeader) {
				look(terms.Look{Kind: terms.Observed, Term: l.Term, Call: call, Return: monotonic()})
			}
			select {
			case <-ctx.Done():
			case <-time.After(700 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}
