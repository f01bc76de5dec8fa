package etcdlock

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// What a view makes of deletions, told before and after the look that says who was
// ahead at revision 10.
func TestViewJudgesByTheRevisionOfTheLook(t *testing.T) {
	type told struct {
		early, late []deletion
	}
	for name, c := range map[string]struct {
		told
		want verdict
	}{
		"nothing":                                 {told{}, undecided},
		"one of two is gone":                      {told{late: []deletion{{"a", 11}}}, undecided},
		"both are gone":                           {told{late: []deletion{{"b", 11}, {"a", 12}}}, first},
		"one before the look was told of":         {told{early: []deletion{{"a", 11}}, late: []deletion{{"b", 12}}}, first},
		"both before that":                        {told{early: []deletion{{"a", 11}, {"b", 12}}}, first},
		"what was made again since it was gone":   {told{early: []deletion{{"a", 9}, {"b", 10}}}, undecided},
		"a stranger goes":                         {told{late: []deletion{{"x", 11}, {"y", 12}}}, undecided},
		"the own key goes":                        {told{late: []deletion{{"own", 11}}}, removed},
		"the own key of an earlier stand":         {told{early: []deletion{{"own", 9}}}, undecided},
		"the own key goes with the last ahead":    {told{late: []deletion{{"a", 11}, {"b", 11}, {"own", 11}}}, removed},
		"the own key went, told with those ahead": {told{early: []deletion{{"own", 11}, {"a", 12}, {"b", 12}}}, removed},
	} {
		h := new(hub)
		v := &view{watch: &watch{}, own: "own", told: make(chan struct{})}
		v.see(events(c.early))
		h.expect(v, []string{"a", "b"}, 10)
		v.see(events(c.late))
		if v.end != c.want || isClosed(v.told) != (c.want != undecided) {
			t.Errorf("%s: verdict %d, want %d", name, v.end, c.want)
		}
	}
}

// A watch tells of all that comes after a revision if it has begun at the next one or
// before; where that is not known, it does not.
func TestWatchCovers(t *testing.T) {
	h := new(hub)
	for _, c := range []struct {
		w    watch
		want bool
	}{
		{watch{begun: true, from: 11}, true},
		{watch{begun: true, from: 5}, true},
		{watch{begun: true, from: 12}, false},
		{watch{begun: false, from: 5}, false},
		{watch{begun: true, from: 0}, false}, // cancelled by etcd, and not begun anew
	} {
		if got := h.covers(&c.w, 10); got != c.want {
			t.Errorf("begun %v from %d: %v", c.w.begun, c.w.from, got)
		}
	}
}

func events(gone []deletion) []*mvccpb.Event {
	out := []*mvccpb.Event{{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{Key: []byte("a"), ModRevision: 20}}}
	for _, d := range gone {
		out = append(out, &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(d.key), ModRevision: d.rev}})
	}
	return out
}
