package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/zklock"
)

var zookeeperContenders = []contender{
	{name: "bare zk client", bare: true, open: openBareZooKeeper},
	{name: "solotick", ours: true, open: openZooKeeper},
	{name: "zk.Lock", open: openZKLock},
}

type noLog struct{}

func (noLog) Printf(string, ...any) {}

func zookeeperConn(ctx context.Context, e *env, sent *atomic.Int64) (*zk.Conn, error) {
	connect := dial(sent)
	c, events, err := zk.Connect([]string{e.zookeeper()}, zookeeperTTL*3/2, zk.WithLogger(noLog{}), zk.WithLogInfo(false),
		zk.WithDialer(func(network, addr string, _ time.Duration) (net.Conn, error) { return connect(ctx, network, addr) }))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return c, nil
			}
		case <-ctx.Done():
			c.Close()
			return nil, ctx.Err()
		}
	}
}

func openZooKeeper(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	l, err := zklock.New(ctx, []string{e.zookeeper()}, &locks.Config{TTL: zookeeperTTL},
		zklock.WithPrefix("/"+name), zklock.WithLogger(quiet), zklock.WithDialer(dial(sent)))
	if err != nil {
		return process{}, err
	}
	return ofLocker(l), nil
}

var everybody = zk.WorldACL(zk.PermAll)

// openZKLock runs the client library's own lock. It takes no context.
func openZKLock(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	c, err := zookeeperConn(ctx, e, sent)
	if err != nil {
		return process{}, err
	}
	wait := func(_ context.Context, key string) (release, error) {
		l := zk.NewLock(c, "/"+name+"/"+key, everybody)
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return func(context.Context) error { return l.Unlock() }, nil
	}
	return process{try: wait, wait: wait, close: closing(func() error { c.Close(); return nil })}, nil
}

// bareZooKeeper is the protocol without a library: an ephemeral node in the line of
// its directory, and a watch of the one before it.
type bareZooKeeper struct {
	c    *zk.Conn
	name string
	made map[string]bool
}

func openBareZooKeeper(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	c, err := zookeeperConn(ctx, e, sent)
	if err != nil {
		return process{}, err
	}
	b := &bareZooKeeper{c: c, name: "/" + name, made: map[string]bool{}}
	return process{try: b.take, wait: b.take, close: closing(func() error { c.Close(); return nil })}, nil
}

func (b *bareZooKeeper) directory(key string) (string, error) {
	dir := b.name + "/" + key
	if b.made[dir] {
		return dir, nil
	}
	for _, path := range []string{b.name, dir} {
		if _, err := b.c.Create(path, nil, 0, everybody); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return "", err
		}
	}
	b.made[dir] = true
	return dir, nil
}

func (b *bareZooKeeper) take(_ context.Context, key string) (release, error) {
	dir, err := b.directory(key)
	if err != nil {
		return nil, err
	}
	path, err := b.c.Create(dir+"/lock-", nil, zk.FlagEphemeralSequential, everybody)
	if err != nil {
		return nil, err
	}
	free := func(context.Context) error { return b.c.Delete(path, -1) }
	// The line, and in the same flight the own node, whose transaction id is the fence
	// and whose watch tells of its loss.
	own := make(chan error, 1)
	go func() {
		_, _, _, err := b.c.ExistsW(path)
		own <- err
	}()
	line, _, err := b.c.Children(dir)
	if err = errors.Join(err, <-own); err != nil {
		return nil, err
	}
	slices.SortFunc(line, func(x, y string) int { return cmp.Compare(x, y) })
	i, found := slices.BinarySearch(line, path[len(dir)+1:])
	switch {
	case !found:
		return nil, fmt.Errorf("%s is not in the line", path)
	case i == 0:
		return free, nil
	}
	there, _, gone, err := b.c.ExistsW(dir + "/" + line[i-1])
	if err == nil && there {
		<-gone
	}
	return free, err
}
