package lockfaults

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// span is a time between two instants of the shared clock.
type span struct{ from, to int64 }

func (s span) holds(at int64) bool { return s.from <= at && at <= s.to }

// record is what happened in a run: what the processes told, and what was done to
// them and to the server.
type record struct {
	events []event
	stood  map[string][]span // when a process did not run: frozen, or starved
	killed map[string]int64
	// taken are the spans in which the server was made to drop the grant of a key; ""
	// for all keys.
	taken map[string][]span
}

// tenure is a grant and how it ended, with the span in which that took effect.
type tenure struct {
	proc, key string
	n         int
	fence     int64
	asked, at int64
	end       span // to is math.MaxInt64 where nobody knows
	how       string
	told      int64 // of a loss
	until     int64 // the lease's end, as its holder knew it then
	refused   bool  // an effect, before the end
}

func (t tenure) String() string {
	until := "?"
	if t.end.to != math.MaxInt64 {
		until = fmt.Sprint(t.end.to)
	}
	return fmt.Sprintf("%s grant %d of %s: fence %d, asked %d, granted %d, %s %d..%s", t.proc, t.n, t.key, t.fence, t.asked, t.at, t.how, t.end.from, until)
}

// The ways in which a tenure ends.
const (
	heldOn    = "held on"
	byRelease = "released"
	byTime    = "lost by time"
	asleep    = "lost while it stood still"
	byServer  = "lost by the server"
	byKill    = "killed"
)

// tenures puts the events together.
func (r *record) tenures() (list []tenure, problems []string) {
	type id struct {
		proc string
		n    int
	}
	at := map[id]int{}
	for _, e := range r.events {
		if e.What == "granted" {
			at[id{e.Proc, e.N}] = len(list)
			list = append(list, tenure{proc: e.Proc, key: e.Key, n: e.N, fence: e.Fence, asked: e.Asked, at: e.At, end: span{e.At, math.MaxInt64}, how: heldOn})
			continue
		}
		if i, known := at[id{e.Proc, e.N}]; known && e.N > 0 {
			list[i].tell(e)
		}
	}
	for i := range list {
		if problem := r.settle(&list[i]); problem != "" {
			problems = append(problems, problem)
		}
	}
	return list, problems
}

// tell takes what the holder told of its tenure. The first end counts.
func (t *tenure) tell(e event) {
	switch e.What {
	case "lost":
		t.told, t.until = e.At, e.Until
		if t.how == heldOn {
			t.how, t.end = byTime, span{e.At, e.At}
			if e.OK {
				t.how = byServer
			}
		}
	case "releasing":
		switch {
		case t.how != heldOn:
		case e.Until <= e.At: // it was over, and this is how the holder learns of it
			t.how, t.end, t.told, t.until = byTime, span{e.At, e.At}, e.At, e.Until
		default:
			t.how, t.end = byRelease, span{e.At, math.MaxInt64}
		}
	case "released":
		if t.how == byRelease {
			t.end.to = e.At
		}
	case "wrote":
		if !e.OK && t.how == heldOn {
			t.refused = true
		}
	}
}

// settle adds what the holder could not know, and returns what cannot be.
func (r *record) settle(t *tenure) (problem string) {
	killed, dead := r.killed[t.proc]
	if t.how == heldOn && dead {
		t.how, t.end.from = byKill, max(t.at, killed)
	}
	if t.how == byTime || t.how == byServer {
		// Once it wakes, a push of the server's may overtake its own clock.
		if s, ok := r.stoodAt(t.proc, t.until); ok {
			t.how, t.end.from = asleep, max(t.at, s.from)
		}
	}
	taken := r.firstTaken(*t)
	switch {
	case taken != 0:
		// From then on another may hold it, whatever this holder does.
		t.end.from = min(t.end.from, taken)
		if t.how == byTime {
			t.how = byServer
		}
	case t.how == byServer:
		return fmt.Sprintf("a healthy holder was told that the lock is not its own: %v", t)
	case t.refused && t.how != asleep:
		return fmt.Sprintf("a holder's effect was refused while it held: %v", t)
	}
	return ""
}

