package cronspec

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		expr   string
		opts   Options
		field  string
		value  string
		saying string // in the problem
		remedy string
	}{
		{expr: "", field: "spec", saying: "is empty", remedy: "write 5 fields"},
		{expr: " \t ", field: "spec", value: " \t ", saying: "is empty", remedy: "write 5 fields"},
		{expr: "TZ=UTC", field: "spec", value: "TZ=UTC", saying: "no fields", remedy: "after the zone"},
		{expr: "CRON_TZ=UTC ", field: "spec", value: "CRON_TZ=UTC", saying: "no fields", remedy: "after the zone"},
		{expr: "TZ= * * * * *", field: "spec", value: "TZ= * * * * *", saying: "empty zone", remedy: "Europe/Berlin"},
		{expr: "TZ=UTC * * * * *", opts: Options{Zone: "UTC"}, field: "zone", value: "UTC", saying: "begins with zone UTC", remedy: "remove one"},
		{expr: "TZ=Mars/Base * * * * *", field: "zone", value: "Mars/Base", saying: "not in the zone data", remedy: "IANA name"},
		{expr: "* * * * *", opts: Options{Zone: "europe/berlin"}, field: "zone", value: "europe/berlin", saying: "not in the zone data", remedy: "did you mean Europe/Berlin?"},
		{expr: "* * * * *", opts: Options{Zone: "new york"}, field: "zone", value: "new york", saying: "not in the zone data", remedy: "did you mean America/New_York?"},
		{expr: "* * * * *", opts: Options{Zone: "Local"}, field: "zone", value: "Local", saying: "not in the zone data", remedy: "IANA name"},
		{expr: "* * * * *", opts: Options{Zone: "Europe"}, field: "zone", value: "Europe", saying: "not in the zone data", remedy: "IANA name"},
		{expr: "* * * * *", opts: Options{Zone: "../UTC"}, field: "zone", value: "../UTC", saying: "not in the zone data", remedy: "IANA name"},
		{expr: "* * * *", field: "spec", value: "* * * *", saying: "has 4 fields", remedy: "write 5 fields"},
		{expr: "0 0 0 1 1 * 2030", field: "spec", value: "0 0 0 1 1 * 2030", saying: "has 7 fields", remedy: "write 5 fields"},
		{expr: "@reboot", field: "spec", value: "@reboot", saying: "not a known shorthand", remedy: "@hourly"},
		{expr: "@every 500ms", field: "@every", value: "500ms", saying: "not in whole seconds", remedy: "90s"},
		{expr: "@every 1500ms", field: "@every", value: "1500ms", saying: "not in whole seconds", remedy: "90s"},
		{expr: "@every 0s", field: "@every", value: "0s", saying: "not positive", remedy: "90s"},
		{expr: "@every -5s", field: "@every", value: "-5s", saying: "not positive", remedy: "90s"},
		{expr: "@every 1d", field: "@every", value: "1d", saying: "not a duration", remedy: "24h"},
		{expr: "@every", field: "@every", saying: "not a duration", remedy: "24h"},
		{expr: "@every 10s", opts: Options{Offset: 10 * time.Second}, field: "offset", value: "10s", saying: "not within one interval", remedy: "below 10s"},
		{expr: "@every 10s", opts: Options{Offset: -time.Second}, field: "offset", value: "-1s", saying: "not within one interval", remedy: "from 0s"},
		{expr: "@every 10s", opts: Options{Offset: time.Millisecond}, field: "offset", value: "1ms", saying: "not in whole seconds", remedy: "round it"},
		{expr: "0 * * * *", opts: Options{Offset: time.Second}, field: "offset", value: "1s", saying: "@every only", remedy: "leave it out"},
		{expr: "*/60 * * * *", field: "minute", value: "*/60", saying: "only the first of 60", remedy: "below 60"},
		{expr: "*/90 0 * * * *", field: "second", value: "*/90", saying: "only the first of 60", remedy: "below 60"},
		{expr: "0 */24 * * *", field: "hour", value: "*/24", saying: "only the first of 24", remedy: "below 24"},
		{expr: "0 10-12/3 * * *", field: "hour", value: "10-12/3", saying: "only the first of 3", remedy: "below 3"},
		{expr: "0 0 */31 * *", field: "day of month", value: "*/31", saying: "only the first of 31", remedy: "below 31"},
		{expr: "0 0 * * 0-7/7", field: "day of week", value: "0-7/7", saying: "only the first of 7", remedy: "below 7"},
		{expr: "*/0 * * * *", field: "minute", value: "*/0", saying: "step is 0", remedy: "at least 1"},
		{expr: "*/ * * * *", field: "minute", value: "*/", saying: "not a number", remedy: "whole number"},
		{expr: "*/x * * * *", field: "minute", value: "*/x", saying: "not a number", remedy: "whole number"},
		{expr: "*/2/3 * * * *", field: "minute", value: "*/2/3", saying: "not a number", remedy: "whole number"},
		{expr: "60 * * * *", field: "minute", value: "60", saying: "60 is out of range", remedy: "0 to 59"},
		{expr: "0 24 * * *", field: "hour", value: "24", saying: "24 is out of range", remedy: "0 to 23"},
		{expr: "0 0 0 * *", field: "day of month", value: "0", saying: "0 is out of range", remedy: "1 to 31"},
		{expr: "0 0 * 13 *", field: "month", value: "13", saying: "13 is out of range", remedy: "1 to 12"},
		{expr: "0 0 * * 8", field: "day of week", value: "8", saying: "8 is out of range", remedy: "0 to 7"},
		{expr: ", * * * *", field: "minute", value: ",", saying: "empty list entry", remedy: "comma"},
		{expr: "1,,2 * * * *", field: "minute", value: "1,,2", saying: "empty list entry", remedy: "comma"},
		{expr: "*-5 * * * *", field: "minute", value: "*-5", saying: `"*" is not understood`, remedy: "supported are numbers"},
		{expr: "+5 * * * *", field: "minute", value: "+5", saying: `"+5" is not understood`, remedy: "supported are numbers"},
		{expr: "1-2-3 * * * *", field: "minute", value: "1-2-3", saying: `"2-3" is not understood`, remedy: "ranges (a-b)"},
		{expr: "H * * * *", field: "minute", value: "H", saying: `"H" is not understood`, remedy: "steps (/n)"},
		{expr: "0 0 L * *", field: "day of month", value: "L", saying: `"L" is not understood`, remedy: "supported are numbers"},
		{expr: "0 0 15W * *", field: "day of month", value: "15W", saying: `"15W" is not understood`, remedy: "supported are numbers"},
		{expr: "0 0 * * mon#2", field: "day of week", value: "mon#2", saying: `"mon#2" is not understood`, remedy: "names (sun to sat)"},
		{expr: "0 0 * foo *", field: "month", value: "foo", saying: `"foo" is not understood`, remedy: "names (jan to dec)"},
		{expr: "0 0 31 2 *", field: "spec", value: "0 0 31 2 *", saying: "never fires", remedy: "day of month"},
		{expr: "0 0 30 feb ?", field: "spec", value: "0 0 30 feb ?", saying: "never fires", remedy: "day of month"},
		{expr: "0 0 31 2,4,6,9,11 *", field: "spec", value: "0 0 31 2,4,6,9,11 *", saying: "never fires", remedy: "day of month"},
		{expr: "* * * * *", opts: Options{Gap: "later"}, field: "gap", value: "later", saying: "not a known policy", remedy: "next_valid, shift or skip"},
		{expr: "* * * * *", opts: Options{Fold: "twice"}, field: "fold", value: "twice", saying: "not a known policy", remedy: "first, last or both"},
	} {
		s, err := Parse(c.expr, c.opts)
		var e *Error
		if !errors.As(err, &e) || s != nil {
			t.Errorf("Parse(%q, %+v) = %v, %v; want an *Error", c.expr, c.opts, s, err)
			continue
		}
		if e.Field != c.field || e.Value != c.value || !strings.Contains(e.Problem, c.saying) || !strings.Contains(e.Remedy, c.remedy) {
			t.Errorf("Parse(%q, %+v): %#v", c.expr, c.opts, e)
		}
	}
	if _, err := Parse(strings.Repeat("0,", 1000)+"0 * * * *", Options{}); err == nil || !strings.Contains(err.Error(), "has 2009 bytes") {
		t.Errorf("a very long spec: %v", err)
	}
	_, err := Parse("*/75 * * * *", Options{})
	want := `cronspec: minute "*/75": step 75 leaves only the first of 60 values; use a step below 60 or name the one value`
	if err == nil || err.Error() != want {
		t.Errorf("error reads %v\nwant           %s", err, want)
	}
}

