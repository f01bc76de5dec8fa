package storetest

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/solotick/solotick/store"
)

var switchCases = []suiteCase{
	{"switch/changes", switchChanges},
	{"switch/repeats", switchRepeats},
	{"switch/thrown at once", switchAtOnce},
}

// switchboard is the handle's, or ends the case: a store need not have one.
func (e *env) switchboard(s store.Store) store.Switchboard {
	b, ok := s.(store.Switchboard)
	if !ok {
		e.Skip("this store keeps no changes of the switch")
	}
	return b
}

func (e *env) throw(b store.Switchboard, c store.SwitchChange) store.SwitchChange {
	e.Helper()
	got, err := b.ThrowSwitch(e.ctx, space, c)
	e.must(err)
	return got
}

func (e *env) changes(b store.Switchboard, fleet bool, limit int) []store.SwitchChange {
	e.Helper()
	before := e.now()
	got, now, err := b.SwitchChanges(e.ctx, space, fleet, limit)
	e.must(err)
	if after := e.now(); now < before || now > after {
		e.broken("changes come with the store's time", "now %s, asked between %s and %s", now, before, after)
	}
	return got
}

func switchChanges(e *env) {
	const rule = "changes are kept as they were made, the newest first, and the newest of the fleet is found among others"
	a, b := e.switchboard(e.s), e.switchboard(e.h.Open(e))
	if got := e.changes(a, true, 5); len(got) != 0 {
		e.broken(rule, "an empty store tells %+v", got)
	}
	before := e.now()
	setting := `{"mode":"store_only","jobs":{"bücher":"fail_fast"},"reason":"it's \"odd\" 100% ? \\"}`
	first := e.throw(a, store.SwitchChange{Fleet: true, Process: "host:1", Source: "cli", By: "ann", Reason: "maintenance", To: setting, Until: before + 5000})
	if after := e.now(); first.At < before || first.At > after || first.ID <= 0 || first.Token == (store.ID{}) {
		e.broken("a change is answered with its number, time and token", "got %+v, thrown between %s and %s", first, before, after)
	}
	want := store.SwitchChange{
		ID: first.ID, At: first.At, Fleet: true, Process: "host:1", Source: "cli", By: "ann", Reason: "maintenance",
		To: setting, Until: before + 5000, Token: first.Token,
	}
	same(e, rule, "the change as it was answered", first, want)
	second := e.throw(b, store.SwitchChange{Process: "host:2", Source: "code", By: "bob", Reason: "by hand", From: "", To: `{"mode":"fail_fast"}`})
	third := e.throw(b, store.SwitchChange{Fleet: true, Process: "host:2", Source: "cli", By: "bob", Reason: "over", From: setting})
	if first.ID >= second.ID || second.ID >= third.ID {
		e.broken("later changes have higher numbers", "%d, %d, %d", first.ID, second.ID, third.ID)
	}
	for _, c := range []struct {
		fleet bool
		limit int
		want  []store.SwitchChange
	}{
		{false, 10, []store.SwitchChange{third, second, first}},
		{false, 2, []store.SwitchChange{third, second}},
		{true, 10, []store.SwitchChange{third, first}},
		{true, 1, []store.SwitchChange{third}},
	} {
		if got := e.changes(a, c.fleet, c.limit); !slices.Equal(got, c.want) {
			e.broken(rule, "fleet %v, at most %d: got %+v, want %+v", c.fleet, c.limit, got, c.want)
		}
	}
	other, _, err := a.SwitchChanges(e.ctx, "another", false, 10)
	e.must(err)
	same(e, "namespaces have switches of their own", "changes of another", len(other), 0)
	large := `{"reason":"` + strings.Repeat("x", 60_000) + `"}`
	same(e, rule, "a large setting", e.throw(a, store.SwitchChange{Fleet: true, By: "ann", To: large}).To, large)
	if _, err := a.ThrowSwitch(e.ctx, "", store.SwitchChange{By: "ann"}); err == nil || errors.Is(err, store.ErrUnavailable) {
		e.broken("a change without a namespace is refused", "got %v", err)
	}
}

func switchRepeats(e *env) {
	const rule = "a change that is repeated with its token is one change"
	a, b := e.switchboard(e.s), e.switchboard(e.h.Open(e))
	c := store.SwitchChange{Fleet: true, By: "ann", Reason: "once", To: "{}", Token: store.NewID(e.now())}
	first := e.throw(a, c)
	e.throw(b, store.SwitchChange{Fleet: true, By: "bob", Reason: "meanwhile"})
	same(e, rule, "the answer to the repeat", e.throw(b, c), first)
	if got := e.changes(a, true, 10); len(got) != 2 || got[0].By != "bob" || got[1] != first {
		e.broken(rule, "changes: %+v", got)
	}
	c.Token = store.ID{}
	if one, two := e.throw(a, c), e.throw(a, c); one.ID == two.ID || one.Token == two.Token {
		e.broken("changes without a token are changes of their own", "%+v, %+v", one, two)
	}
}

func switchAtOnce(e *env) {
	const rule = "of changes thrown at once each is kept, and all handles agree which is the newest"
	const each, many = 5, 4
	boards := make([]store.Switchboard, many)
	for i := range boards {
		boards[i] = e.switchboard(e.h.Open(e))
	}
	var wg sync.WaitGroup
	for _, b := range boards {
		wg.Go(func() {
			for range each {
				if _, err := b.ThrowSwitch(e.ctx, space, store.SwitchChange{Fleet: true, By: "ann", To: "{}"}); err != nil {
					e.Errorf("throw: %v", err)
				}
			}
		})
	}
	wg.Wait()
	all := e.changes(boards[0], true, 100)
	same(e, rule, "changes", len(all), each*many)
	for i := 1; i < len(all); i++ {
		if all[i-1].ID <= all[i].ID {
			e.broken(rule, "numbers %d, %d in the order of the list", all[i-1].ID, all[i].ID)
		}
	}
	for _, b := range boards {
		same(e, rule, "the newest", e.changes(b, true, 1)[0], all[0])
	}
}
