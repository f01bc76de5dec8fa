package cronspec

import (
	"strings"
	"testing"
	"time"
)

// TestOracleTable holds the rows of the table that croner gave for the days of
// the clock changes, and for what other schedulers get wrong.
func TestOracleTable(t *testing.T) {
	for _, c := range []struct {
		name, zone, expr string
		gap              GapPolicy
		fold             FoldPolicy
		from, to         string // local dates, to is exclusive
		want             string
	}{
		{name: "gap", zone: "America/New_York", expr: "30 2 * * *", from: "2026-03-07", to: "2026-03-10", want: "07T02:30-05 08T03:00-04 09T02:30-04"},
		{name: "gap shifted", zone: "America/New_York", expr: "30 2 * * *", gap: GapShift, from: "2026-03-07", to: "2026-03-10", want: "07T02:30-05 08T03:30-04 09T02:30-04"},
		{name: "gap skipped", zone: "America/New_York", expr: "30 2 * * *", gap: GapSkip, from: "2026-03-07", to: "2026-03-10", want: "07T02:30-05 09T02:30-04"},
		{name: "gap and afternoon", zone: "America/New_York", expr: "30 2,14 * * *", from: "2026-03-08", to: "2026-03-09", want: "08T03:00-04 08T14:30-04"},
		{name: "Mondays", zone: "America/New_York", expr: "0 2 * * 1", from: "2026-03-07", to: "2026-03-12", want: "09T02:00-04"},
		{name: "first of month", zone: "America/New_York", expr: "0 2 1 * *", from: "2026-03-01", to: "2026-04-02", want: "01T02:00-05 01T02:00-04"},
		{name: "fold", zone: "America/New_York", expr: "30 1 * * *", from: "2026-11-01", to: "2026-11-02", want: "01T01:30-04"},
		{name: "fold last", zone: "America/New_York", expr: "30 1 * * *", fold: FoldLast, from: "2026-11-01", to: "2026-11-02", want: "01T01:30-05"},
		{name: "fold both", zone: "America/New_York", expr: "30 1 * * *", fold: FoldBoth, from: "2026-11-01", to: "2026-11-02", want: "01T01:30-04 01T01:30-05"},
		{name: "fold, a list", zone: "America/New_York", expr: "0,30 1 * * *", from: "2026-11-01", to: "2026-11-02", want: "01T01:00-04 01T01:30-04"},
		{
			name: "fold, hourly", zone: "America/New_York", expr: "0 * * * *", from: "2026-11-01", to: "2026-11-02",
			want: "01T00:00-04 01T01:00-04 01T01:00-05 01T02:00-05 01T03:00-05 01T04:00-05 01T05:00-05 01T06:00-05 01T07:00-05 01T08:00-05 01T09:00-05 01T10:00-05 01T11:00-05 01T12:00-05 01T13:00-05 01T14:00-05 01T15:00-05 01T16:00-05 01T17:00-05 01T18:00-05 01T19:00-05 01T20:00-05 01T21:00-05 01T22:00-05 01T23:00-05",
		},
		{name: "fold, half-hourly", zone: "America/New_York", expr: "*/30 0-1 * * *", from: "2026-11-01", to: "2026-11-02", want: "01T00:00-04 01T00:30-04 01T01:00-04 01T01:30-04 01T01:00-05 01T01:30-05"},

		{name: "list and plain range coalesce", zone: "America/New_York", expr: "0,30 2-3 * * *", from: "2026-03-08", to: "2026-03-09", want: "08T03:00-04 08T03:30-04"},
		{name: "list shifted onto itself", zone: "America/New_York", expr: "0,30 2-3 * * *", gap: GapShift, from: "2026-03-08", to: "2026-03-09", want: "08T03:00-04 08T03:30-04"},
		{name: "interval in the gap", zone: "America/New_York", expr: "*/30 1-3 * * *", from: "2026-03-08", to: "2026-03-09", want: "08T01:00-05 08T01:30-05 08T03:00-04 08T03:30-04"},
		{name: "interval wholly in the gap", zone: "America/New_York", expr: "*/15 2 * * *", from: "2026-03-08", to: "2026-03-09", want: "08T03:00-04"},
		{name: "interval wholly in the gap, shifted", zone: "America/New_York", expr: "*/20 2 * * *", gap: GapShift, from: "2026-03-08", to: "2026-03-09", want: "08T03:00-04 08T03:20-04 08T03:40-04"},
		{name: "interval wholly in the gap, skipped", zone: "America/New_York", expr: "*/15 2 * * *", gap: GapSkip, from: "2026-03-08", to: "2026-03-09", want: ""},
		{name: "interval partly in the gap", zone: "America/New_York", expr: "*/30 2,14 * * *", from: "2026-03-08", to: "2026-03-09", want: "08T14:00-04 08T14:30-04"},
		{name: "half hour", zone: "Australia/Lord_Howe", expr: "15 2 * * *", from: "2026-10-03", to: "2026-10-06", want: "03T02:15+1030 04T02:30+11 05T02:15+11"},
		{name: "half hour shifted", zone: "Australia/Lord_Howe", expr: "15 2 * * *", gap: GapShift, from: "2026-10-04", to: "2026-10-05", want: "04T02:45+11"},
		{name: "half hour back", zone: "Australia/Lord_Howe", expr: "45 1 * * *", from: "2026-04-05", to: "2026-04-06", want: "05T01:45+11"},
		{name: "two hours", zone: "Antarctica/Troll", expr: "30 2 * * *", from: "2026-03-29", to: "2026-03-30", want: "29T03:00+02"},
		{
			name: "two hours back, interval", zone: "Antarctica/Troll", expr: "0 */1 * * *", from: "2026-10-25", to: "2026-10-26",
			want: "25T00:00+02 25T01:00+02 25T02:00+02 25T01:00+00 25T02:00+00 25T03:00+00 25T04:00+00 25T05:00+00 25T06:00+00 25T07:00+00 25T08:00+00 25T09:00+00 25T10:00+00 25T11:00+00 25T12:00+00 25T13:00+00 25T14:00+00 25T15:00+00 25T16:00+00 25T17:00+00 25T18:00+00 25T19:00+00 25T20:00+00 25T21:00+00 25T22:00+00 25T23:00+00",
		},
		{name: "midnight", zone: "Asia/Beirut", expr: "30 0 * * 0", from: "2026-03-28", to: "2026-04-06", want: "29T01:00+03 05T00:30+03"},
		{name: "midnight, @daily", zone: "Asia/Beirut", expr: "@daily", from: "2026-03-28", to: "2026-03-31", want: "28T00:00+02 29T01:00+03 30T00:00+03"},
		{name: "gap up to midnight", zone: "America/Nuuk", expr: "30 23 * * *", from: "2024-03-29", to: "2024-04-01", want: "29T23:30-02 31T00:00-01 31T23:30-01"},
		{name: "gap up to midnight, never on another day", zone: "America/Nuuk", expr: "30 23 * * 6", from: "2024-03-29", to: "2024-04-07", want: "06T23:30-01"},
		{name: "missing day", zone: "Pacific/Apia", expr: "0 12 * * *", from: "2011-12-28", to: "2012-01-01", want: "28T12:00-10 29T12:00-10 31T12:00+14"},
		{name: "missing day, its weekday", zone: "Pacific/Apia", expr: "0 12 * * 5", gap: GapShift, from: "2011-12-28", to: "2012-01-07", want: "06T12:00+14"},
		{name: "back over midnight", zone: "America/St_Johns", expr: "59 23 * * *", from: "2010-11-05", to: "2010-11-08", want: "05T23:59-0230 06T23:59-0230 07T23:59-0330"},
	} {
		s := mustParse(t, c.expr, Options{Zone: c.zone, Gap: c.gap, Fold: c.fold})
		local := func(date string) time.Time {
			d, err := time.ParseInLocation(time.DateOnly, date, s.zone.loc)
			if err != nil {
				t.Fatal(err)
			}
			return d.Add(-time.Second)
		}
		var got []string
		for _, i := range between(t, s, local(c.from), local(c.to)) {
			got = append(got, i.In(s.zone.loc).Format("02T15:04Z07")) // Z07 drops minutes
			if _, offset := i.In(s.zone.loc).Zone(); offset%3600 != 0 {
				got[len(got)-1] = i.In(s.zone.loc).Format("02T15:04-0700")
			}
		}
		if have := strings.ReplaceAll(strings.Join(got, " "), "Z", "+00"); have != c.want {
			t.Errorf("%s: %s %s\n got %s\nwant %s", c.name, c.zone, c.expr, have, c.want)
		}
	}
}

