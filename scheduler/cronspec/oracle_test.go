package cronspec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The oracle reads a spec from its canonical text and looks at every second of a
// window. It shares no code with the package but the text.
type oracle struct {
	sets             [6]map[int]bool
	eitherDay        bool
	fixed, fixedHour bool
	gap              GapPolicy
	fold             FoldPolicy
}

func newOracle(expr string, gap GapPolicy, fold FoldPolicy) *oracle {
	texts := strings.Fields(expr)
	if len(texts) == 5 {
		texts = append([]string{"0"}, texts...)
	}
	o := &oracle{gap: gap, fold: fold}
	low, high := [6]int{0, 0, 0, 1, 1, 0}, [6]int{59, 59, 23, 31, 12, 6}
	for i, text := range texts {
		o.sets[i] = map[int]bool{}
		for element := range strings.SplitSeq(text, ",") {
			base, stepText, stepped := strings.Cut(element, "/")
			step := 1
			if stepped {
				step, _ = strconv.Atoi(stepText)
			}
			a, b := low[i], high[i]
			if base != "*" {
				aText, bText, isRange := strings.Cut(base, "-")
				a, _ = strconv.Atoi(aText)
				switch {
				case isRange:
					b, _ = strconv.Atoi(bText)
				case !stepped:
					b = a
				}
			}
			if b < a {
				b += high[i] - low[i] + 1
			}
			for v := a; v <= b; v += step {
				o.sets[i][(v-low[i])%(high[i]-low[i]+1)+low[i]] = true
			}
		}
	}
	star := func(text string) bool { return slices.Contains(strings.Split(text, ","), "*") }
	wild := func(text string) bool { return strings.ContainsAny(text, "*/") }
	o.eitherDay = !star(texts[3]) && !star(texts[5])
	o.fixedHour = !wild(texts[2])
	o.fixed = o.fixedHour && !wild(texts[0]) && !wild(texts[1])
	return o
}

// moment is one second: its instant, and the wall it shows as if that were UTC.
type moment struct {
	instant, wall     int64
	second, min, hour int
	dom, month, dow   int
}

func momentOf(instant int64, local time.Time, offset int) moment {
	return moment{
		instant: instant, wall: instant + int64(offset),
		second: local.Second(), min: local.Minute(), hour: local.Hour(),
		dom: local.Day(), month: int(local.Month()), dow: int(local.Weekday()),
	}
}

func wallMoment(wall int64) moment { return momentOf(0, time.Unix(wall, 0).UTC(), int(wall)) }

func window(loc *time.Location, from, to int64) []moment {
	list := make([]moment, 0, to-from)
	for i := from; i < to; i++ {
		local := time.Unix(i, 0).In(loc)
		_, offset := local.Zone()
		list = append(list, momentOf(i, local, offset))
	}
	return list
}

func (o *oracle) day(m *moment) bool {
	if !o.sets[4][m.month] {
		return false
	}
	if o.eitherDay {
		return o.sets[3][m.dom] || o.sets[5][m.dow]
	}
	return o.sets[3][m.dom] && o.sets[5][m.dow]
}

func (o *oracle) matches(m *moment) bool {
	return o.sets[0][m.second] && o.sets[1][m.min] && o.sets[2][m.hour] && o.day(m)
}

// instants answers for the whole window; near its edges it cannot know what lies outside.
func (o *oracle) instants(window []moment) []int64 {
	first, last := map[int64]int64{}, map[int64]int64{} // of matching walls
	daySeen := map[int64]bool{}
	for i := range window {
		m := &window[i]
		daySeen[floorDay(m.wall)] = true
		if o.matches(m) {
			if _, ok := first[m.wall]; !ok {
				first[m.wall] = m.instant
			}
			last[m.wall] = m.instant
		}
	}
	set := map[int64]bool{}
	for i := range window {
		m := &window[i]
		if o.matches(m) {
			switch {
			case o.fixed && o.fold == FoldFirst:
				set[first[m.wall]] = true
			case o.fixed && o.fold == FoldLast:
				set[last[m.wall]] = true
			default:
				set[m.instant] = true
			}
		}
		if i == 0 || m.wall <= window[i-1].wall+1 || o.gap == GapSkip || !o.fixedHour {
			continue
		}
		gapStart, gapEnd := window[i-1].wall+1, m.wall
		for wall := gapStart; wall < gapEnd; wall++ {
			lost := wallMoment(wall)
			if !o.matches(&lost) || !daySeen[floorDay(wall)] || !o.fixed && !o.allWithin(floorDay(wall), gapStart, gapEnd) {
				continue
			}
			at := m.instant
			if o.gap == GapShift {
				at += wall - gapStart
			}
			landing := wallMoment(m.wall + at - m.instant)
			if o.day(&landing) {
				set[at] = true
			}
		}
	}
	list := make([]int64, 0, len(set))
	for i := range set {
		list = append(list, i)
	}
	slices.Sort(list)
	return list
}

