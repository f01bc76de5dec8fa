package etcdlock

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/solotick/solotick/internal/mutation"
)

// view is what the next few see of their line: every key that is deleted from it, its
// own included, over one watch of etcd. Such a watch tells what happened in the order
// in which it happened, and of one revision all or nothing. So when it tells that the
// last key ahead is gone and has not told of the own key, the own key was there at that
// revision, with nobody ahead: what a transaction would find out a round trip later.
// Two watches, one for each key, would not prove it: etcd may hold one of them back.
//
// The hub's mu guards it.
type view struct {
	*watch
	own    string
	looked bool
	since  int64         // the revision at which the waiter has looked
	before []string      // who was ahead then and is not known to be gone
	early  []deletion    // what came before it was told of the look
	told   chan struct{} // closed when there is a verdict
	end    verdict
}

type deletion struct {
	key string
	rev int64
}

// verdict is how a view ended.
type verdict int

const (
	undecided verdict = iota
	first             // nobody is ahead, and the own key is there
	removed           // the own key is gone
	broken            // the stream is: something may have been missed
)

// view begins to watch a line. It lives with the stream: what came meanwhile could
// not be told in order. Every view needs a close.
func (h *hub) view(dir, own string) *view {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &view{own: own, told: make(chan struct{})}
	v.watch = &watch{key: dir, gone: make(chan struct{}), ready: make(chan struct{}), view: v}
	h.register(v.watch)
	return v
}

func (h *hub) close(v *view) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unregister(v.watch)
}

// covers reports whether the watch tells of all that comes after the revision.
func (h *hub) covers(w *watch, rev int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.begun && w.from > 0 && w.from <= rev+1
}

// expect says who was ahead at a revision, of which the view tells all that came
// after; it may have begun before.
func (h *hub) expect(v *view, ahead []string, rev int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.looked, v.since, v.before = true, rev, slices.Clone(ahead)
	v.weigh(v.early)
	v.early = nil
}

func (h *hub) verdict(v *view) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return v.end
}

// see takes the events of one answer, which may be of several revisions.
func (v *view) see(events []*mvccpb.Event) {
	gone := make([]deletion, 0, len(events))
	for _, ev := range events {
		if ev.Type == mvccpb.DELETE {
			gone = append(gone, deletion{string(ev.Kv.Key), ev.Kv.ModRevision})
		}
	}
	if v.looked {
		v.weigh(gone)
	} else {
		v.early = append(v.early, gone...)
	}
}

// weigh takes what was deleted, and leaves aside what was before the look: who asks
// again with the same token makes the same key again.
func (v *view) weigh(gone []deletion) {
	lost := false
	for _, d := range gone {
		if d.rev <= v.since {
			continue
		}
		lost = lost || d.key == v.own && !mutation.On("etcd-revision-check")
		if i := slices.Index(v.before, d.key); i >= 0 {
			v.before = slices.Delete(v.before, i, i+1)
		}
	}
	switch {
	case lost: // whichever else is told with it
		v.decide(removed)
	case len(v.before) == 0:
		v.decide(first)
	}
}

// decide gives the verdict; the first one counts.
func (v *view) decide(end verdict) {
	if v.end == undecided {
		v.end = end
		close(v.told)
	}
}

// breakView ends a view that etcd no longer watches. The caller holds mu.
func (h *hub) breakView(v *view) {
	delete(h.byID, v.id)
	v.id = 0
	v.decide(broken)
}

// breakViews ends those that had begun on a stream which has ended. The caller holds
// mu.
func (h *hub) breakViews() {
	for _, w := range h.byID {
		if w.view != nil && w.begun {
			h.breakView(w.view)
		}
	}
}