func TestNextIsUTCWholeSecondsAndStrictlyAfter(t *testing.T) {
	s := mustParse(t, "*/10 * * * * *", Options{Zone: "Asia/Kathmandu"})
	for after, want := range map[string]string{
		"2026-01-01T00:00:00Z":                "2026-01-01T00:00:10Z",
		"2026-01-01T00:00:09.999999999Z":      "2026-01-01T00:00:10Z",
		"2026-01-01T05:45:10.5+05:45":         "2026-01-01T00:00:20Z",
		"1969-12-31T23:59:59.5Z":              "1970-01-01T00:00:00Z",
		"1969-12-31T23:59:40.000000001Z":      "1969-12-31T23:59:50Z",
		"9999-12-31T23:59:49Z":                "9999-12-31T23:59:50Z",
		"0001-01-01T00:00:00.000000001Z":      "0001-01-01T00:00:04Z", // local mean time: 5:41:16
		"2200-02-28T23:59:59.999+00:00":       "2200-03-01T00:00:00Z",
		"2026-06-01T00:00:00.123456789-07:00": "2026-06-01T07:00:10Z",
	} {
		next, ok := s.Next(at(t, after))
		if !ok || next.Format(time.RFC3339Nano) != want || next.Location() != time.UTC {
			t.Errorf("after %s: %s, %v; want %s", after, next.Format(time.RFC3339Nano), ok, want)
		}
	}
	if next, ok := s.Next(at(t, "9999-12-31T23:59:50Z")); ok {
		t.Errorf("an instant after the year 9999: %s", next)
	}
	if next, ok := s.Next(time.Unix(1<<60, 0)); ok {
		t.Errorf("an instant after the end of time: %s", next)
	}
	if next, ok := s.Next(time.Unix(-1<<60, 0)); !ok || next.Year() != 1 {
		t.Errorf("first instant of all: %s, %v", next, ok)
	}
}

