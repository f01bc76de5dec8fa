package cronspec

import (
	"testing"
)

func BenchmarkNext(b *testing.B) {
	for _, c := range []struct{ name, expr, zone string }{
		{"second/UTC", "* * * * * *", "UTC"},
		{"daily/UTC", "0 2 * * *", "UTC"},
		{"daily/New_York", "30 2 * * *", "America/New_York"},
		{"weekdays/Berlin", "*/5 9-17 * * mon-fri", "Europe/Berlin"},
		{"leapday/Berlin", "0 0 29 2 *", "Europe/Berlin"},
		{"every", "@every 30s", "UTC"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := mustParse(b, c.expr, Options{Zone: c.zone})
			start := at(b, "2026-01-01T00:00:00Z")
			end := start.AddDate(20, 0, 0)
			t := start
			b.ReportAllocs()
			for b.Loop() {
				t, _ = s.Next(t)
				if t.After(end) {
					t = start
				}
			}
		})
	}
}

// BenchmarkNextFixed is what a scheduler does: the next instant from now, again and again.
func BenchmarkNextFixed(b *testing.B) {
	s := mustParse(b, "30 2 * * *", Options{Zone: "America/New_York"})
	now := at(b, "2026-06-01T00:00:00Z")
	for b.Loop() {
		s.Next(now)
	}
}

func BenchmarkCountYearOfSeconds(b *testing.B) {
	s := mustParse(b, "* * * * * *", Options{Zone: "America/New_York"})
	from := at(b, "2026-01-01T00:00:00Z")
	to := from.AddDate(1, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		if n := s.Count(from, to); n != 365*day {
			b.Fatal(n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustParse(b, "CRON_TZ=Europe/Berlin */5 9-17 * * mon-fri", Options{})
	}
}
