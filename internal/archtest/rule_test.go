package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// rule is one import law. from and except choose packages of ours; exactly one of
// the other lists says what holds for them. Patterns are those of matches.
//
// The standard library is never refused, except by name in mustNot.
type rule struct {
	from   []string
	except []string
	reason string

	// may lists all that the packages may link besides the standard library.
	// What a third party's package listed here links in turn is its own affair;
	// what one of ours links is not.
	may []string
	// mustNot lists what the packages must not link, however indirectly.
	mustNot []string
	// oneOf lists families of which a package links at most one.
	oneOf map[string][]string
	// apart: no package of the rule links another one of it.
	apart bool
}

func (r rule) covers(name string) bool {
	return matchesAny(r.from, name) && !matchesAny(r.except, name)
}

// check returns what the packages of g do against the rule.
func (r rule) check(g graph) []string {
	var found []string
	for _, name := range g.ours() {
		if !r.covers(name) {
			continue
		}
		switch {
		case r.may != nil:
			found = append(found, r.checkMay(g, name)...)
		case r.mustNot != nil:
			found = append(found, r.checkMustNot(g, name)...)
		case r.oneOf != nil:
			found = append(found, r.checkOneOf(g, name)...)
		case r.apart:
			found = append(found, r.checkApart(g, name)...)
		}
	}
	return found
}

func (r rule) checkMay(g graph, name string) []string {
	allowed := func(path string) bool { return matchesAny(r.may, short(path)) }
	stop := func(path string) bool {
		_, ours := inModule(path)
		return g[path].Standard || !ours || !allowed(path)
	}
	var found []string
	chains := g.linked(full(name), stop)
	for _, path := range sortedKeys(chains) {
		if !g[path].Standard && !allowed(path) {
			found = append(found, fmt.Sprintf("%s: %s is not among what it may link", show(chains[path]), short(path)))
		}
	}
	return found
}

func (r rule) checkMustNot(g graph, name string) []string {
	var found []string
	chains := g.linked(full(name), func(string) bool { return false })
	for _, path := range sortedKeys(chains) {
		if !matchesAny(r.mustNot, short(path)) {
			continue
		}
		// The first forbidden package of a chain says it all.
		chain := chains[path]
		if slices.ContainsFunc(chain[1:len(chain)-1], func(p string) bool { return matchesAny(r.mustNot, short(p)) }) {
			continue
		}
		found = append(found, fmt.Sprintf("%s: %s must not be linked", show(chain), short(path)))
	}
	return found
}

func (r rule) checkOneOf(g graph, name string) []string {
	chains := g.linked(full(name), func(string) bool { return false })
	families := map[string][]string{}
	for _, path := range sortedKeys(chains) {
		for family, patterns := range r.oneOf {
			if families[family] == nil && matchesAny(patterns, short(path)) {
				families[family] = chains[path]
			}
		}
	}
	if len(families) < 2 {
		return nil
	}
	var shown []string
	for _, family := range sortedKeys(families) {
		shown = append(shown, show(families[family]))
	}
	return []string{fmt.Sprintf("%s links %d clients: %s", name, len(families), strings.Join(shown, "; "))}
}

func (r rule) checkApart(g graph, name string) []string {
	var found []string
	chains := g.linked(full(name), func(string) bool { return false })
	for _, path := range sortedKeys(chains) {
		if other, ok := inModule(path); ok && r.covers(other) {
			found = append(found, fmt.Sprintf("%s: one must not know the other", show(chains[path])))
		}
	}
	return found
}

// flaws returns what is wrong with the rule itself: a pattern that matches
// nothing known never refuses anything, which is what a typo looks like.
func (r rule) flaws(g graph) []string {
	var found []string
	kinds := 0
	for _, set := range []bool{r.may != nil, r.mustNot != nil, r.oneOf != nil, r.apart} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		found = append(found, fmt.Sprintf("rule for %v: %d kinds of law, want 1", r.from, kinds))
	}
	if r.reason == "" {
		found = append(found, fmt.Sprintf("rule for %v: no reason", r.from))
	}
	patterns := slices.Concat(r.from, r.except, r.may, r.mustNot)
	for _, family := range r.oneOf {
		patterns = append(patterns, family...)
	}
	for _, p := range patterns {
		if known(g, p) {
			continue
		}
		found = append(found, fmt.Sprintf("rule for %v: pattern %q matches no package of the house and no known dependency", r.from, p))
	}
	return found
}

func known(g graph, pattern string) bool {
	for path := range g {
		if matches(pattern, short(path)) {
			return true
		}
	}
	return slices.ContainsFunc(house, func(p string) bool { return matches(pattern, p) }) ||
		slices.ContainsFunc(outside, func(p string) bool { return matches(pattern, p) })
}
