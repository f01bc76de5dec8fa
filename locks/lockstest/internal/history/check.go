package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/solotick/solotick/locks/driver"
)

// coarse is how much earlier than by the client's clock a backend may end a grant,
// because its own counts in steps. A holder's margin covers it.
const coarse = 2 * time.Millisecond

// lock is the state of one key.
type lock struct {
	held  bool
	token driver.Token
	fence int64         // the highest that is known
	guess bool          // the grant has a higher one, which nobody has heard
	ends  time.Duration // when the grant can end at the earliest
}

// over reports whether the grant can have ended by itself when o took effect.
func (s lock) over(o Op) bool { return o.Outcome == Unknown || o.Returned >= s.ends-coarse }

// free is the state once the grant is over.
func (s lock) free() lock { return lock{fence: s.fence} }

// step returns the states that s can have become by o; none if o cannot have been
// answered so.
func step(s lock, o Op) []lock {
	mine := s.held && s.token == o.Token
	others := s.held && s.token != o.Token
	granted := lock{held: true, token: o.Token, fence: max(s.fence, o.Fence), ends: o.From + o.TTL}
	only := func(ok bool, then lock) []lock {
		if !ok {
			return nil
		}
		return []lock{then}
	}
	switch o.Kind {
	case Acquire:
		switch o.Outcome {
		case Held:
			return only(others, s)
		case Unknown:
			granted.guess = true
			return []lock{s, granted}
		}
		// Again by the same token is the same grant, whose fence may not have been
		// heard before.
		again := mine && (s.guess && o.Fence > s.fence || !s.guess && o.Fence == s.fence)
		return only(again || (!s.held || s.over(o)) && o.Fence > s.fence, granted)
	case Renew:
		if o.Outcome == NotOurs {
			return only(!mine || s.over(o), s.without(o))
		}
		return only(mine && o.Fence == s.fence, granted)
	}
	switch o.Outcome {
	case OK:
		return only(mine, s.free())
	case Gone:
		return only(!s.held || s.over(o), s.free())
	case Other:
		return only(others, s)
	}
	if mine {
		return []lock{s, s.free()}
	}
	return []lock{s}
}

// without is s after its token was told that it does not hold the key.
func (s lock) without(o Op) lock {
	if s.token == o.Token {
		return s.free()
	}
	return s
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{lock{}} },
	Step: func(state, input, _ any) (next []any) {
		for _, s := range step(state.(lock), input.(Op)) {
			next = append(next, s)
		}
		return next
	},
}).ToModel()

// Check returns an error if no order of the operations, each between its call and
// its answer, is one that a lock could give; or if none was found within limit.
func (l *Log) Check(limit time.Duration) error {
	l.mu.Lock()
	ops := slices.Clone(l.ops)
	l.mu.Unlock()
	if l.votes {
		ops = slices.DeleteFunc(ops, func(o Op) bool { return o.Outcome == Held })
	}
	return Check(ops, limit)
}

// Check is Log.Check of operations that are given.
func Check(ops []Op, limit time.Duration) error {
	byKey := make(map[string][]porcupine.Operation)
	given := make(map[driver.Token]bool) // tokens with a release of unknown outcome
	for _, o := range ops {
		end := o.Return
		if o.Outcome == Unknown {
			if o.Kind == Release && given[o.Token] {
				continue // what it may have done, the first may have done
			}
			given[o.Token] = given[o.Token] || o.Kind == Release
			end = settled(o, ops)
		}
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: end})
	}
	for key, of := range byKey {
		if res := porcupine.CheckOperationsTimeout(model, of, limit); res != porcupine.Ok {
			return fmt.Errorf("history of %d operations on %q: %s\n%s", len(of), key, res, describe(of))
		}
	}
	return nil
}

// settled is until when an operation without an answer can have taken effect: until
// its token was released for certain.
func settled(o Op, ops []Op) int64 {
	end := int64(math.MaxInt64)
	for _, later := range ops {
		if later.Token == o.Token && later.Kind == Release && later.Outcome != Unknown && later.Call > o.Return {
			end = min(end, later.Return)
		}
	}
	return end
}

func describe(of []porcupine.Operation) string {
	slices.SortFunc(of, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range of {
		fmt.Fprintf(&b, "%6d-%-6d %v\n", o.Call, o.Return, o.Input)
	}
	return b.String()
}
