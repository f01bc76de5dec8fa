package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/etcdlock"
)

var etcdContenders = []contender{
	{name: "bare etcd client", bare: true, open: openBareEtcd},
	{name: "solotick", ours: true, open: openEtcd},
	{name: "concurrency.Mutex", open: openMutex},
}

// messages counts what is sent over gRPC: requests, and those of streams.
type messages struct{ sent *atomic.Int64 }

func (m messages) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (m messages) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (m messages) HandleConn(context.Context, stats.ConnStats)                       {}
func (m messages) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutPayload); ok {
		m.sent.Add(1)
	}
}

func etcdClient(e *env, sent *atomic.Int64) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{e.etcd()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithStatsHandler(messages{sent})},
	})
}

func openEtcd(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	c, err := etcdClient(e, sent)
	if err != nil {
		return process{}, err
	}
	l, err := etcdlock.New(c, &locks.Config{TTL: ttl}, etcdlock.WithPrefix(name), etcdlock.WithLogger(quiet))
	if err != nil {
		return process{}, errors.Join(err, c.Close())
	}
	return ofLocker(l, c.Close), nil
}

// openMutex runs the client library's own lock, with one session a process. A Mutex
// is made for each acquire, as two of one session would share the lock.
func openMutex(_ context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	c, err := etcdClient(e, sent)
	if err != nil {
		return process{}, err
	}
	session, err := concurrency.NewSession(c, concurrency.WithTTL(int(ttl.Seconds())))
	if err != nil {
		return process{}, errors.Join(err, c.Close())
	}
	take := func(lock func(*concurrency.Mutex, context.Context) error) func(context.Context, string) (release, error) {
		return func(ctx context.Context, key string) (release, error) {
			m := concurrency.NewMutex(session, name+"/"+key)
			if err := lock(m, ctx); err != nil {
				return nil, err
			}
			return m.Unlock, nil
		}
	}
	return process{
		try: take((*concurrency.Mutex).TryLock), wait: take((*concurrency.Mutex).Lock),
		close: closing(func() error { return errors.Join(session.Close(), c.Close()) }),
	}, nil
}

// bareEtcd is the protocol without a library: a key on a lease of the process, in the
// line of its directory.
type bareEtcd struct {
	c     *clientv3.Client
	lease clientv3.LeaseID
	name  string
	keys  atomic.Int64
}

func openBareEtcd(ctx context.Context, e *env, name string, sent *atomic.Int64) (process, error) {
	c, err := etcdClient(e, sent)
	if err != nil {
		return process{}, err
	}
	lease, err := c.Grant(ctx, int64(limit.Seconds())*4)
	if err != nil {
		return process{}, errors.Join(err, c.Close())
	}
	b := &bareEtcd{c: c, lease: lease.ID, name: name}
	return process{try: b.try, wait: b.wait, close: closing(c.Close)}, nil
}

func (b *bareEtcd) path(key string) (dir, path string) {
	dir = b.name + "/" + key + "/"
	return dir, fmt.Sprintf("%s%x-%d", dir, b.lease, b.keys.Add(1))
}

func (b *bareEtcd) delete(path string) release {
	return func(ctx context.Context) error {
		_, err := b.c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(path), ">", 0)).Then(clientv3.OpDelete(path)).Commit()
		return err
	}
}

func (b *bareEtcd) try(ctx context.Context, key string) (release, error) {
	dir, path := b.path(key)
	resp, err := b.c.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(dir), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(path, "host:1", clientv3.WithLease(b.lease)), clientv3.OpGet(dir, clientv3.WithPrefix())).
		Else(clientv3.OpGet(dir, clientv3.WithPrefix())).Commit()
	if err == nil && !resp.Succeeded {
		err = errHeld
	}
	return b.delete(path), err
}

// wait puts a key, and watches the one before it until that is gone.
func (b *bareEtcd) wait(ctx context.Context, key string) (release, error) {
	dir, path := b.path(key)
	resp, err := b.c.Txn(ctx).Then(clientv3.OpPut(path, "host:1", clientv3.WithLease(b.lease)),
		clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(2))).Commit()
	if err != nil {
		return nil, err
	}
	line := resp.Responses[1].GetResponseRange().Kvs
	if len(line) < 2 {
		return b.delete(path), nil
	}
	ahead := string(line[1].Key)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	// From now on, and a look whether it is still there: a watch from a past revision
	// is served every 100 ms only.
	events := b.c.Watch(watching, ahead, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-events
	there, err := b.c.Get(ctx, ahead)
	if err != nil || len(there.Kvs) == 0 {
		return b.delete(path), err
	}
	gone := <-events
	return b.delete(path), gone.Err()
}
