package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/store"
)

const from = store.Millis(1_800_000_000_400)

// kept is a board of 10 s on which everything ran once.
func kept(t *testing.T) *board {
	t.Helper()
	b, err := newBoard(from, from.Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	id := int64(0)
	for _, j := range cronJobs {
		for _, tick := range b.due[j.name] {
			id++
			b.addEffect(entry{ID: id, Job: j.name, TickMs: tick, Attempt: 1, Replica: int(id%3) + 1})
		}
	}
	for _, name := range []string{"a", "b"} {
		k := tickKey{job: queueKind, name: name}
		b.put = append(b.put, k)
		b.addEffect(entry{Job: k.job, Name: k.name, Attempt: 1, Replica: 1})
	}
	return b
}

func TestLongJobsPeriodLeavesRoomForATakeover(t *testing.T) {
	b, err := newBoard(from, from.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	ticks := b.due[longJob]
	if period := ticks[1].Sub(ticks[0]); period <= reportTakes+lease+takeoverSlack {
		t.Errorf("period %v is not above run %v + lease %v + %v", period, reportTakes, lease, takeoverSlack)
	}
}

func TestCountOfAKeptPromise(t *testing.T) {
	b := kept(t)
	got := b.count(nil)
	// Three jobs every second and one every 6 s, in the 10 s from 0.4 s past a full minute.
	if got.Ticks != 31 || got.Runs != 31 || got.queuePut != 2 || got.queueRan != 2 || !got.Kept() {
		t.Errorf("%+v", got)
	}
	if owed := b.owed(b.end); len(owed) != 0 {
		t.Errorf("owed: %v", owed)
	}
	var words strings.Builder
	got.Replicas, got.Seconds = 3, 10
	got.tell(&words, b)
	if !strings.Contains(words.String(), "KEPT: nothing was lost and nothing ran twice.") {
		t.Error(words.String())
	}
}

func TestCountOfBrokenPromises(t *testing.T) {
	first := func(b *board, job string) tickKey { return tickKey{job: job, tick: b.due[job][0]} }
	for name, test := range map[string]struct {
		harm                     func(b *board)
		runs, duplicates, missed int
	}{
		"lost tick":    {func(b *board) { delete(b.effects, first(b, "pulse")) }, 30, 0, 1},
		"doubled tick": {func(b *board) { k := first(b, longJob); b.addEffect(entry{Job: k.job, TickMs: k.tick, Attempt: 2}) }, 32, 1, 0},
		"tick that no schedule gives": {func(b *board) {
			b.addEffect(entry{Job: "pulse", TickMs: b.due["pulse"][0] + 1, Attempt: 1})
		}, 32, 1, 0},
		"lost queue job":    {func(b *board) { delete(b.effects, b.put[0]) }, 31, 0, 1},
		"doubled queue job": {func(b *board) { b.addEffect(entry{Job: queueKind, Name: "a", Attempt: 2}) }, 31, 1, 0},
		"tick after the end": {func(b *board) {
			b.addEffect(entry{Job: "pulse", TickMs: b.end.Add(time.Second), Attempt: 1})
		}, 31, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := kept(t)
			test.harm(b)
			got := b.count(nil)
			if got.Runs != test.runs || got.Duplicates != test.duplicates || got.Missed != test.missed {
				t.Errorf("%+v", got)
			}
			var words strings.Builder
			got.tell(&words, b)
			if broken := strings.Contains(words.String(), "BROKEN"); broken == got.Kept() {
				t.Error(words.String())
			}
		})
	}
}

func TestTakeoverIsToldOncePerKill(t *testing.T) {
	b := kept(t)
	tick := b.due[longJob][0]
	start := func(attempt, pid int, at store.Millis) *takeover {
		return b.addStart(entry{Job: longJob, TickMs: tick, Attempt: attempt, Pid: pid, Replica: pid, AtMs: at})
	}
	if start(1, 1, tick) != nil {
		t.Error("a first start is no takeover")
	}
	b.kills = append(b.kills, kill{replica: 1, pid: 1, at: tick + 500})
	if got := start(2, 2, tick+2600); got == nil || got.after != 2100*time.Millisecond || got.from != 1 {
		t.Errorf("%+v", got)
	}
	if start(3, 3, tick+3000) != nil {
		t.Error("an attempt after one that was not killed is no takeover")
	}
	b.kills = append(b.kills, kill{replica: 3, pid: 3, at: tick + 3100})
	if start(4, 2, tick+5000) == nil || b.slowest() != 2100*time.Millisecond {
		t.Errorf("the second takeover is missing, or is not %v at most", b.slowest())
	}
	if got := b.count(nil); got.Takeovers != 2 || got.Kills != 2 {
		t.Errorf("%+v", got)
	}
}

func TestARecordedRunIsLateAndNotLost(t *testing.T) {
	for _, state := range []store.State{store.StatePending, store.StateRunning} {
		b := kept(t)
		k := b.put[0]
		delete(b.effects, k)
		got := b.count([]store.Execution{{Key: store.Key{Class: store.ClassKey, Job: k.job, Name: k.name}, State: state}})
		if got.Missed != 0 || got.Waiting != 1 || got.Kept() {
			t.Errorf("%+v", got)
		}
		var words strings.Builder
		got.tell(&words, b)
		if !strings.Contains(words.String(), "LATE: nothing was lost and nothing ran twice, but 1 run is recorded and still waiting.") {
			t.Error(words.String())
		}
	}
}