func floorDay(wall int64) int64 { return time.Unix(wall, 0).UTC().Truncate(24 * time.Hour).Unix() }

func (o *oracle) allWithin(dayStart, from, to int64) bool {
	for wall := dayStart; wall < dayStart+24*60*60; wall++ {
		m := wallMoment(wall)
		if o.matches(&m) && (wall < from || wall >= to) {
			return false
		}
	}
	return true
}

// changes are days of clock changes of every kind known.
var changes = []struct{ zone, near string }{
	{"America/New_York", "2026-03-08T07:00:00Z"},
	{"America/New_York", "2026-11-01T06:00:00Z"},
	{"Australia/Lord_Howe", "2026-04-04T15:00:00Z"}, // half an hour
	{"Australia/Lord_Howe", "2026-10-03T15:30:00Z"},
	{"Europe/Berlin", "2026-03-29T01:00:00Z"},
	{"Europe/Berlin", "2026-10-25T01:00:00Z"},
	{"Africa/Cairo", "2026-04-23T22:00:00Z"}, // at midnight
	{"Africa/Cairo", "2026-10-29T21:00:00Z"},
	{"America/Santiago", "2026-04-05T03:00:00Z"}, // southern, back to 23:00
	{"America/Santiago", "2026-09-06T04:00:00Z"},
	{"Asia/Beirut", "2026-03-28T22:00:00Z"}, // at midnight
	{"Asia/Beirut", "2026-10-24T21:00:00Z"},
	{"Pacific/Apia", "2011-12-30T10:00:00Z"},     // a missing day
	{"Antarctica/Troll", "2026-03-29T01:00:00Z"}, // two hours
	{"Antarctica/Troll", "2026-10-25T01:00:00Z"},
	{"America/Nuuk", "2024-03-31T01:00:00Z"},       // 23:00 to midnight
	{"America/St_Johns", "2010-11-07T02:31:00Z"},   // 00:01 back to 23:01
	{"Pacific/Kwajalein", "1969-10-01T00:00:00Z"},  // 23 hours back
	{"America/Metlakatla", "2019-01-20T10:00:00Z"}, // table of package time ends in mid-year
	{"Africa/Monrovia", "1972-01-07T00:44:30Z"},    // a gap of 44:30
}

func changeWindow(t *testing.T, zoneName, near string) (*time.Location, []moment) {
	t.Helper()
	z, err := loadZone(zoneName)
	if err != nil {
		t.Fatal(err)
	}
	middle := at(t, near).Unix()
	w := window(z.loc, middle-36*3600, middle+36*3600)
	if w[0].wall-w[0].instant == w[len(w)-1].wall-w[len(w)-1].instant {
		t.Fatalf("%s has no change of clocks near %s", zoneName, near)
	}
	return z.loc, w
}

var policies = []Options{
	{Gap: GapNextValid, Fold: FoldFirst}, {Gap: GapShift, Fold: FoldLast}, {Gap: GapSkip, Fold: FoldBoth},
}

// compare checks Next, Count and Last against the oracle inside the window.
func compare(t *testing.T, expr string, opts Options, w []moment) {
	t.Helper()
	s := mustParse(t, expr, opts)
	want := newOracle(s.String(), opts.Gap, opts.Fold).instants(w)
	const edge = 5 * 3600
	from, to := w[0].instant+edge, w[len(w)-1].instant-edge
	want = slices.DeleteFunc(want, func(i int64) bool { return i <= from || i > to })
	var got []int64
	for _, i := range between(t, s, time.Unix(from, 0), time.Unix(to, 0)) {
		got = append(got, i.Unix())
	}
	if !slices.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		tell := func(list []int64) string {
			var texts []string
			for _, u := range list[min(i, len(list)):min(i+4, len(list))] {
				texts = append(texts, time.Unix(u, 0).In(s.zone.loc).Format(time.RFC3339))
			}
			return fmt.Sprint(len(list), " instants, from the first difference: ", texts)
		}
		t.Errorf("%q in %s, gap %s, fold %s\n got %s\nwant %s", expr, opts.Zone, opts.Gap, opts.Fold, tell(got), tell(want))
		return
	}
	checkCountAndLast(t, s, from, to, want)
}

