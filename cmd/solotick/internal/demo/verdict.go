package demo

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

// Report is what the demo found. Ticks, runs and skips are those of cron jobs;
// duplicates and missed count queue jobs as well.
type Report struct {
	Replicas   int     `json:"replicas"`
	Seconds    float64 `json:"seconds"`
	Kills      int     `json:"kills"`
	Ticks      int     `json:"ticks"`      // instants that the schedules give
	Runs       int     `json:"runs"`       // effects of ticks
	Skipped    int     `json:"skipped"`    // ticks recorded as skipped; with the demo's settings none may be
	Duplicates int     `json:"duplicates"` // ticks and queue jobs with more than one effect, and effects nobody asked for
	Missed     int     `json:"missed"`     // ticks and queue jobs without an effect, whose record is none or closed
	Waiting    int     `json:"waiting"`    // ticks and queue jobs without an effect that are recorded as pending or running
	Takeovers  int     `json:"takeovers"`  // runs whose owner was killed, started again by another
}

// Kept reports whether the promise was kept: nothing lost, nothing doubled and
// nothing left to do.
func (r Report) Kept() bool { return r.Duplicates == 0 && r.Missed == 0 && r.Waiting == 0 }

// tally is a Report with the evidence.
type tally struct {
	Report
	doubled, lost, waiting []tickKey
	queuePut, queueRan     int
}

// count compares what was due with what the jobs wrote. What is open in the store
// can still run: it is late, not lost.
func (b *board) count(open []store.Execution) tally {
	recorded := map[tickKey]bool{}
	for _, e := range open {
		recorded[tickKey{job: e.Key.Job, tick: e.Key.Tick, name: e.Key.Name}] = true
	}
	var t tally
	t.Kills, t.Takeovers, t.queuePut = len(b.kills), len(b.takeovers), len(b.put)
	asked := map[tickKey]bool{}
	for job, ticks := range b.due {
		t.Ticks += len(ticks)
		for _, tick := range ticks {
			asked[tickKey{job: job, tick: tick}] = true
		}
	}
	for _, k := range b.put {
		asked[k] = true
	}
	for k := range asked {
		switch {
		case len(b.effects[k]) > 0:
		case recorded[k]:
			t.waiting = append(t.waiting, k)
		default:
			t.lost = append(t.lost, k)
		}
	}
	for k, rows := range b.effects {
		switch {
		case k.tick != 0 && (k.tick <= b.from || k.tick > b.end):
			continue // the jobs go on while the last runs are awaited
		case k.tick != 0:
			t.Runs += len(rows)
		case asked[k]:
			t.queueRan += len(rows)
		}
		if len(rows) > 1 || !asked[k] {
			t.doubled = append(t.doubled, k)
		}
	}
	for _, list := range [][]tickKey{t.doubled, t.lost, t.waiting} {
		slices.SortFunc(list, func(x, y tickKey) int {
			return cmp.Or(cmp.Compare(x.tick, y.tick), strings.Compare(x.job, y.job), strings.Compare(x.name, y.name))
		})
	}
	t.Duplicates, t.Missed, t.Waiting = len(t.doubled), len(t.lost), len(t.waiting)
	return t
}

// tell writes the verdict in plain words.
func (t tally) tell(w io.Writer, b *board) {
	line := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	line("%s ran for %v; %s with SIGKILL.", count(t.Replicas, "replica"), time.Duration(t.Seconds*float64(time.Second)), count(t.Kills, "was killed", "were killed"))
	line("%s due, %d ran. %s put, %d ran.", count(t.Ticks, "tick was", "ticks were"), t.Runs, count(t.queuePut, "queue job was", "queue jobs were"), t.queueRan)
	if t.Takeovers > 0 {
		line("%s by a kill and taken over, after %.1fs at most (the lease is %v).",
			count(t.Takeovers, "run was interrupted", "runs were interrupted"), b.slowest().Seconds(), lease)
	}
	if t.Skipped > 0 {
		line("%s recorded as skipped.", count(t.Skipped, "tick was", "ticks were"))
	}
	var shares []string
	for _, n := range sortedKeys(b.byReplica) {
		shares = append(shares, fmt.Sprintf("%d by replica %d", b.byReplica[n], n))
	}
	if len(shares) > 0 {
		line("The effects: %s.", strings.Join(shares, ", "))
	}
	evidence := func(what string, list []tickKey) {
		if len(list) == 0 {
			return
		}
		const shown = 10
		names := make([]string, 0, shown)
		for _, k := range list[:min(len(list), shown)] {
			names = append(names, k.String())
		}
		more := ""
		if len(list) > shown {
			more = fmt.Sprintf(" and %d more", len(list)-shown)
		}
		line("%s: %s%s", what, strings.Join(names, ", "), more)
	}
	evidence("Without effect", t.lost)
	evidence("Recorded and still waiting", t.waiting)
	evidence("With more than one effect, or asked for by nobody", t.doubled)
	waiting := count(t.Waiting, "run is", "runs are") + " recorded and still waiting"
	switch {
	case t.Kept():
		line("KEPT: nothing was lost and nothing ran twice.")
	case t.Missed == 0 && t.Duplicates == 0:
		line("LATE: nothing was lost and nothing ran twice, but %s.", waiting)
	default:
		line("BROKEN: %d lost, %d doubled; %s.", t.Missed, t.Duplicates, waiting)
	}
}

// count is a number with its noun (and verb), in the plural where that is due.
func count(n int, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	if len(many) > 0 {
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func sortedKeys(m map[int]int) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// skips counts the ticks of cron jobs that the store has as skipped.
func skips(rows []store.Execution, ranges []store.TickRange, from, end store.Millis) int {
	n := 0
	for _, e := range rows {
		if e.Key.Class == store.ClassCron && e.State == store.StateSkipped && e.Key.Tick > from && e.Key.Tick <= end {
			n++
		}
	}
	for _, r := range ranges {
		if r.State == store.StateSkipped && r.From > from && r.To <= end {
			n += int(r.Count)
		}
	}
	return n
}
