package gormstore_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/solotick/solotick/store"
)

// deed is what a call did to a run, as its caller was told.
type deed int8

const (
	enqueued  deed = iota + 1 // the transaction of the user's is committed
	started                   // by a claim: attempt 1
	skipped                   // recorded as such, since its active key is held
	duplicate                 // the key has a record
	fetched                   // a pending run, as a new attempt
	takenOver                 // a running run, as a new attempt
	finished                  // with its effect, in the user's transaction
	fenced                    // the finish was refused
	ledger                    // what the table of effects and the record say at the end
)

var deeds = [...]string{"", "enqueued", "started", "skipped", "duplicate", "fetched", "taken over", "finished", "fenced", "ledger"}

// op is a deed, between its call and its answer.
type op struct {
	deed       deed
	key        store.Key
	active     store.Hash
	attempt    int
	owner      store.Owner
	state      store.State // ledger: of the record
	effects    []int       // ledger: the attempts that had one
	client     int
	call, back int64 // nanoseconds since the history began
}

func (o op) String() string {
	s := fmt.Sprintf("%9d-%-9d client %2d: %s %s", o.call/1000, o.back/1000, o.client, o.key, deeds[o.deed])
	switch o.deed {
	case ledger:
		s += fmt.Sprintf(": %v, attempt %d, effects of attempts %v", o.state, o.attempt, o.effects)
	case started, fetched, takenOver, finished, fenced:
		s += fmt.Sprintf(", attempt %d of %s", o.attempt, o.owner)
	case enqueued, skipped, duplicate:
	}
	return s
}

// history is what many clients did.
type history struct {
	began time.Time

	mu  sync.Mutex
	ops []op
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return time.Since(h.began).Nanoseconds() }

func (h *history) add(o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// run is the model of one key: the row of the exactly-once table, and the effect.
type run struct {
	state   store.State // 0: no record
	attempt int
	owner   store.Owner
	effect  int // the attempt that had it
}

// step is what o makes of r; not ok says that o cannot have been answered so.
func (r run) step(o op) (next run, ok bool) {
	held := r.state == store.StateRunning && r.attempt == o.attempt && r.owner == o.owner
	handed := run{state: store.StateRunning, attempt: o.attempt, owner: o.owner}
	switch o.deed {
	case enqueued:
		return run{state: store.StatePending}, r.state == 0
	case started:
		return handed, r.state == 0 && o.attempt == 1
	case skipped:
		return run{state: store.StateSkipped}, r.state == 0
	case duplicate:
		return r, r.state != 0
	case fetched:
		return handed, r.state == store.StatePending && o.attempt == r.attempt+1
	case takenOver:
		return handed, r.state == store.StateRunning && o.attempt == r.attempt+1
	case finished:
		return run{store.StateSucceeded, o.attempt, o.owner, o.attempt}, held
	case fenced:
		return r, !held
	case ledger:
		var effects []int
		if r.effect > 0 {
			effects = []int{r.effect}
		}
		return r, r.state == o.state && r.attempt == o.attempt && slices.Equal(effects, o.effects)
	}
	return r, false
}

// place of an active key: the run that holds it.
type holder struct{ key store.Key }

func (h holder) step(o op) (next holder, ok bool) {
	free := h.key == (store.Key{})
	switch o.deed {
	case started, fetched:
		return holder{o.key}, free
	case takenOver:
		return h, h.key == o.key
	case finished:
		return holder{}, h.key == o.key
	case skipped:
		return h, !free && h.key != o.key
	default:
		return h, true
	}
}

// modelOf makes a model of its beginning and its steps.
func modelOf[S interface {
	comparable
	step(o op) (S, bool)
}](begin S) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return begin },
		Step: func(state, input, _ any) (bool, any) {
			next, ok := state.(S).step(input.(op))
			return ok, next
		},
		Equal: func(a, b any) bool { return a.(S) == b.(S) },
	}
}

