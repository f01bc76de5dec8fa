package redlock

import (
	"sync"
	"sync/atomic"
	"time"
)

// hands run the requests to the nodes on goroutines that stay a while for the next: a
// new one grows its stack anew below the client in each request, and an acquire and its
// release make nine.
type hands struct {
	work  *sync.WaitGroup
	ended <-chan struct{}
	jobs  chan func()
	most  int32 // that stay
	here  atomic.Int32
}

// stays is for how long without work.
const stays = time.Second

// do runs f on a goroutine that is free, or a new one.
func (h *hands) do(f func()) {
	select {
	case h.jobs <- f:
	default:
		h.work.Go(func() {
			f()
			h.stay()
		})
	}
}

func (h *hands) stay() {
	defer h.here.Add(-1)
	if h.here.Add(1) > h.most {
		return
	}
	timer := time.NewTimer(stays)
	defer timer.Stop()
	for {
		select {
		case f := <-h.jobs:
			f()
			timer.Reset(stays)
		case <-timer.C:
			return
		case <-h.ended:
			return
		}
	}
}
