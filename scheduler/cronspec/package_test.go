package cronspec

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustParse(tb testing.TB, expr string, opts Options) *Spec {
	tb.Helper()
	s, err := Parse(expr, opts)
	if err != nil {
		tb.Fatalf("Parse(%q, %+v): %v", expr, opts, err)
	}
	return s
}

// at reads an RFC 3339 instant.
func at(tb testing.TB, text string) time.Time {
	tb.Helper()
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// between lists the instants of (from, to] by Next.
func between(tb testing.TB, s *Spec, from, to time.Time) []time.Time {
	tb.Helper()
	var list []time.Time
	for t := from; ; {
		next, ok := s.Next(t)
		if !ok || next.After(to) {
			return list
		}
		if !next.After(t) {
			tb.Fatalf("%s in %s: Next(%s) = %s, not later", s, s.Zone(), t, next)
		}
		list, t = append(list, next), next
	}
}