func TestRareDates(t *testing.T) {
	for _, c := range []struct{ expr, zone, after, want string }{
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 29 2 *", "UTC", "2196-03-01T00:00:00Z", "2204-02-29T00:00:00Z"},
		{"0 0 29 2 *", "America/New_York", "2096-03-01T00:00:00Z", "2104-02-29T05:00:00Z"},
		{"0 0 31 4-5 *", "UTC", "2026-06-01T00:00:00Z", "2027-05-31T00:00:00Z"},
		{"59 59 23 31 12 *", "UTC", "9998-12-31T23:59:59Z", "9999-12-31T23:59:59Z"},
	} {
		s := mustParse(t, c.expr, Options{Zone: c.zone})
		if next, ok := s.Next(at(t, c.after)); !ok || next != at(t, c.want) {
			t.Errorf("%s in %s after %s: %s, %v; want %s", c.expr, c.zone, c.after, next, ok, c.want)
		}
	}
}

// TestEveryKeepsToTheEpoch shows that replicas started at any moment agree.
func TestEveryKeepsToTheEpoch(t *testing.T) {
	s := mustParse(t, "@every 7s", Options{Offset: 3 * time.Second})
	for _, start := range []string{"2026-01-01T00:00:03.2Z", "1969-12-31T23:59:30Z", "1970-01-01T00:00:00Z"} {
		for _, i := range between(t, s, at(t, start), at(t, start).Add(time.Minute)) {
			if (i.Unix()%7+7)%7 != 3 {
				t.Errorf("started at %s, due at %s", start, i)
			}
		}
	}
	day := mustParse(t, "@every 24h", Options{Zone: "America/New_York"})
	if got := between(t, day, at(t, "2026-03-07T00:00:00Z"), at(t, "2026-03-10T00:00:00Z")); len(got) != 3 || got[1].Hour() != 0 {
		t.Errorf("@every 24h over a clock change: %v", got)
	}
	if next, ok := mustParse(t, "@every 2540400h", Options{}).Next(at(t, "2100-01-01T00:00:00Z")); !ok || next.Year() != 2259 {
		t.Errorf("@every 290 years: %s, %v", next, ok)
	}
}

