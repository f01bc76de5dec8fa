package zklock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/internal/backoff"
)

// Watch hints that who holds key, or who waits for it, may have changed, by one watch of
// the key's node at a time. The channel has room for one hint and is never closed. The
// watch has begun when it returns, comes back by itself after an outage, with a hint, and
// ends with stop, with ctx, or with the driver.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	event, err := d.watchLine(ctx, d.dir(key))
	if err != nil {
		return nil, nil, err
	}
	if !d.enter() {
		return nil, nil, errClosed
	}
	watching, cancel := context.WithCancel(ctx)
	changes, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer d.wg.Done()
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-event: // also where the session has ended
			case <-watching.Done():
				return
			}
			select {
			case changes <- struct{}{}:
			default:
			}
			for event = nil; event == nil; n++ {
				if event, err = d.watchLine(watching, d.dir(key)); err == nil {
					n = 0
					break
				}
				if errors.Is(err, errClosed) || backoff.Wait(watching, backoff.Policy{Base: 10 * time.Millisecond, Max: time.Second}.Delay(n)) != nil {
					return
				}
			}
		}
	}()
	return changes, sync.OnceFunc(func() { cancel(); <-done }), nil
}

// watchLine begins a watch of a key's children, or of the key's node where that is
// missing.
func (d *Driver) watchLine(ctx context.Context, dir string) (<-chan zk.Event, error) {
	for {
		event, err := call(ctx, d, "watch the line", func() (<-chan zk.Event, error) {
			_, _, event, err := d.conn.ChildrenW(dir)
			return event, err
		})
		if !errors.Is(err, zk.ErrNoNode) {
			return event, err
		}
		event, err = call(ctx, d, "watch for the line", func() (<-chan zk.Event, error) {
			exists, _, event, err := d.conn.ExistsW(dir)
			if exists {
				event = nil // made meanwhile
			}
			return event, err
		})
		if err != nil || event != nil {
			return event, err
		}
	}
}
