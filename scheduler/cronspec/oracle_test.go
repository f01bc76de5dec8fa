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
	sets             [6][64]bool
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
	instant, wall   int64
	second, min     uint8
	hour            uint8
	dom, month, dow uint8
}

func momentOf(instant int64, local time.Time, offset int) moment {
	hour, minute, second := local.Clock()
	_, month, dom := local.Date()
	return moment{
		instant: instant, wall: instant + int64(offset), second: uint8(second), min: uint8(minute), hour: uint8(hour),
		dom: uint8(dom), month: uint8(month), dow: uint8(local.Weekday()),
	}
}

func wallMoment(wall int64) moment { return momentOf(0, time.Unix(wall, 0).UTC(), int(wall)) }

// scene is a run of seconds around a change, indexed so that most need not be read.
type scene struct {
	moments  []moment
	bySecond [60][]int      // of the wall
	gaps     []int          // moments before which walls are left out
	days     map[int64]bool // that exist, at least in part
}

func newScene(loc *time.Location, from, to int64) *scene {
	s := &scene{moments: make([]moment, 0, to-from), days: map[int64]bool{}}
	for i := from; i < to; i++ {
		local := time.Unix(i, 0).In(loc)
		_, offset := local.Zone()
		m := momentOf(i, local, offset)
		n := len(s.moments)
		if n > 0 && m.wall > s.moments[n-1].wall+1 {
			s.gaps = append(s.gaps, n)
		}
		s.bySecond[m.second] = append(s.bySecond[m.second], n)
		s.days[floorDay(m.wall)] = true
		s.moments = append(s.moments, m)
	}
	return s
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

// instants answers for the whole scene; near its edges it cannot know what lies outside.
func (o *oracle) instants(sc *scene) []int64 {
	first, last := map[int64]int64{}, map[int64]int64{} // of matching walls
	var matching []*moment
	for second, list := range sc.bySecond {
		if !o.sets[0][second] {
			continue
		}
		for _, i := range list {
			m := &sc.moments[i]
			if o.matches(m) {
				matching = append(matching, m)
				if _, ok := first[m.wall]; !ok {
					first[m.wall] = m.instant
				}
				last[m.wall] = m.instant
			}
		}
	}
	set := map[int64]bool{}
	for _, m := range matching {
		switch {
		case o.fixed && o.fold == FoldFirst:
			set[first[m.wall]] = true
		case o.fixed && o.fold == FoldLast:
			set[last[m.wall]] = true
		default:
			set[m.instant] = true
		}
	}
	for _, i := range sc.gaps {
		if o.gap == GapSkip || !o.fixedHour {
			continue
		}
		m := &sc.moments[i]
		gapStart, gapEnd := sc.moments[i-1].wall+1, m.wall
		whole := map[int64]bool{} // days with every time in the gap
		for wall := gapStart; wall < gapEnd; wall++ {
			lost := wallMoment(wall)
			if !o.matches(&lost) || !sc.days[floorDay(wall)] {
				continue
			}
			if _, known := whole[floorDay(wall)]; !known && !o.fixed {
				whole[floorDay(wall)] = o.allWithin(floorDay(wall), gapStart, gapEnd)
			}
			if !o.fixed && !whole[floorDay(wall)] {
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

// allWithin reports whether every time of a matching day lies in [from, to).
func (o *oracle) allWithin(dayStart, from, to int64) bool {
	for second := range int64(24 * 60 * 60) {
		due := o.sets[0][second%60] && o.sets[1][second/60%60] && o.sets[2][second/3600]
		if wall := dayStart + second; due && (wall < from || wall >= to) {
			return false
		}
	}
	return true
}

// changes are days of clock changes of every kind known.
var changes = []struct{ zone, at string }{
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
	{"Pacific/Kwajalein", "1969-09-30T13:00:00Z"},  // 23 hours back
	{"America/Metlakatla", "2019-01-20T10:00:00Z"}, // table of package time ends in mid-year
	{"Africa/Monrovia", "1972-01-07T00:44:30Z"},    // a gap of 44:30
}

// changeScene returns the seconds around a change: enough of them to see both
// passes of what it repeats.
func changeScene(t *testing.T, zoneName, near string) *scene {
	t.Helper()
	z, err := loadZone(zoneName)
	if err != nil {
		t.Fatal(err)
	}
	middle := at(t, near).Unix()
	size := offsetAt(z.loc, middle) - offsetAt(z.loc, middle-1)
	if size == 0 {
		t.Fatalf("%s has no change of clocks at %s", zoneName, near)
	}
	half := max(size, -size) + 6*3600
	return newScene(z.loc, middle-half, middle+half)
}

var policies = []Options{
	{Gap: GapNextValid, Fold: FoldFirst}, {Gap: GapShift, Fold: FoldLast}, {Gap: GapSkip, Fold: FoldBoth},
}

// compare checks Next, Count and Last against the oracle inside the window.
func compare(t *testing.T, expr string, opts Options, sc *scene) {
	t.Helper()
	s := mustParse(t, expr, opts)
	want := newOracle(s.String(), opts.Gap, opts.Fold).instants(sc)
	const edge = 4 * 3600
	from, to := sc.moments[0].instant+edge, sc.moments[len(sc.moments)-1].instant-edge
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

// TestOracleOnClockChanges compares hand-picked and made-up specs with the oracle,
// second by second, around every change.
func TestOracleOnClockChanges(t *testing.T) {
	specs := []string{
		"30 2 * * *", "30 1 * * *", "0 0 * * *", "30 0 * * *", "30 23 * * *", "59 23 * * *", "15 2 * * *", "45 1 * * *", "0 12 * * *",
		"0,30 1-3 * * *", "0-59 2 * * *", "0-59 23-1 * * *", "7 30 2 * * *", "*/15 2 * * *", "*/10 23,0 * * *", "*/15 0 * * *",
		"*/20 1-2 * * *", "0 */2 * * *", "0 * * * *", "*/15 * * * *", "*/30 23 * * *", "17 */20 * * * *", "*/7 2 2 * * *",
		"30 2 * * sun", "30 23 * * sat", "0 12 30 12 *", "0 2 1 * *", "0 1-2/1 * * *", "30 0 * * 0", "0-59/30 0-23 * * *", "10-50 0-59 0 * * *",
	}
	const seed = 20260308
	rounds := 60
	if testing.Short() {
		rounds = 5
	}
	for n, c := range changes {
		t.Run(strings.ReplaceAll(c.zone, "/", "-")+"_"+c.at[:10], func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			sc := changeScene(t, c.zone, c.at)
			for _, opts := range policies {
				opts.Zone = c.zone
				for _, expr := range specs {
					compare(t, expr, opts, sc)
				}
				for range rounds / len(policies) {
					compare(t, randomSpec(r), opts, sc)
				}
			}
		})
	}
}
