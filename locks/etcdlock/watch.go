package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks/driver"
)

// hub watches keys for their deletion, all over one stream and with two goroutines,
// which run while anything is watched. The client's own Watch needs a goroutine
// and some kilobytes for each key.
type hub struct {
	d      *Driver
	client pb.WatchClient

	// mu guards the rest and the changing part of every watch. It may be locked
	// under the Driver's mu, not the other way round.
	mu      sync.Mutex
	byKey   map[string]*watch // those that several may share; a hold of this driver has its own
	byID    map[int64]*watch  // those that the stream must have
	lastID  int64
	closed  bool
	work    sync.WaitGroup
	running bool
	stream  context.CancelFunc // ends the stream; nil if there is none
	idle    *time.Timer        // ends it when nothing has been watched for a while
	out     []*pb.WatchRequest // to be sent over it
	send    chan struct{}      // of capacity 1: there is something in out
	young   map[*watch]struct{}
	ripen   *time.Timer // nil if none is young
}

// watch is an interest in the deletion of a key.
type watch struct {
	key   string
	gone  chan struct{} // closed when the key is deleted, or known to be gone; nil where nobody waits
	told  func()        // called then; may be nil
	ready chan struct{} // closed when etcd watches; nil where nobody waits for that

	// The hub's mu guards the rest.
	id     int64 // 0 while it is young
	refs   int
	from   int64 // the revision to begin at; 0 is now
	isGone bool
	begun  bool
	verify bool  // look whether the key is there once the watch has begun
	view   *view // of a line; nil for the watch of one key
}

func newHub(d *Driver) *hub {
	return &hub{
		d: d, client: pb.NewWatchClient(d.client.ActiveConnection()), byKey: map[string]*watch{},
		byID: map[int64]*watch{}, send: make(chan struct{}, 1), young: map[*watch]struct{}{},
	}
}

// watch begins now. Every watch needs an unwatch.
func (h *hub) watch(key string) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.use(key, 0)
	if w.ready == nil {
		w.ready = make(chan struct{})
		if w.begun {
			close(w.ready)
		}
	}
	h.register(w)
	return w
}

// youth is how old a hold must be to be worth a watch: most are shorter.
const youth = 100 * time.Millisecond

// watchLater is watch for who has time, and may go before it has begun.
func (h *hub) watchLater(key string, from int64) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.use(key, from)
	h.grow(w)
	return w
}

// watchHold is watchLater for the entry that keeps the watch, and shares it.
func (h *hub) watchHold(e *entry) *watch {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.watch == nil {
		e.watch = &watch{key: e.path, from: e.fence + 1, refs: 1}
		h.grow(e.watch)
	}
	e.watch.refs++
	return e.watch
}

// grow makes the stream watch w when it is no longer young. The caller holds mu.
func (h *hub) grow(w *watch) {
	if w.id != 0 || w.isGone {
		return
	}
	h.young[w] = struct{}{}
	if h.ripen == nil {
		h.ripen = time.AfterFunc(youth, h.ripened)
	}
}

func (h *hub) ripened() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ripen = nil
	for w := range h.young {
		h.register(w)
	}
	h.young = map[*watch]struct{}{} // an emptied map keeps its room
}

// use returns the watch of key. The caller holds mu.
func (h *hub) use(key string, from int64) *watch {
	w := h.byKey[key]
	if w == nil {
		w = &watch{key: key, from: from, gone: make(chan struct{})}
		h.byKey[key] = w
	}
	w.refs++
	return w
}

// register makes the stream watch w. The caller holds mu.
func (h *hub) register(w *watch) {
	delete(h.young, w)
	if w.id != 0 || w.isGone {
		return
	}
	h.lastID++
	w.id = h.lastID
	h.byID[w.id] = w
	if h.stream != nil {
		h.queue(create(w))
	}
	if h.idle != nil {
		h.idle.Stop()
		h.idle = nil
	}
	if !h.running {
		h.running = h.spawn(h.run)
	}
}

// spawn runs f, unless the hub is closed. The caller holds mu.
func (h *hub) spawn(f func()) bool {
	if !h.closed {
		h.work.Go(f)
	}
	return !h.closed
}

// shutDown waits for the hub's goroutines, after the end of the driver's life.
func (h *hub) shutDown() {
	h.mu.Lock()
	h.closed = true
	if h.idle != nil {
		h.idle.Stop()
	}
	if h.ripen != nil {
		h.ripen.Stop()
	}
	h.mu.Unlock()
	h.work.Wait()
}

// unwatch ends one use of w, which may be nil; gone tells all others of its key's
// end.
func (h *hub) unwatch(w *watch, gone bool) {
	if w == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if gone {
		w.fire()
	}
	if w.refs--; w.refs > 0 {
		return
	}
	if h.byKey[w.key] == w {
		delete(h.byKey, w.key)
	}
	delete(h.young, w)
	h.unregister(w)
}

// unregister ends the watch at etcd. The caller holds mu.
func (h *hub) unregister(w *watch) {
	if w.id == 0 {
		return
	}
	delete(h.byID, w.id)
	if h.stream == nil {
		return
	}
	if len(h.byID) == 0 {
		h.idle = time.AfterFunc(idleStream, h.hangUp)
	}
	h.queue(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: w.id}}})
}

// idleStream is how long the stream is kept when nothing is watched: to open it
// anew for every waiter of a busy key would cost more.
const idleStream = time.Second

func (h *hub) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.byID) == 0 && h.stream != nil {
		h.stream()
	}
}

// fire tells that the key is gone. The caller holds the hub's mu.
func (w *watch) fire() {
	if !w.isGone {
		w.isGone = true
		if w.gone != nil {
			close(w.gone)
		}
		if w.told != nil {
			w.told()
		}
	}
}

