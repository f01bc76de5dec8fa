package redislock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// byName reports whether Sentinels tell the client which server is the master.
func byName(rdb redis.UniversalClient) bool {
	c, ok := rdb.(*redis.Client)
	return ok && c.Options().Addr == "FailoverClient"
}

// doubts keeps the holds of a driver whose master may change. Sentinel ends all
// connections to a master that it replaces, the subscription too, which is therefore
// kept while there are holds: when it is in force again, every hold is in doubt until it
// was renewed.
type doubts struct {
	mu    sync.Mutex
	holds map[*doubt]struct{}
}

type doubt struct {
	hold driver.Hold
	lost func()
}

// Serves implements [driver.Partial]: a loss is told beside renewal only where Sentinels
// name the master.
func (d *Driver) Serves(iface any) bool {
	_, teller := iface.(*driver.LossTeller)
	return !teller || d.doubts != nil
}

// TellLoss implements [driver.LossTeller]: after a change of the master it renews the
// hold at once, and calls lost if the new one does not know it.
func (d *Driver) TellLoss(h driver.Hold, lost func()) (stop func()) {
	one := &doubt{h, lost}
	d.doubts.mu.Lock()
	d.doubts.holds[one] = struct{}{}
	d.doubts.mu.Unlock()
	d.hub.attend()
	return func() {
		d.doubts.mu.Lock()
		delete(d.doubts.holds, one)
		d.doubts.mu.Unlock()
	}
}

func (s *doubts) any() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holds) > 0
}

// settle renews what was held when the subscription came back.
func (d *Driver) settle() {
	if mutation.On("redis-failover-doubt") {
		return
	}
	retry := backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}
	d.doubts.mu.Lock()
	var open []*doubt
	for one := range d.doubts.holds {
		open = append(open, one)
	}
	d.doubts.mu.Unlock()
	for failures := 0; len(open) > 0; failures++ {
		holds := make([]driver.Hold, len(open))
		for i, one := range open {
			holds[i] = one.hold
		}
		ctx, cancel := context.WithTimeout(d.ctx, unbounded)
		errs := d.RenewBatch(ctx, holds)
		cancel()
		var still []*doubt
		for i, one := range open {
			d.doubts.mu.Lock()
			_, held := d.doubts.holds[one]
			d.doubts.mu.Unlock()
			switch {
			case !held || errs[i] == nil:
			case errors.Is(errs[i], driver.ErrNotOurs):
				one.lost()
			default:
				still = append(still, one)
			}
		}
		open = still
		if len(open) > 0 && backoff.Wait(d.ctx, retry.Delay(failures)) != nil {
			return
		}
	}
}