// checkCountAndLast compares Count and Last with a complete list of the instants
// in (from, to], at the bounds, at instants, and between them.
func checkCountAndLast(t *testing.T, s *Spec, from, to int64, list []int64) {
	t.Helper()
	if n := s.Count(time.Unix(from, 0), time.Unix(to, 0)); n != int64(len(list)) {
		t.Errorf("%s: Count %d, want %d", s.Marshal(), n, len(list))
	}
	probes := []int64{from, to, (from + to) / 2}
	for i := 0; i < len(list); i += len(list)/40 + 1 {
		probes = append(probes, list[i]-1, list[i], list[i]+1)
	}
	for _, p := range probes {
		p = min(max(p, from), to)
		n, found := slices.BinarySearch(list, p)
		if found {
			n++
		}
		if got := s.Count(time.Unix(from, 0), time.Unix(p, 500)); got != int64(n) {
			t.Errorf("%s: Count to %d is %d, want %d", s.Marshal(), p, got, n)
		}
		if got := s.Count(time.Unix(p, 500), time.Unix(to, 0)); got != int64(len(list)-n) {
			t.Errorf("%s: Count from %d is %d, want %d", s.Marshal(), p, got, len(list)-n)
		}
		last, ok := s.Last(time.Unix(p, 500), time.Unix(from, 0))
		if ok != (n > 0) || ok && last.Unix() != list[n-1] {
			t.Errorf("%s: Last up to %d is %v, %v", s.Marshal(), p, last, ok)
		}
	}
}

// TestOracleOnClockChanges compares hand-picked specs with the oracle, second by
// second, around every change.
func TestOracleOnClockChanges(t *testing.T) {
	specs := []string{
		"30 2 * * *", "30 1 * * *", "0 0 * * *", "30 0 * * *", "30 23 * * *", "59 23 * * *", "15 2 * * *", "45 1 * * *", "0 12 * * *",
		"0,30 1-3 * * *", "0-59 2 * * *", "0-59 23-1 * * *", "7 30 2 * * *", "*/15 2 * * *", "*/10 23,0 * * *", "*/15 0 * * *",
		"*/20 1-2 * * *", "0 */2 * * *", "0 * * * *", "*/15 * * * *", "*/30 23 * * *", "17 */20 * * * *", "*/7 2 2 * * *",
		"30 2 * * sun", "30 23 * * sat", "0 12 30 12 *", "0 2 1 * *", "30 0 * * 0", "0-59/30 0-23 * * *", "10-50 0-59 0 * * *",
	}
	for _, c := range changes {
		t.Run(strings.ReplaceAll(c.zone, "/", "-")+"_"+c.near[:10], func(t *testing.T) {
			_, w := changeWindow(t, c.zone, c.near)
			for _, expr := range specs {
				for _, opts := range policies {
					opts.Zone = c.zone
					compare(t, expr, opts, w)
				}
			}
		})
	}
}

// randomSpec makes an expression that fires often enough to be worth a look.
func randomSpec(r *rand.Rand) string {
	pick := func(low, high int) string {
		a, b := low+r.IntN(high-low+1), low+r.IntN(high-low+1)
		switch r.IntN(5) {
		case 0:
			return fmt.Sprintf("%d,%d", a, b)
		case 1:
			return fmt.Sprintf("%d-%d", a, b) // wraps half of the time
		case 2:
			return fmt.Sprintf("*/%d", 2+r.IntN((high-low)/2))
		default:
			return strconv.Itoa(a)
		}
	}
	orStar := func(chance int, text string) string {
		if r.IntN(chance) > 0 {
			return "*"
		}
		return text
	}
	second := "0"
	if r.IntN(3) == 0 {
		second = pick(0, 59)
	}
	hour := pick(0, 23)
	switch r.IntN(3) {
	case 0:
		hour = pick(0, 3)
	case 1:
		hour = orStar(3, "23")
	}
	return strings.Join([]string{
		second, pick(0, 59), hour, orStar(4, pick(1, 28)), orStar(8, pick(1, 12)), orStar(3, pick(0, 6)),
	}, " ")
}

// TestOracleOnRandomSpecs does the same with made-up specs.
func TestOracleOnRandomSpecs(t *testing.T) {
	const seed = 20260308
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for _, c := range changes {
		_, w := changeWindow(t, c.zone, c.near)
		for range rounds {
			opts := policies[r.IntN(len(policies))]
			opts.Zone = c.zone
			compare(t, randomSpec(r), opts, w)
		}
	}
}