func TestCanonicalForm(t *testing.T) {
	for expr, want := range map[string]string{
		"  5\t4  * *   * ":           "5 4 * * *",
		"0 5 4 * * *":                "5 4 * * *",
		"30 5 4 * * *":               "30 5 4 * * *",
		"@daily":                     "0 0 * * *",
		"@weekly":                    "0 0 * * 0",
		"0 0 * * SUN":                "0 0 * * 0",
		"0 0 * * 7":                  "0 0 * * 0",
		"0 0 ? JAN-mar mon,Wed":      "0 0 * 1-3 1,3",
		"*/1 00-07 * * fri-sun":      "* 0-7 * * 5-7",
		"0 0 * * 0-7":                "0 0 * * 0-6",
		"0 0 * * 7-2":                "0 0 * * 0-2",
		"0 0 * * 7-7":                "0 0 * * 0-0",
		"5/20 0-59/1 * * * *":        "5/20 0-59/1 * * * *",
		"TZ=Asia/Tokyo 0 22-2 * * *": "0 22-2 * * *",
		"@every 90s":                 "@every 1m30s",
		"@every 3600s":               "@every 1h",
		"@every   1h0.5m":            "@every 1h0m30s",
		"CRON_TZ=UTC @every 10m":     "@every 10m",
		"@every 50h":                 "@every 50h",
	} {
		s := mustParse(t, expr, Options{})
		if s.String() != want {
			t.Errorf("%q: %q, want %q", expr, s, want)
		}
		again := mustParse(t, s.String(), Options{Zone: s.Zone()})
		if again.Hash() != s.Hash() {
			t.Errorf("%q: its canonical form has another hash", expr)
		}
	}
}

