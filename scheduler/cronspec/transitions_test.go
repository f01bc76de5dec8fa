package cronspec

import (
	"testing"
	"time"
)

// TestSpansOfAllZones walks every zone through its spans and checks what the
// package relies on: they join, the offset is constant in each, they are long and
// changes are small against them, and a span is the same from wherever it is found.
func TestSpansOfAllZones(t *testing.T) {
	names := zoneNames(t)
	if testing.Short() {
		names = []string{"UTC", "America/New_York", "America/Metlakatla", "Africa/Casablanca", "Asia/Gaza"}
	}
	from, to := at(t, "1930-01-01T00:00:00Z").Unix(), at(t, "2060-01-01T00:00:00Z").Unix()
	for _, name := range names {
		z, err := loadZone(name)
		if err != nil {
			t.Fatal(err)
		}
		s := findSpan(z.loc, from)
		for s.start < to {
			if s.end-s.start < 3*day || max(s.before-s.offset, s.offset-s.before) > day {
				t.Errorf("%s: span %+v", name, s)
			}
			for i := range int64(8) {
				probe := max(s.start, from-400*day)
				probe += (min(s.end, to+400*day) - probe) / 8 * i
				if got := offsetAt(z.loc, probe); got != s.offset {
					t.Errorf("%s: offset %d at %d in %+v", name, got, probe, s)
				}
			}
			for _, probe := range []int64{s.start, (s.start + s.end) / 2, s.end - 1} {
				if again := findSpan(z.loc, probe); again != s {
					t.Errorf("%s: span %+v, but found from %d %+v", name, s, probe, again)
				}
			}
			if s.end > maxInstant {
				break
			}
			next := findSpan(z.loc, s.end)
			if next.start != s.end || next.before != s.offset || next.offset != s.after || s.after == s.offset {
				t.Errorf("%s: span %+v and then %+v", name, s, next)
			}
			s = next
		}
	}
}

// TestSpanBoundsThatPackageTimeGetsWrong holds the cases for which findSpan does
// not take ZoneBounds at its word.
func TestSpanBoundsThatPackageTimeGetsWrong(t *testing.T) {
	for _, c := range []struct{ zone, at, start, end string }{
		// The last day of a leap year beyond the table: the end lies in the past.
		{"America/New_York", "2040-12-31T12:00:00Z", "2040-11-04T06:00:00Z", "2041-03-10T07:00:00Z"},
		{"Australia/Sydney", "2044-12-31T12:00:00Z", "2044-10-01T16:00:00Z", "2045-04-01T16:00:00Z"},
		// The last entry of the table is in mid-year: the start is taken from the rule.
		{"America/Metlakatla", "2019-02-01T00:00:00Z", "2019-01-20T10:00:00Z", "2019-03-10T11:00:00Z"},
		{"America/Ciudad_Juarez", "2022-12-05T00:00:00Z", "2022-11-30T06:00:00Z", "2023-03-12T09:00:00Z"},
		{"America/Indiana/Winamac", "2007-04-01T00:00:00Z", "2007-03-11T08:00:00Z", "2007-11-04T06:00:00Z"},
	} {
		z, err := loadZone(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		s := findSpan(z.loc, at(t, c.at).Unix())
		start, end := time.Unix(s.start, 0).UTC().Format(time.RFC3339), time.Unix(s.end, 0).UTC().Format(time.RFC3339)
		if start != c.start || end != c.end {
			t.Errorf("%s at %s: %s to %s, want %s to %s", c.zone, c.at, start, end, c.start, c.end)
		}
	}
}

func TestZoneData(t *testing.T) {
	if v := TZDataVersion(); len(v) != 5 || v < "2025" {
		t.Errorf("zone data version %q", v)
	}
	// Hosts have files that are no zones, and zones that count leap seconds.
	for _, name := range []string{"localtime", "posixrules", "right/UTC", "tzdata.zi", "/etc/localtime"} {
		if _, err := loadZone(name); err == nil {
			t.Errorf("%s was loaded from the host", name)
		}
	}
}

// TestZoneinfoReplacesEmbeddedData shows the way out when a government decides overnight.
func TestZoneinfoReplacesEmbeddedData(t *testing.T) {
	t.Setenv("ZONEINFO", "tzdata/zoneinfo.zip")
	if v := TZDataVersion(); v != "ZONEINFO=tzdata/zoneinfo.zip" {
		t.Errorf("version %q", v)
	}
	if loc, err := loadLocation("Asia/Tokyo"); err != nil || loc.String() != "Asia/Tokyo" {
		t.Errorf("%v, %v", loc, err)
	}
	if _, err := loadLocation("Local"); err == nil {
		t.Error("the host's own zone was accepted")
	}
}
