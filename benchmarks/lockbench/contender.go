package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/locks"
)

const (
	// ttl is that of every contender which has one. ZooKeeper's are bound to its
	// sessions, which the test server ends after ten seconds.
	ttl          = time.Minute
	zookeeperTTL = 6 * time.Second
	// limit bounds a round and everything around it.
	limit = 2 * time.Minute
)

// release gives a lock back.
type release func(ctx context.Context) error

// process is a contender as one process of an application has it, with connections
// of its own.
type process struct {
	// try takes a free key.
	try func(ctx context.Context, key string) (release, error)
	// wait takes a key when its holder has gone.
	wait  func(ctx context.Context, key string) (release, error)
	close func(ctx context.Context) error
}

// contender is a way to lock.
type contender struct {
	name string
	// bare is the protocol without a library, to which the others are compared.
	bare bool
	// ours are held to what is wanted.
	ours bool
	// in names the scenarios that it takes part in; all if empty.
	in []string
	// open makes a process whose requests are counted in sent. Name is the same for
	// all processes that contend.
	open func(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error)
}

func (c contender) takesPart(scenario string) bool {
	return len(c.in) == 0 || slices.Contains(c.in, scenario)
}

// backend has its contenders, in the order in which they are shown.
type backend struct {
	name       string
	contenders []contender
}

var backends = []backend{
	{"redis", redisContenders},
	{"redlock", redlockContenders},
	{"etcd", etcdContenders},
	{"zookeeper", zookeeperContenders},
	{"postgres", postgresContenders},
	{"mariadb", mariadbContenders},
	{"sqlite", sqliteContenders},
}

var backendNames = names(backends, func(b backend) string { return b.name })

func names[T any](list []T, name func(T) string) []string {
	var found []string
	for _, one := range list {
		found = append(found, name(one))
	}
	return found
}

// opened is a contender with its processes.
type opened struct {
	contender
	processes []process
	sent      atomic.Int64
}

func (b backend) open(ctx context.Context, e *env, scenario string, processes int) (_ []*opened, closeAll func() error, err error) {
	var all []*opened
	closeAll = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		var errs []error
		for _, o := range all {
			for _, p := range o.processes {
				errs = append(errs, p.close(ctx))
			}
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	for _, c := range b.contenders {
		if !c.takesPart(scenario) {
			continue
		}
		o := &opened{contender: c}
		all = append(all, o)
		name := e.name()
		for range processes {
			p, err := c.open(ctx, e, name, &o.sent)
			if err != nil {
				return nil, nil, err
			}
			o.processes = append(o.processes, p)
		}
	}
	return all, closeAll, nil
}

// ofLocker makes a process of one of our lockers.
func ofLocker(l *locks.Locker, more ...func() error) process {
	taken := func(lease *locks.Lease, err error) (release, error) {
		if err != nil {
			return nil, err
		}
		return lease.Release, nil
	}
	return process{
		try:  func(ctx context.Context, key string) (release, error) { return taken(l.TryAcquire(ctx, key)) },
		wait: func(ctx context.Context, key string) (release, error) { return taken(l.Acquire(ctx, key)) },
		close: func(ctx context.Context) error {
			errs := []error{l.Close(ctx)}
			for _, f := range more {
				errs = append(errs, f())
			}
			return errors.Join(errs...)
		},
	}
}

// closing makes of a client's Close what a process has.
func closing(f func() error) func(context.Context) error {
	return func(context.Context) error { return f() }
}

// counted is a connection whose writes are counted. The clients write a request, or
// a pipeline of them, at once.
type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}

func dial(sent *atomic.Int64) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return counted{conn, sent}, nil
	}
}