func create(w *watch) *pb.WatchRequest {
	r := &pb.WatchCreateRequest{
		Key: []byte(w.key), WatchId: w.id, StartRevision: w.from,
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT},
	}
	if w.view != nil {
		r.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(w.key))
	}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

// queue hands a request to the sender. The caller holds mu.
func (h *hub) queue(r *pb.WatchRequest) {
	h.out = append(h.out, r)
	select {
	case h.send <- struct{}{}:
	default:
	}
}

// run keeps a stream open for as long as something is watched.
func (h *hub) run() {
	retry := backoff.Policy{Base: 20 * time.Millisecond, Max: 2 * time.Second}
	for try := 0; ; try++ {
		if h.follow() {
			try = 0
		}
		h.mu.Lock()
		if len(h.byID) == 0 || h.d.life.Err() != nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		_ = backoff.Wait(h.d.life, retry.Delay(try)) // its end is seen above
	}
}

// follow opens a stream and receives until it ends. It reports whether anything
// came.
func (h *hub) follow() (answered bool) {
	ctx, cancel := context.WithCancel(h.d.life)
	defer cancel()
	h.mu.Lock()
	h.stream, h.out = cancel, nil
	for _, w := range h.byID {
		h.queue(create(w))
	}
	h.mu.Unlock()
	var sender sync.WaitGroup
	defer sender.Wait()
	defer func() {
		cancel()
		h.mu.Lock()
		h.stream, h.out = nil, nil
		h.breakViews()
		h.mu.Unlock()
	}()
	stream, err := h.client.Watch(ctx)
	if err != nil {
		return false
	}
	sender.Go(func() { h.sendAll(ctx, stream) })
	for {
		resp, err := stream.Recv()
		if err != nil {
			return answered
		}
		answered = true
		h.take(resp)
	}
}

func (h *hub) sendAll(ctx context.Context, stream pb.Watch_WatchClient) {
	for {
		h.mu.Lock()
		out := h.out
		h.out = nil
		h.mu.Unlock()
		for _, r := range out {
			if stream.Send(r) != nil {
				return // Recv tells why
			}
		}
		select {
		case <-h.send:
		case <-ctx.Done():
			return
		}
	}
}

func (h *hub) take(resp *pb.WatchResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.byID[resp.WatchId]
	switch {
	case w == nil && resp.Canceled && resp.Created:
		// Without the watch's name. Those who wait look from time to time, and
		// renewal tells the others.
		h.d.log.Warn("etcdlock: etcd refuses a watch; waiting and losses are noticed later", "reason", resp.CancelReason)
	case w == nil:
	case resp.Canceled && w.view != nil:
		h.breakView(w.view)
	case resp.Canceled:
		// What was there to be seen has been compacted, or etcd had a reason of its own.
		delete(h.byID, w.id)
		w.id, w.from, w.verify = 0, 0, true
		if resp.CompactRevision > 0 {
			h.register(w)
		} else {
			h.grow(w)
		}
	case resp.Created:
		if w.from == 0 {
			w.from = resp.Header.Revision + 1 // where a new stream begins
		}
		if !w.begun {
			w.begun = true
			if w.ready != nil {
				close(w.ready)
			}
		}
		if w.verify {
			w.verify = false
			h.spawn(func() { h.look(w) })
		}
	}
	switch {
	case w == nil:
	case w.view != nil:
		w.view.see(resp.Events)
	case slices.ContainsFunc(resp.Events, func(ev *mvccpb.Event) bool { return ev.Type == mvccpb.DELETE }):
		w.fire()
	}
}

// look finds out whether the key was deleted while nobody watched.
func (h *hub) look(w *watch) {
	for try := range 5 {
		ctx, cancel := context.WithTimeout(h.d.life, cleanUp)
		resp, err := h.d.client.Get(ctx, w.key)
		cancel()
		if err == nil {
			if len(resp.Kvs) == 0 {
				h.mu.Lock()
				w.fire()
				h.mu.Unlock()
			}
			return
		}
		if errors.Is(backoff.Wait(h.d.life, backoff.Policy{}.Delay(try)), context.Canceled) {
			return
		}
	}
}

// WatchLoss implements [driver.LossWatcher]. A hold younger than 100 ms is not
// watched yet; what happens to it meanwhile is told then.
func (d *Driver) WatchLoss(h driver.Hold) (<-chan struct{}, func()) {
	w, stop := d.watchLoss(h)
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	if w.gone == nil {
		w.gone = make(chan struct{})
		if w.isGone {
			close(w.gone)
		}
	}
	return w.gone, stop
}

// TellLoss implements [driver.LossTeller]: lost is called once, under a lock
// of the driver's, which it must not call.
func (d *Driver) TellLoss(h driver.Hold, lost func()) (stop func()) {
	w, stop := d.watchLoss(h)
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	if before := w.told; before != nil {
		w.told = func() { before(); lost() }
	} else {
		w.told = lost
	}
	if w.isGone {
		lost()
	}
	return stop
}

func (d *Driver) watchLoss(h driver.Hold) (*watch, func()) {
	path := d.path(h.Key, h.Token)
	d.mu.Lock()
	defer d.mu.Unlock()
	var w *watch
	if e := d.entries[path]; e != nil && e.fence == h.Fence {
		w = d.hub.watchHold(e) // told of the end of the session as well
	} else {
		w = d.hub.watchLater(path, h.Fence+1)
	}
	var once sync.Once
	return w, func() { once.Do(func() { d.hub.unwatch(w, false) }) }
}
