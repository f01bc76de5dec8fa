package etcdlock

import (
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/solotick/solotick/internal/mutation"
)

// view is what the next one sees of its line: every key that is deleted from it, its
// own included, over one watch of etcd. Such a watch tells what happened in the order
// in which it happened, and of one revision all or nothing. So when it tells that the
// key ahead is gone and has not told of the own key, the own key was there at that
// revision, with nobody ahead: what a transaction would find out a round trip later.
// Two watches, one for each key, would not prove it: etcd may hold one of them back.
//
// The hub's mu guards it.
type view struct {
	*watch
	own    string
	before string        // the key ahead; "" until the waiter has looked
	early  []string      // what was deleted before that
	told   chan struct{} // closed when there is a verdict
	end    verdict
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

// expect says who was ahead when the waiter looked, after the view had begun.
func (h *hub) expect(v *view, before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.before = before
	if slices.Contains(v.early, before) {
		v.decide(first)
	}
	v.early = nil
}

func (h *hub) verdict(v *view) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return v.end
}

// see takes the events of one answer, which may be of several revisions.
func (v *view) see(events []*mvccpb.Event) {
	var end verdict
	for _, ev := range events {
		if ev.Type != mvccpb.DELETE {
			continue
		}
		key := string(ev.Kv.Key)
		switch {
		case key == v.own && !mutation.On("etcd-revision-check"):
			end = removed // whichever else is told with it
		case v.before == "":
			v.early = append(v.early, key)
		case key == v.before && end == undecided:
			end = first
		}
	}
	if end != undecided {
		v.decide(end)
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
