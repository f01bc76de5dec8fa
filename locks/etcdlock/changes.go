package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/backoff"
)

// Watch hints that who holds key, or who waits for it, may have changed, by one watch of
// the key's prefix. The channel has room for one hint and is never closed. The watch has
// begun when it returns, comes back by itself after an outage, with a hint, and ends with
// stop, with ctx, or with the driver.
func (d *Driver) Watch(ctx context.Context, key string) (hint <-chan struct{}, stop func(), err error) {
	if err := ended(ctx, "watch"); err != nil {
		return nil, nil, err
	}
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	forget := context.AfterFunc(d.life, cancel)
	changes := make(chan struct{}, 1)
	begin := func() clientv3.WatchChan {
		return d.client.Watch(watching, d.dir(key), clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithKeysOnly())
	}
	events := begin()
	select {
	case first := <-events:
		err = first.Err()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	done := make(chan struct{})
	follow := func() {
		defer close(done)
		for n := 0; ; n++ {
			for range events {
				n = 0
				select {
				case changes <- struct{}{}:
				default:
				}
			}
			// Compacted, or a member without a leader.
			if backoff.Wait(watching, backoff.Policy{Base: 10 * time.Millisecond, Max: time.Second}.Delay(n)) != nil {
				return
			}
			events = begin()
		}
	}
	if err = fail("watch", err); err == nil && !d.background(follow) {
		err = errClosed
	}
	if err != nil {
		forget()
		cancel()
		return nil, nil, err
	}
	return changes, sync.OnceFunc(func() {
		forget()
		cancel()
		<-done
	}), nil
}
