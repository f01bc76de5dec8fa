package locks

import (
	"fmt"
	"time"

	"github.com/solotick/solotick/locks/driver"
)

// Op is a request to the backend.
type Op int

// The requests to a backend.
const (
	OpAcquire Op = iota + 1
	OpRenew
	OpRelease
	OpInspect
)

// String names the request.
func (o Op) String() string {
	switch o {
	case OpAcquire:
		return "acquire"
	case OpRenew:
		return "renew"
	case OpRelease:
		return "release"
	case OpInspect:
		return "inspect"
	}
	return fmt.Sprintf("Op(%d)", int(o))
}

// Event is something that happened to a lock, told to [Config].Observer. The set
// is sealed and may grow: a switch over it needs a default.
type Event interface{ event() }

// The events.
type (
	// EventAcquired says that the key was granted.
	EventAcquired struct {
		Key   string
		Fence int64
		Took  time.Duration // from the first request of this attempt to the answer
	}
	// EventHeld says that another grant holds the key.
	EventHeld struct {
		Key    string
		Holder Holder
		Local  bool // held by this process, so the backend was not asked
		Took   time.Duration
	}
	// EventWaiting says that a caller of Acquire has begun to wait; every one is followed
	// by an EventWaited. A wait that is over at once is told as well.
	EventWaiting struct{ Key string }
	// EventWaited says that such a wait is over: Err is nil if the key was granted.
	EventWaited struct {
		Key  string
		Err  error
		Took time.Duration
	}
	// EventUnavailable says that an acquire ended without a clear answer.
	EventUnavailable struct {
		Key  string
		Err  error
		Took time.Duration
	}
	// EventUnknown says that one request to the backend had no clear answer. It may have
	// been applied, and is being settled.
	EventUnknown struct {
		Key string
		Op  Op
		Err error
	}
	// EventRenewed says that one renewal request was answered.
	EventRenewed struct {
		Leases int // renewed by it
		Failed int // not renewed by it
		Took   time.Duration
	}
	// EventLost says that a lease ended before it was released.
	EventLost struct {
		Key    string
		Fence  int64
		Reason Reason
		Held   time.Duration // since the grant
	}
	// EventReleased says that a release ended.
	EventReleased struct {
		Key     string
		Fence   int64
		Outcome driver.Released // 0 if unknown
		Took    time.Duration
		Held    time.Duration // from the grant to the release; 0 if the lease was lost before
	}
)

func (EventAcquired) event()    {}
func (EventHeld) event()        {}
func (EventWaiting) event()     {}
func (EventWaited) event()      {}
func (EventUnavailable) event() {}
func (EventUnknown) event()     {}
func (EventRenewed) event()     {}
func (EventLost) event()        {}
func (EventReleased) event()    {}
