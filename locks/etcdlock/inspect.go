package etcdlock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/locks/driver"
)

// Inspect implements [driver.Inspector]. Since is when the holder asked, by its own
// clock: etcd keeps no time.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Holder, error) {
	if err := ended(ctx, "inspect"); err != nil {
		return driver.Holder{}, err
	}
	line, err := d.lineOf(ctx, key)
	if err != nil {
		return driver.Holder{}, err
	}
	if len(line) == 0 {
		return driver.Holder{}, driver.ErrFree
	}
	hs := []driver.Holder{d.holder(line)}
	err = d.remaining(ctx, hs, []int64{line[0].Lease})
	return hs[0], err
}

func (d *Driver) lineOf(ctx context.Context, key string) ([]*mvccpb.KeyValue, error) {
	resp, err := d.client.Get(clientv3.WithRequireLeader(ctx), d.dir(key), clientv3.WithPrefix())
	if err != nil {
		return nil, fail("inspect", err)
	}
	return d.line(resp.Kvs), nil
}

// List implements [driver.Inspector] by one read, and one request for each session
// in it.
func (d *Driver) List(ctx context.Context, prefix string, limit int) ([]driver.Holder, error) {
	if err := ended(ctx, "list"); err != nil {
		return nil, err
	}
	resp, err := d.client.Get(clientv3.WithRequireLeader(ctx), d.prefix+escaper.Replace(prefix), clientv3.WithPrefix())
	if err != nil {
		return nil, fail("list", err)
	}
	lines := map[string][]*mvccpb.KeyValue{}
	for _, kv := range d.line(resp.Kvs) {
		key, _, _ := d.parse(kv.Key)
		lines[key] = append(lines[key], kv)
	}
	hs := make([]driver.Holder, 0, len(lines))
	for _, line := range lines {
		hs = append(hs, d.holder(line))
	}
	slices.SortFunc(hs, func(a, b driver.Holder) int { return cmp.Compare(a.Key, b.Key) })
	hs = hs[:min(len(hs), limit)]
	leases := make([]int64, len(hs))
	for i := range hs {
		leases[i] = lines[hs[i].Key][0].Lease
	}
	return hs, d.remaining(ctx, hs, leases)
}

// surveyMax is how many keys one transaction reads; servers take 128 operations by
// default.
const surveyMax = 100

// Survey implements [driver.Surveyor] by one request for 100 keys. It does not tell what
// remains of a session.
func (d *Driver) Survey(ctx context.Context, keys []string) ([]driver.Holder, error) {
	if err := ended(ctx, "survey"); err != nil {
		return nil, err
	}
	var hs []driver.Holder
	for some := range slices.Chunk(keys, surveyMax) {
		ops := make([]clientv3.Op, len(some))
		for i, key := range some {
			ops[i] = clientv3.OpGet(d.dir(key), clientv3.WithPrefix())
		}
		resp, err := d.client.Txn(clientv3.WithRequireLeader(ctx)).Then(ops...).Commit()
		if err != nil {
			return nil, fail("survey", err)
		}
		for _, r := range resp.Responses {
			if line := d.line(r.GetResponseRange().Kvs); len(line) > 0 {
				hs = append(hs, d.holder(line))
			}
		}
	}
	return hs, nil
}

// remaining fills in how long the holders' sessions live if they are not renewed.
func (d *Driver) remaining(ctx context.Context, hs []driver.Holder, leases []int64) error {
	ctx = clientv3.WithRequireLeader(ctx)
	distinct := slices.Compact(slices.Sorted(slices.Values(leases)))
	ttls := make(map[int64]time.Duration, len(distinct))
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		first error
	)
	next := make(chan int64)
	for range min(len(distinct), maxParallel) {
		wg.Go(func() {
			for lease := range next {
				resp, err := d.client.TimeToLive(ctx, clientv3.LeaseID(lease))
				mu.Lock()
				if err == nil {
					ttls[lease] = time.Duration(max(resp.TTL, 0)) * time.Second
				} else if first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	for _, lease := range distinct {
		next <- lease
	}
	close(next)
	wg.Wait()
	for i := range hs {
		hs[i].Remaining = ttls[leases[i]]
	}
	return fail("inspect", first)
}

// maxParallel bounds the requests that one call has under way.
const maxParallel = 16

// ForceRelease implements [driver.Inspector]. The key of the holder is deleted; who
// comes next has a higher create revision, and so a higher fence. The holder is told
// by its watch.
func (d *Driver) ForceRelease(ctx context.Context, key string) (driver.Released, error) {
	if err := ended(ctx, "force release"); err != nil {
		return 0, err
	}
	for {
		line, err := d.lineOf(ctx, key)
		if err != nil {
			return 0, err
		}
		if len(line) == 0 {
			return driver.ReleasedGone, nil
		}
		path := string(line[0].Key)
		resp, err := d.txn(ctx).If(created(path, line[0].CreateRevision)).Then(clientv3.OpDelete(path)).Commit()
		if err != nil {
			return 0, fail("force release", err)
		}
		if resp.Succeeded {
			return driver.ReleasedOK, nil
		}
		// It went by itself. Whoever has the key now was not meant any less.
	}
}