func TestPeriod(t *testing.T) {
	for _, c := range []struct {
		expr, zone, at string
		want           time.Duration
	}{
		{"@every 90s", "", "2026-01-01T00:00:00Z", 90 * time.Second},
		{"*/5 * * * *", "", "2026-01-01T00:05:00Z", 5 * time.Minute},
		{"*/5 * * * *", "", "2026-01-01T00:04:59.9Z", 5 * time.Minute},
		{"0 9 * * mon-fri", "", "2026-01-03T00:00:00Z", 72 * time.Hour},
		{"0 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 24 * time.Hour}, // 02:00 +01 to 03:00 +02
		{"0 4 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 23 * time.Hour},
		{"0 0 29 2 *", "", "2100-01-01T00:00:00Z", (8*365 + 1) * 24 * time.Hour},
	} {
		if got := mustParse(t, c.expr, Options{Zone: c.zone}).Period(at(t, c.at)); got != c.want {
			t.Errorf("%s in %s at %s: %s, want %s", c.expr, c.zone, c.at, got, c.want)
		}
	}
	if got := mustParse(t, "0 0 1 1 *", Options{}).Period(at(t, "9999-06-01T00:00:00Z")); got != 0 {
		t.Errorf("past the last instant: %s", got)
	}
}

func TestNote(t *testing.T) {
	for _, c := range []struct {
		zone, expr string
		gap        GapPolicy
		at, want   string
	}{
		{"America/New_York", "30 2 * * *", "", "2026-03-08T07:00:00Z", "moved: 02:30 does not exist on this day (clocks go forward)"},
		{"America/New_York", "15 30 2 * * *", "", "2026-03-08T07:00:00Z", "moved: 02:30:15 does not exist on this day (clocks go forward)"},
		{"America/New_York", "30 2 * * *", GapShift, "2026-03-08T07:30:00Z", "moved: 02:30 does not exist on this day (clocks go forward)"},
		{"America/New_York", "30 2 * * *", GapShift, "2026-03-08T07:00:00Z", ""},
		{"America/New_York", "30 2 * * *", GapSkip, "2026-03-08T07:00:00Z", ""},
		{"America/New_York", "*/15 2 * * *", "", "2026-03-08T07:00:00Z", "moved: 02:00 to 02:45 do not exist on this day (clocks go forward)"},
		{"America/New_York", "30 2 * * *", "", "2026-03-09T06:30:00Z", ""},
		{"America/New_York", "0,30 2,3 * * *", "", "2026-03-08T07:00:00Z", "also for 02:00 to 02:30, which do not exist on this day (clocks go forward)"},
		{"America/New_York", "0 3 * * *", "", "2026-03-08T07:00:00Z", ""},
		{"America/Nuuk", "30 23 * * *", "", "2024-03-31T01:00:00Z", "moved: 23:30 does not exist on 2024-03-30 (clocks go forward)"},
		{"America/New_York", "30 1 * * *", "", "2026-11-01T05:30:00Z", "first of two 01:30 (clocks go back)"},
		{"America/New_York", "30 1 * * *", "", "2026-11-01T06:30:00Z", "second of two 01:30 (clocks go back)"},
		{"America/New_York", "0 * * * *", "", "2026-11-01T04:00:00Z", ""},
		{"America/New_York", "0 * * * *", "", "2026-11-01T07:00:00Z", ""},
		{"America/New_York", "@every 30m", "", "2026-11-01T05:00:00Z", "first of two 01:00 (clocks go back)"},
		{"UTC", "0 * * * *", "", "2026-11-01T05:00:00Z", ""},
	} {
		s := mustParse(t, c.expr, Options{Zone: c.zone, Gap: c.gap})
		if got := s.Note(at(t, c.at)); got != c.want {
			t.Errorf("%s in %s, %s: %q, want %q", c.expr, c.zone, c.at, got, c.want)
		}
	}
	if got := mustParse(t, "* * * * *", Options{}).Note(time.Unix(1<<60, 0)); got != "" {
		t.Errorf("beyond time: %q", got)
	}
}

// TestLocalZoneDoesNotMatter gives moments in many zones; the answer is one.
func TestLocalZoneDoesNotMatter(t *testing.T) {
	s := mustParse(t, "30 2 * * *", Options{Zone: "Europe/Berlin"})
	moment := at(t, "2026-03-28T12:00:00Z")
	want, _ := s.Next(moment)
	for _, name := range []string{"UTC", "Asia/Shanghai", "America/New_York", "Pacific/Apia"} {
		z, err := loadZone(name)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := s.Next(moment.In(z.loc))
		if got != want { // == also compares the location
			t.Errorf("asked in %s: %v, want %v", name, got, want)
		}
	}
}
