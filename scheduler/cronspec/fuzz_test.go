package cronspec

import (
	"errors"
	"testing"
	"time"
)

// FuzzParse holds Parse to its word: no panic, errors of one kind, and an accepted
// spec has a next instant from any date, agrees with itself, and comes back from
// its stored form.
func FuzzParse(f *testing.F) {
	for _, expr := range []string{
		"", "TZ=UTC", "TZ=UTC ", "CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=../x * * * * *", "@every 1s", "@every 2540400h", "@every 1.5s",
		"@hourly", "@", "*/59 * * * *", "0 0 31 2 *", "0 0 29 2 *", "0 0 29 2 mon", "0 0 * * 5-7/2", "0 0 * * 7-7", "50-10/7 22-2 28-3 nov-feb fri-mon *",
		"*,5/3 ? * * ? *", ", * * * *", "*-5 * * * *", "0-59/60 * * * *", "99999999999999999999 * * * *", "*/15 2 * * *", "\u00a01 1\u20031 1 1",
	} {
		f.Add(expr, "", "", "", int64(0), int64(1772928000))
	}
	f.Add("30 2 * * *", "America/New_York", "shift", "both", int64(0), int64(1772928000))
	f.Add("0 12 * * *", "Pacific/Apia", "skip", "last", int64(0), int64(1325239200))
	f.Add("@every 1h", "Local", "", "", int64(3599), int64(4102444799))
	f.Add("* * * * *", "Etc/GMT+5", "next_valid", "first", int64(1), int64(-5))

	f.Fuzz(func(t *testing.T, expr, zoneName, gap, fold string, offset, after int64) {
		opts := Options{Zone: zoneName, Gap: GapPolicy(gap), Fold: FoldPolicy(fold), Offset: time.Duration(offset) * time.Second}
		s, err := Parse(expr, opts)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Field == "" || e.Problem == "" || e.Remedy == "" || s != nil {
				t.Fatalf("Parse(%q, %+v) = %v, %#v", expr, opts, s, err)
			}
			return
		}
		const to2100 = 4102444800
		moment := time.Unix((after%to2100+to2100)%to2100, 0)
		next, ok := s.Next(moment)
		if !ok || !next.After(moment) {
			t.Fatalf("%q after %s: %s, %v", expr, moment, next, ok)
		}
		if n := s.Count(moment, next); n != 1 {
			t.Fatalf("%q: %d instants in (%s, %s]", expr, n, moment, next)
		}
		if last, ok := s.Last(next.Add(time.Second/2), moment); !ok || last != next {
			t.Fatalf("%q: last up to %s is %s, %v", expr, next, last, ok)
		}
		s.Note(next)
		back, err := Unmarshal(s.Marshal())
		if err != nil || *back != *s {
			t.Fatalf("%s came back as %+v, %v", s.Marshal(), back, err)
		}
	})
}