// firstTaken is when the server may first have been made to drop the tenure's grant; 0
// if it never was.
func (r *record) firstTaken(t tenure) (first int64) {
	for _, key := range []string{t.key, ""} {
		for _, s := range r.taken[key] {
			if at := max(s.from, t.asked); at <= s.to && at <= t.end.to && (first == 0 || at < first) {
				first = at
			}
		}
	}
	return first
}

// stoodAt is the span around the instant in which the process did not run.
func (r *record) stoodAt(proc string, at int64) (span, bool) {
	for _, s := range r.stood[proc] {
		if s.holds(at) {
			return s, true
		}
	}
	return span{}, false
}

// place is what one lock can be in: held by a tenure or free, with its last fence.
type place struct {
	holder string
	fence  int64
}

// step is one change of a lock.
type step struct {
	tenure
	id   string
	ends bool
}

var oneLock = porcupine.Model{
	Init: func() any { return place{} },
	Step: func(state, input, _ any) (bool, any) {
		s, i := state.(place), input.(step)
		if i.ends {
			return s.holder == i.id, place{fence: s.fence}
		}
		return s.holder == "" && i.fence > s.fence, place{i.id, i.fence}
	},
}

// check is what is wrong with the record: nil if one lock could have given it.
func (r *record) check() (problems []string) {
	list, problems := r.tenures()
	ops := map[string][]porcupine.Operation{}
	for i, t := range list {
		s := step{tenure: t, id: fmt.Sprint(t.proc, "#", t.n)}
		ops[t.key] = append(ops[t.key], porcupine.Operation{ClientId: i, Input: s, Call: t.asked, Return: t.at})
		if t.how != heldOn {
			s.ends = true
			ops[t.key] = append(ops[t.key], porcupine.Operation{ClientId: i, Input: s, Call: t.end.from, Return: t.end.to})
		}
	}
	for key, of := range ops {
		if result := porcupine.CheckOperationsTimeout(oneLock, of, time.Minute); result != porcupine.Ok {
			problems = append(problems, fmt.Sprintf("no lock gives the history of %s (%s):\n%s", key, result, describe(list, key)))
		}
	}
	problems = append(problems, fenceOrder(list)...)
	return problems
}

// fenceOrder says it again without a search: of two grants of which one was asked for
// after the other had come, that one has the higher fence; and no fence is twice.
func fenceOrder(list []tenure) (problems []string) {
	for i, a := range list {
		for _, b := range list[i+1:] {
			if a.key != b.key {
				continue
			}
			if a.fence == b.fence || a.at < b.asked && a.fence > b.fence || b.at < a.asked && b.fence > a.fence {
				problems = append(problems, fmt.Sprintf("fences do not rise:\n  %v\n  %v", a, b))
			}
		}
	}
	return problems
}

func describe(list []tenure, key string) string {
	list = slices.DeleteFunc(slices.Clone(list), func(t tenure) bool { return t.key != key })
	slices.SortFunc(list, func(a, b tenure) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintln(&b, " ", t)
	}
	return b.String()
}

// figures are what a run measured.
type figures struct {
	grants     int
	lostByTime int
	margin     time.Duration // the smallest, from being told of a loss by time to the next grant
	late       time.Duration // after the end of the lease, that one was told
	toldAwake  time.Duration // from waking to being told
	// Of what scenarios measure beside the record, in words.
	byServer, waiting, away, leftBehind string
}

// measure takes the figures of a record that was checked.
func (r *record) measure() (f figures) {
	list, _ := r.tenures()
	slices.SortFunc(list, func(a, b tenure) int { return cmp.Compare(a.fence, b.fence) })
	f.grants, f.margin = len(list), math.MaxInt64
	next := map[string]tenure{}
	for _, t := range slices.Backward(list) {
		after, followed := next[t.key]
		next[t.key] = t
		if t.how == byTime {
			f.lostByTime++
			if margin := time.Duration(after.at - t.told); followed && margin < f.margin {
				f.margin, f.late = margin, time.Duration(t.told-t.until)
			}
		}
	}
	return f
}
