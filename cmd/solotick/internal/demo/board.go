package demo

import (
	"time"

	"github.com/solotick/solotick/store"
)

// board is what is known of the demo: what was due, what the jobs wrote, and whom
// the demo killed. It belongs to one goroutine.
type board struct {
	from, end store.Millis
	due       map[string][]store.Millis // ticks of each cron job in (from, end]
	put       []tickKey                 // queue jobs
	effects   map[tickKey][]entry
	starts    map[tickKey][]entry
	byReplica map[int]int // effects
	kills     []kill
	takeovers []takeover
}

// kill is a replica ended by SIGKILL.
type kill struct {
	replica, pid int
	at           store.Millis
	during       []tickKey // runs in progress, as the store had it
}

// takeover is a run that went on elsewhere after its owner had been killed.
type takeover struct {
	run   tickKey
	from  int // replica
	by    entry
	after time.Duration // from the kill to the next start
}

func newBoard(from, end store.Millis) (*board, error) {
	b := &board{
		from: from, end: end, due: map[string][]store.Millis{},
		effects: map[tickKey][]entry{}, starts: map[tickKey][]entry{}, byReplica: map[int]int{},
	}
	for _, j := range cronJobs {
		ticks, err := j.due(from, end)
		if err != nil {
			return nil, err
		}
		b.due[j.name] = ticks
	}
	return b, nil
}

// addStart notes a start; the answer is the takeover that it is, or nil.
func (b *board) addStart(e entry) *takeover {
	k := e.tick()
	before := b.starts[k]
	b.starts[k] = append(before, e)
	for _, s := range before {
		if s.Attempt >= e.Attempt || s.Pid == e.Pid {
			continue
		}
		for _, dead := range b.kills {
			if dead.pid == s.Pid && s.AtMs <= dead.at && !b.told(k, s.Attempt) {
				t := takeover{run: k, from: s.Replica, by: e, after: e.AtMs.Sub(dead.at)}
				b.takeovers = append(b.takeovers, t)
				return &t
			}
		}
	}
	return nil
}

// told reports whether the end of this attempt was already followed by a takeover.
func (b *board) told(k tickKey, attempt int) bool {
	for _, t := range b.takeovers {
		if t.run == k && t.by.Attempt > attempt {
			return true
		}
	}
	return false
}

func (b *board) addEffect(e entry) {
	b.effects[e.tick()] = append(b.effects[e.tick()], e)
	b.byReplica[e.Replica]++
}

// owed are the runs that have no effect yet, of ticks due until now.
func (b *board) owed(now store.Millis) []tickKey {
	var owed []tickKey
	for _, j := range cronJobs {
		for _, tick := range b.due[j.name] {
			if k := (tickKey{job: j.name, tick: tick}); tick <= now && len(b.effects[k]) == 0 {
				owed = append(owed, k)
			}
		}
	}
	for _, k := range b.put {
		if len(b.effects[k]) == 0 {
			owed = append(owed, k)
		}
	}
	return owed
}

// dueBy counts the job's ticks until now.
func (b *board) dueBy(job string, now store.Millis) int {
	n := 0
	for _, tick := range b.due[job] {
		if tick <= now {
			n++
		}
	}
	return n
}

// ranOf counts the runs of the job that had an effect.
func (b *board) ranOf(job string) int {
	n := 0
	for k := range b.effects {
		if k.job == job && (k.tick == 0 || k.tick > b.from && k.tick <= b.end) {
			n++
		}
	}
	return n
}

// nextDue is the job's first tick after an instant; 0 if there is none.
func (b *board) nextDue(job string, after store.Millis) store.Millis {
	for _, tick := range b.due[job] {
		if tick > after {
			return tick
		}
	}
	return 0
}

// slowest is the longest time between a kill and the next start of what it
// interrupted.
func (b *board) slowest() time.Duration {
	var d time.Duration
	for _, t := range b.takeovers {
		d = max(d, t.after)
	}
	return d
}