// check fails if no order of what was done, each between its call and its answer, is
// one that the exactly-once table allows: key by key, and for each active key.
func (h *history) check(t *testing.T) {
	t.Helper()
	keys, actives := map[string][]op{}, map[string][]op{}
	for _, o := range h.ops {
		keys[o.key.String()] = append(keys[o.key.String()], o)
		if !o.active.IsZero() {
			actives[o.active.String()] = append(actives[o.active.String()], o)
		}
	}
	wanted := func(what string, of map[string][]op, model porcupine.Model) {
		for name, ops := range of {
			list := make([]porcupine.Operation, len(ops))
			for i, o := range ops {
				list[i] = porcupine.Operation{ClientId: o.client, Input: o, Call: o.call, Return: o.back}
			}
			if res := porcupine.CheckOperationsTimeout(model, list, 2*time.Minute); res != porcupine.Ok {
				t.Errorf("%s %s: the history is %s\n%s", what, name, res, describe(ops))
				return
			}
		}
	}
	wanted("run", keys, modelOf(run{}))
	wanted("active key", actives, modelOf(holder{}))
}

func describe(ops []op) string {
	slices.SortFunc(ops, func(a, b op) int { return cmp.Compare(a.call, b.call) })
	var b strings.Builder
	for _, o := range ops[:min(len(ops), 200)] {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

// The model refuses what must never happen.
func TestHistoryHasTeeth(t *testing.T) {
	a, b := store.NewOwner(), store.NewOwner()
	key, other := store.Key{Class: store.ClassCron, Job: "job", Tick: 1}, store.Key{Class: store.ClassCron, Job: "job", Tick: 2}
	active := store.ActiveCron("job", 0)
	in := func(k store.Key, d deed, attempt int, owner store.Owner) op {
		return op{deed: d, key: k, active: active, attempt: attempt, owner: owner}
	}
	end := func(attempt int, state store.State, effects ...int) op {
		return op{deed: ledger, key: key, attempt: attempt, state: state, effects: effects}
	}
	good := []op{in(key, started, 1, a), in(key, takenOver, 2, b), in(key, fenced, 1, a), in(key, finished, 2, b), in(other, started, 1, a), end(2, store.StateSucceeded, 2)}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"as it must be":                    {good, true},
		"two winners":                      {[]op{in(key, started, 1, a), in(key, started, 1, b)}, false},
		"won and recorded before":          {[]op{in(key, enqueued, 0, a), in(key, enqueued, 0, b)}, false},
		"duplicate of nothing":             {[]op{in(key, duplicate, 0, a)}, false},
		"late attempt finishes":            {[]op{in(key, started, 1, a), in(key, takenOver, 2, b), in(key, finished, 1, a)}, false},
		"both finish":                      {[]op{in(key, started, 1, a), in(key, finished, 1, a), in(key, finished, 1, a)}, false},
		"holder is fenced":                 {[]op{in(key, started, 1, a), in(key, fenced, 1, a)}, false},
		"attempt is left out":              {[]op{in(key, started, 1, a), in(key, takenOver, 3, b)}, false},
		"two effects":                      {append(slices.Clone(good[:4]), end(2, store.StateSucceeded, 1, 2)), false},
		"no effect":                        {append(slices.Clone(good[:4]), end(2, store.StateSucceeded)), false},
		"effect of an attempt rolled back": {[]op{in(key, started, 1, a), end(1, store.StateRunning, 1)}, false},
		"two runs of a job at once":        {[]op{in(key, started, 1, a), in(other, started, 1, b)}, false},
		"skipped although the key is free": {[]op{in(key, skipped, 0, a)}, false},
	} {
		model, held := run{}, holder{}
		ok := true
		for _, o := range c.ops {
			var fits, holds bool
			if o.key == key {
				model, fits = model.step(o)
				ok = ok && fits
			}
			if !o.active.IsZero() {
				held, holds = held.step(o)
				ok = ok && holds
			}
		}
		if ok != c.ok {
			t.Errorf("%s: allowed %v", name, ok)
		}
	}
	h := newHistory()
	for i, o := range good { // one after the other, and what follows at once
		o.call, o.back = int64(2*i), int64(2*i+3)
		h.add(o)
	}
	h.check(t)
}
