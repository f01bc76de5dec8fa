package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/solotick/solotick/locks/driver"
)

// surveyAtOnce is how many keys are asked for at a time where the backend takes one a
// request.
const surveyAtOnce = 8

// Survey returns the holders of those of the keys that are held, in the order of keys:
// by one request where the backend can, and by one for each key elsewhere. What remains
// of their leases, and how many wait, may be left out. Errors are those of
// [Locker.Inspect], but ErrFree.
func (l *Locker) Survey(ctx context.Context, keys []string) ([]Holder, error) {
	for _, key := range keys {
		if err := checkKey(key, l.limits.MaxKeyBytes); err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	var found []Holder
	err := l.look(ctx, keys[0], func(ctx context.Context) (err error) {
		if l.survey != nil {
			found, err = l.survey.Survey(ctx, keys)
		} else {
			found, err = surveyEach(ctx, l.inspect, keys)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	held := make(map[string]Holder, len(found))
	for _, h := range found {
		held[h.Key] = h
	}
	out := make([]Holder, 0, len(found))
	for _, key := range keys {
		if h, ok := held[key]; ok {
			out = append(out, h)
		}
	}
	return out, nil
}

func surveyEach(ctx context.Context, d driver.Inspector, keys []string) (found []Holder, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := make(chan string)
	for range min(surveyAtOnce, len(keys)) {
		wg.Go(func() {
			for key := range next {
				h, err := d.Inspect(ctx, key)
				switch {
				case err == nil:
					mu.Lock()
					found = append(found, h)
					mu.Unlock()
				case !errors.Is(err, driver.ErrFree):
					cancel(fmt.Errorf("%s: %w", key, err))
				}
			}
		})
	}
	for _, key := range keys {
		if ctx.Err() != nil {
			break
		}
		next <- key
	}
	close(next)
	wg.Wait()
	return found, context.Cause(ctx)
}
