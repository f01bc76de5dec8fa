package terms

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind is a step of an election.
type kind int

const (
	won      kind = iota // a process has a term
	leads                // it still has
	ended                // it has none any more
	observed             // somebody was told who leads
	unheard              // a term began and ended, and nobody heard that it was won
)

// step is an operation of the model. It took effect between call and back.
type step struct {
	kind       kind
	by         int
	term       int64
	call, back int64
}

func (s step) String() string {
	return fmt.Sprintf("process %d: term %d %s", s.by, s.term, []string{"won", "led", "ended", "observed", "won by nobody"}[s.kind])
}

// election is the state of the model: the highest term, and whether it is led, by whom.
type election struct {
	term int64
	by   int
	on   bool
}

var model = porcupine.Model{
	Init: func() any { return election{} },
	Step: func(state, input, _ any) (bool, any) {
		e, s := state.(election), input.(step)
		mine := e.on && e.by == s.by && e.term == s.term
		switch s.kind {
		case won:
			return !e.on && s.term > e.term, election{s.term, s.by, true}
		case leads:
			return mine, e
		case ended:
			return mine, election{term: e.term}
		case unheard:
			return !e.on && s.term > e.term, election{term: s.term}
		}
		if s.term == 0 {
			return !e.on, e
		}
		return s.term == e.term, e // a term that its leader holds to have ended may still be told
	},
	Equal: func(a, b any) bool { return a == b },
}

// Check returns an error if no order of what the looks saw, each between its call and its
// answer, is that of one election; or if none was found within limit.
func Check(looks []Look, limit time.Duration) error {
	steps, err := history(looks)
	if err != nil {
		return err
	}
	ops := make([]porcupine.Operation, len(steps))
	for i, s := range steps {
		ops[i] = porcupine.Operation{ClientId: s.by, Input: s, Call: s.call, Return: s.back}
	}
	if res := porcupine.CheckOperationsTimeout(model, ops, limit); res != porcupine.Ok {
		return fmt.Errorf("terms: history of %d steps: %s\n%s", len(ops), res, describe(steps))
	}
	return nil
}

// history makes steps of looks.
func history(looks []Look) (steps []step, err error) {
	byProcess := map[int][]Look{}
	told, heard := map[int64]bool{}, map[int64]bool{}
	for _, l := range looks {
		switch {
		case l.Return < l.Call:
			return nil, fmt.Errorf("terms: a look of process %d returned before it was called: %+v", l.Process, l)
		case l.Kind == Observed:
			steps = append(steps, step{observed, l.Process, l.Term, l.Call, l.Return})
			told[l.Term] = true
		default:
			byProcess[l.Process] = append(byProcess[l.Process], l)
		}
	}
	for _, process := range slices.Sorted(maps.Keys(byProcess)) {
		of := byProcess[process]
		slices.SortStableFunc(of, func(a, b Look) int { return cmp.Compare(a.Call, b.Call) })
		steps = append(steps, beliefs(of)...)
	}
	for _, s := range steps {
		heard[s.term] = heard[s.term] || s.kind == won
	}
	for term := range told {
		if term > 0 && !heard[term] {
			steps = append(steps, step{unheard, -1, term, math.MinInt64, math.MaxInt64})
		}
	}
	return steps, nil
}

// beliefs makes steps of the looks of one process at its own term, in order. A term can
// have been granted any time since the one before ended, and is believed from its first
// look on.
func beliefs(of []Look) (steps []step) {
	term, since, last := int64(0), int64(math.MinInt64), int64(0)
	for _, l := range of {
		if term != 0 && l.Term != term {
			steps = append(steps, step{ended, l.Process, term, last, l.Return})
			since = last
		}
		switch l.Term {
		case 0:
		case term:
			steps = append(steps, step{leads, l.Process, term, l.Call, l.Return})
		default:
			steps = append(steps, step{won, l.Process, l.Term, since, l.Return}, step{leads, l.Process, l.Term, l.Call, l.Return})
		}
		term, last = l.Term, l.Call
	}
	if term != 0 { // nobody looked when it ended, if it has
		steps = append(steps, step{ended, of[0].Process, term, last, math.MaxInt64})
	}
	return steps
}

func describe(steps []step) string {
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.back, b.back) })
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%d-%d %v\n", s.call, s.back, s)
	}
	return b.String()
}
