package cronspec

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func zoneNames(t *testing.T) []string {
	t.Helper()
	files, err := archive()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files.File {
		if !strings.HasSuffix(f.Name, "/") {
			names = append(names, f.Name)
		}
	}
	if len(names) < 500 {
		t.Fatalf("only %d zones", len(names))
	}
	return names
}

// TestNextCountLastAgree takes any zone, any date from 1970 to 2200 and any spec.
func TestNextCountLastAgree(t *testing.T) {
	const seed = 1970
	r := rand.New(rand.NewPCG(seed, 0))
	names := zoneNames(t)
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for range rounds {
		opts := policies[r.IntN(len(policies))]
		opts.Zone = names[r.IntN(len(names))]
		s := mustParse(t, randomSpec(r), opts)
		from := r.Int64N(at(t, "2200-01-01T00:00:00Z").Unix())
		var list []int64
		for last := from; len(list) < 60; {
			next, ok := s.Next(time.Unix(last, 0))
			if !ok || next.Unix() <= last {
				t.Fatalf("%s: after %d comes %s, %v", s.Marshal(), last, next, ok)
			}
			last = next.Unix()
			list = append(list, last)
		}
		checkCountAndLast(t, s, from, list[len(list)-1], list)
		if period := s.Period(time.Unix(list[3], 0)); period != time.Duration(list[4]-list[3])*time.Second {
			t.Errorf("%s: Period at %d is %s, want %d s", s.Marshal(), list[3], period, list[4]-list[3])
		}
	}
}

func TestEveryCountAndLast(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		every := time.Duration(1+r.IntN(100_000)) * time.Second
		s := mustParse(t, "@every "+every.String(), Options{Offset: time.Duration(r.Int64N(int64(every/time.Second))) * time.Second})
		from := r.Int64N(4e9) - 2e9
		to := from + r.Int64N(50*int64(every/time.Second))
		var list []int64
		for _, i := range between(t, s, time.Unix(from, 0), time.Unix(to, 0)) {
			list = append(list, i.Unix())
		}
		checkCountAndLast(t, s, from, to, list)
	}
}

func TestEmptyRanges(t *testing.T) {
	moment := at(t, "2026-01-01T00:00:00Z")
	for _, expr := range []string{"* * * * *", "@every 1m"} {
		s := mustParse(t, expr, Options{})
		for _, from := range []time.Time{moment, moment.Add(time.Nanosecond), moment.Add(time.Hour), time.Unix(1<<60, 0)} {
			if n := s.Count(from, moment); n != 0 {
				t.Errorf("%s: Count from %s: %d", expr, from, n)
			}
			if last, ok := s.Last(moment, from); ok {
				t.Errorf("%s: Last from %s: %s", expr, from, last)
			}
		}
		if n := s.Count(time.Unix(-1<<60, 0), time.Unix(1<<60, 0)); n != 3_652_059*24*60 { // days of the years 1 to 9999
			t.Errorf("%s: %d minutes in all of time", expr, n)
		}
	}
}

// TestCountIsCheap is about steps, not speed: a per-second job that was down for
// ages must not be counted instant by instant, nor searched for its last one.
func TestCountIsCheap(t *testing.T) {
	start := time.Now()
	for _, expr := range []string{"* * * * * *", "@every 1s", "0-59 0-59 0-23 * * *"} {
		for _, zoneName := range []string{"UTC", "America/New_York", "Pacific/Apia"} {
			s := mustParse(t, expr, Options{Zone: zoneName, Fold: FoldBoth, Gap: GapSkip})
			from, to := at(t, "2000-01-01T00:00:00Z"), at(t, "2200-01-01T00:00:00Z")
			if n := s.Count(from, to); n != to.Unix()-from.Unix() {
				t.Errorf("%s in %s: %d of %d", expr, zoneName, n, to.Unix()-from.Unix())
			}
			if last, ok := s.Last(to, from); !ok || last != to {
				t.Errorf("%s in %s: last %s", expr, zoneName, last)
			}
		}
	}
	rare := mustParse(t, "0 0 29 2 *", Options{Zone: "Europe/Berlin"})
	if last, ok := rare.Last(at(t, "2104-02-28T00:00:00Z"), time.Time{}); !ok || last != at(t, "2096-02-28T23:00:00Z") {
		t.Errorf("last leap day: %s", last)
	}
	// 6.3e9 instants a spec; stepping would take minutes.
	if spent := time.Since(start); spent > time.Minute {
		t.Errorf("took %s", spent)
	}
}
