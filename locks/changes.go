package locks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Changes hints that who holds one of the keys may have changed, where the backend pushes
// that to others than waiters (etcd, ZooKeeper, memory). A hint may be of nothing, and
// several changes may be one: look now and then all the same. The error matches
// [ErrUnsupported] where the backend does not push it, and [ErrUnavailable] where it
// cannot answer. Hint has room for one. The watches, one for each key, end with stop, which waits
// for that, or with ctx.
func (l *Locker) Changes(ctx context.Context, keys []string) (hint <-chan struct{}, stop func(), err error) {
	w, ok := driver.As[driver.Watcher](l.d)
	if !ok {
		return nil, nil, fmt.Errorf("%w: it pushes no changes", ErrUnsupported)
	}
	for _, key := range keys {
		if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
			return nil, nil, err
		}
	}
	if l.acquiring.Err() != nil {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	all := make(chan struct{}, 1)
	stop = sync.OnceFunc(func() { cancel(); watches.Wait() })
	for _, key := range keys {
		begin, giveUp := context.WithCancel(ctx) // it may be the life of the watch
		limit := time.AfterFunc(l.cfg.RequestTimeout, giveUp)
		one, end, err := w.Watch(begin, key)
		if !limit.Stop() && err == nil {
			end()
			err = context.DeadlineExceeded
		}
		if err != nil {
			giveUp()
			stop()
			return nil, nil, fmt.Errorf("locks: watch %s: %w: %w", key, ErrUnavailable, err)
		}
		watches.Go(func() {
			defer giveUp()
			defer end()
			for {
				select {
				case <-one:
				case <-ctx.Done():
					return
				}
				select {
				case all <- struct{}{}:
				default:
				}
			}
		})
	}
	return all, stop, nil
}
