package bench

import (
	"slices"
	"strings"
)

// Chosen makes of comma-separated words a test for pairs of a scenario and what it runs
// on: each of the two that the words name at all must be among them.
func Chosen(words string, scenarios, places []string) func(scenario, place string) bool {
	chosen := map[string]bool{}
	for word := range strings.SplitSeq(words, ",") {
		chosen[strings.TrimSpace(word)] = true
	}
	named := func(all []string, one string) bool {
		return chosen[one] || !slices.ContainsFunc(all, func(name string) bool { return chosen[name] })
	}
	return func(scenario, place string) bool { return named(scenarios, scenario) && named(places, place) }
}
