package redislock

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/subscription"
	"github.com/solotick/solotick/locks/driver"
)

const (
	// quiet is how long the subscription may be silent before it is asked for a
	// sign of life, and pong how long that may take.
	quiet = subscription.Quiet
	pong  = subscription.Pong
	// hushed is how often a failing subscription is logged at most.
	hushed = time.Minute
)

// hub is the one subscription of a driver: to a channel of its own on which waiters in
// line are told of their grants. It exists while somebody waits, and up to quiet
// longer.
type hub struct {
	rdb     redis.UniversalClient
	direct  *direct // nil where the client subscribes
	doubts  *doubts // nil where the master stays
	settle  func()  // of doubts, when the subscription is back
	channel string  // of this driver
	log     *slog.Logger

	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	lines   map[string]chan push // by token
	running bool
	closed  bool
	ps      *redis.PubSub
	ear     *ear          // instead of ps, to a single server
	live    chan struct{} // closed while the subscription is in force
	isLive  bool
	broken  bool          // it was in force, and is not
	failed  chan struct{} // closed when a try to subscribe fails
	why     error         // the last of these failures
	logged  time.Time
}

// push is a message to a waiter in line.
type push struct {
	kind byte
	n    int64 // the fence; or the milliseconds that the holder has left
}

// The kinds of pushes begin the messages, but for again.
const (
	pushGranted = 'g'
	pushLast    = 'l' // in line: to watch for the end of the holder's TTL
	pushBehind  = 'b' // is somebody now, who watches
	pushSeen    = 's'
	pushAgain   = 'a' // look whether something was missed
)

func newHub(d *Driver, direct *direct) *hub {
	h := &hub{
		rdb: d.rdb, direct: direct, doubts: d.doubts, settle: d.settle, log: d.log,
		channel: d.prefix + "to:" + driver.NewToken().String(),
		lines:   map[string]chan push{},
		live:    make(chan struct{}),
		failed:  make(chan struct{}),
	}
	h.ctx, h.stop = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: the subscription outlives its callers
	return h
}

// inUse reports whether there is a subscription in force.
func (h *hub) inUse() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isLive
}

// line registers a waiter in line, and waits until the subscription is in force.
func (h *hub) line(ctx context.Context, token string) (<-chan push, func(), error) {
	pushes := make(chan push, 4)
	h.mu.Lock()
	h.lines[token] = pushes
	live, failed, err := h.start()
	h.mu.Unlock()
	stop := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.lines, token)
	}
	if err == nil {
		err = h.await(ctx, live, failed)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return pushes, stop, nil
}

// attend has the subscription kept.
func (h *hub) attend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, _, _ = h.start() // not once it is closed
}

func (h *hub) await(ctx context.Context, live, failed <-chan struct{}) error {
	select {
	case <-live:
		return nil
	case <-failed:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.why
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.ctx.Done():
		return errClosed
	}
}

// start makes the goroutine run. The caller holds mu.
func (h *hub) start() (live, failed <-chan struct{}, err error) {
	if h.closed {
		return nil, nil, errClosed
	}
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	}
	return h.live, h.failed, nil
}

// run subscribes again and again, until nobody has waited for a while.
func (h *hub) run() {
	retry := backoff.Policy{Base: 50 * time.Millisecond, Max: 2 * time.Second}
	for failures := 0; ; failures++ {
		worked, err := h.session()
		h.mu.Lock()
		h.ps = nil
		h.closeLive()
		if err != nil {
			h.why = err
			h.broken = h.broken || worked
			close(h.failed)
			h.failed = make(chan struct{})
		}
		if h.closed || len(h.lines) == 0 && !h.doubts.any() {
			h.running = false
			h.mu.Unlock()
			return
		}
		if err == nil { // somebody has come meanwhile
			h.mu.Unlock()
			continue
		}
		for token := range h.lines {
			h.tell(token, push{kind: pushAgain}) // a server that has gone shows at once
		}
		loud := time.Since(h.logged) > hushed
		if loud {
			h.logged = time.Now()
		}
		h.mu.Unlock()
		if worked {
			failures = 0
		}
		if loud {
			h.log.Warn("redislock: the subscription to wake-ups failed; waiters poll until it is back", "error", err)
		}
		if backoff.Wait(h.ctx, retry.Delay(failures)) != nil {
			h.mu.Lock()
			h.running = false
			h.mu.Unlock()
			return
		}
	}
}

// session subscribes, and keeps the subscription until it fails or nobody needs it (no
// error).
func (h *hub) session() (worked bool, err error) {
	if h.direct == nil {
		ps := h.subscribe()
		if ps == nil {
			return false, nil
		}
		defer func() { _ = ps.Close() }() // it is of no use any more
		return h.receive(ps)
	}
	e, err := h.open()
	if err != nil {
		return false, err
	}
	defer h.shut(e)
	return true, e.tend()
}

// listens returns the subscription that waiters read themselves, and the turn to do so;
// nil where there is none.
func (h *hub) listens() (e *ear, turn <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ear == nil || !h.isLive {
		return nil, nil
	}
	return h.ear, h.ear.turn
}

// subscribe returns a subscription that is asked for, or nil after close.
func (h *hub) subscribe() *redis.PubSub {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		h.running = false
		return nil
	}
	// Without a channel it is made without a connection, so that no lock is held
	// over I/O.
	h.ps = h.rdb.Subscribe(h.ctx)
	return h.ps
}

// receive reads until the subscription fails, or nobody needs it (no error).
func (h *hub) receive(ps *redis.PubSub) (worked bool, err error) {
	return subscription.Receive(h.ctx, ps, subscription.Handler{
		Within:  unbounded,
		Changed: func(string, bool) { h.inForce() },
		Message: func(_, payload string) { h.deliver(payload) },
		Idle:    h.idle,
	}, h.channel)
}

// idle reports whether nobody waits.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.lines) == 0 && !h.doubts.any()
}

func (h *hub) closeLive() {
	if h.isLive {
		h.isLive, h.live = false, make(chan struct{})
	}
}

// inForce lets those who wait for the subscription go on, and tells the others to
// look: what happened in between was not pushed.
func (h *hub) inForce() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isLive {
		h.isLive = true
		close(h.live)
	}
	if h.broken && h.doubts != nil {
		h.wg.Go(h.settle)
	}
	h.broken = false
	for token := range h.lines {
		h.tell(token, push{kind: pushAgain})
	}
}

// tell passes a message on. Where the waiter has not taken the earlier ones, one of
// them makes room for the grant, or for the word that it is to look. The caller holds mu.
func (h *hub) tell(token string, p push) {
	to := h.lines[token]
	select {
	case to <- p:
		return
	default:
	}
	if p.kind != pushGranted {
		p = push{kind: pushAgain}
	}
	select {
	case <-to:
	default:
	}
	select {
	case to <- p:
	default: // it waits no more
	}
}

// deliver passes a message to its waiter.
func (h *hub) deliver(payload string) {
	const token = 1 + 2*len(driver.Token{})
	if len(payload) < token || payload[0] == pushSeen {
		return
	}
	n, _ := strconv.ParseInt(payload[token:], 10, 64)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tell(payload[1:token], push{payload[0], n})
}

// close ends the subscription and its goroutine.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	ps, e := h.ps, h.ear
	h.mu.Unlock()
	h.stop()
	if ps != nil {
		_ = ps.Close() // ends a read under way
	}
	if e != nil {
		_ = e.l.conn.Close()
	}
	h.wg.Wait()
}