func TestFieldMeanings(t *testing.T) {
	for _, c := range []struct {
		expr string
		want string // the instants of 2026-06-05 (a Friday) to 2026-06-08, by day and time
	}{
		{"0 0 * * 7", "07T00:00:00"},
		{"0 0 * * sat-sun", "06T00:00:00 07T00:00:00"},
		{"0 0 * * 6-7", "06T00:00:00 07T00:00:00"},
		{"0 0 * * sun-sat/6", "06T00:00:00 07T00:00:00"},
		{"0 0 * * fri-mon/2", "05T00:00:00 07T00:00:00"},
		{"0 22-1/2 7 * *", "07T00:00:00 07T22:00:00"},
		{"0 12 6 6 *", "06T12:00:00"},
		{"0 12 31-5 * *", "05T12:00:00"},
		{"0 12 5 * sun", "05T12:00:00 07T12:00:00"}, // POSIX: either day
		{"0 12 31 6 sat", "06T12:00:00"},            // no such date, but Saturdays
		{"0 12 */2 * 6", "05T12:00:00 06T12:00:00 07T12:00:00"},
		{"0 12 */1 * 6", "06T12:00:00"}, // */1 restricts nothing
		{"0 12 ? * 6", "06T12:00:00"},
		{"20/20 30 9 7 jun ?", "07T09:30:20 07T09:30:40"},
		{"0 12 * dec-jan *", ""},
	} {
		s := mustParse(t, c.expr, Options{})
		var got []string
		for _, i := range between(t, s, at(t, "2026-06-04T23:59:59Z"), at(t, "2026-06-07T23:59:59Z")) {
			got = append(got, i.Format("02T15:04:05"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %v, want %s", c.expr, got, c.want)
		}
	}
}

func TestMarshalRoundTrip(t *testing.T) {
	s := mustParse(t, "CRON_TZ=Europe/Berlin 30 2 * * mon-fri", Options{Gap: GapShift, Fold: FoldBoth})
	const want = `{"expr":"30 2 * * 1-5","zone":"Europe/Berlin","gap":"shift","fold":"both","offset":"0s"}`
	if s.Marshal() != want {
		t.Fatalf("Marshal: %s", s.Marshal())
	}
	// The hash is stored next to runs; a new value would make every job a new revision.
	if s.Hash() != "621877fb1a1ea0764a04992e15dd7e96" {
		t.Errorf("Hash changed: %s", s.Hash())
	}
	every := mustParse(t, "@every 1h", Options{Offset: 7 * time.Second})
	for _, spec := range []*Spec{s, every} {
		back, err := Unmarshal(spec.Marshal())
		if err != nil {
			t.Fatal(err)
		}
		if *back != *spec {
			t.Errorf("%s came back as %s", spec.Marshal(), back.Marshal())
		}
	}
	seen := map[string]Options{}
	for _, opts := range []Options{
		{}, {Zone: "Europe/Paris"}, {Gap: GapShift}, {Gap: GapSkip}, {Fold: FoldLast}, {Fold: FoldBoth},
	} {
		hash := mustParse(t, "30 2 * * *", opts).Hash()
		if other, dup := seen[hash]; dup {
			t.Errorf("%+v and %+v have one hash", opts, other)
		}
		seen[hash] = opts
	}
	for _, bad := range []string{
		"", "30 2 * * *", "{}", want[:20], want + want, strings.Replace(want, "gap", "gaps", 1),
		strings.Replace(want, "Europe/Berlin", "Mars/Base", 1), strings.Replace(want, "0s", "0", 1) + "}",
		strings.Replace(want, `"both"`, `"often"`, 1), strings.Replace(want, "30 2", "30 99", 1),
	} {
		var e *Error
		if back, err := Unmarshal(bad); !errors.As(err, &e) {
			t.Errorf("Unmarshal(%q) = %v, %v", bad, back, err)
		}
	}
}

func TestSpreadOffset(t *testing.T) {
	const every = time.Hour
	var sum time.Duration
	for i := range 1000 {
		o := SpreadOffset("shop", "job-"+time.Duration(i).String(), every)
		if o < 0 || o >= every || o%time.Second != 0 {
			t.Fatalf("offset %s", o)
		}
		if _, err := Parse("@every 1h", Options{Offset: o}); err != nil {
			t.Fatal(err)
		}
		sum += o
	}
	if mean := sum / 1000; mean < 27*time.Minute || mean > 33*time.Minute {
		t.Errorf("offsets are not spread: mean %s of %s", mean, every)
	}
	if a, b := SpreadOffset("a", "bc", every), SpreadOffset("ab", "c", every); a == b {
		t.Error("namespace and job run together")
	}
	if o := SpreadOffset("shop", "nightly", every); o != 36*time.Minute+56*time.Second {
		t.Errorf("the stored meaning of offsets changed: %s", o)
	}
	for _, every := range []time.Duration{-1, 0, 1, time.Second, 1999 * time.Millisecond} {
		if o := SpreadOffset("shop", "nightly", every); o != 0 {
			t.Errorf("every %s: %s", every, o)
		}
	}
}
