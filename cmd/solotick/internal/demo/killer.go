package demo

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

// killer decides when to kill whom. A kill is due at fixed intervals, and put off
// for a moment where that lets it hit the longer job in progress: those are the
// kills that show something.
type killer struct {
	every  time.Duration // 0: never
	next   store.Millis
	cutoff store.Millis // no kill after this
}

// wellUnderWay is how long a run of the longer job goes on before it is worth
// killing.
const wellUnderWay = 200 * time.Millisecond

// lastKill is how long before the end the last kill comes: what it interrupts has
// to be taken over and run before the time for the last runs is over, on a busy
// machine as well.
const lastKill = 1500 * time.Millisecond

func newKiller(every time.Duration, from, end store.Millis) killer {
	return killer{every: every, next: from.Add(every), cutoff: end.Add(-lastKill)}
}

// putOff is the longest time by which a kill is put off.
func (k *killer) putOff() time.Duration { return min(k.every*4/5, 4*time.Second) }

// choose returns the replica to kill now, or nil.
func (k *killer) choose(now store.Millis, s *show) *replica {
	if k.every == 0 || now < k.next || k.next > k.cutoff {
		return nil
	}
	var busy, long *replica
	for _, e := range s.running {
		r := s.fleet.byPid(ownerPid(e))
		if r == nil {
			continue
		}
		busy = r
		if e.Key.Job == longJob && now.Sub(e.Started) >= wellUnderWay {
			long = r
		}
	}
	latest := min(k.next.Add(k.putOff()), k.cutoff)
	switch {
	case long != nil:
		busy = long
	case now < latest && k.worthWaiting(now, latest, s):
		return nil
	case busy == nil:
		alive := make([]*replica, 0, len(s.fleet.all))
		for _, r := range s.fleet.all {
			if !r.gone() {
				alive = append(alive, r)
			}
		}
		if len(alive) == 0 {
			return nil
		}
		busy = alive[rand.N(len(alive))]
	}
	k.next = k.next.Add(k.every)
	return busy
}

// worthWaiting reports whether the longer job will be well under way before the
// kill must come: its next tick is near, or it has just started.
func (k *killer) worthWaiting(now, latest store.Millis, s *show) bool {
	const late = 300 * time.Millisecond // what a start takes on a busy machine
	for _, e := range s.running {
		if e.Key.Job == longJob && e.Started.Add(wellUnderWay) <= latest && s.fleet.byPid(ownerPid(e)) != nil {
			return true
		}
	}
	last := store.Millis(0)
	for _, tick := range s.board.due[longJob] {
		if tick <= now {
			last = tick
		}
	}
	if last != 0 && len(s.board.effects[tickKey{job: longJob, tick: last}]) == 0 {
		return true // due and not done: it is about to start, here or there
	}
	next := s.board.nextDue(longJob, now)
	return next != 0 && next.Add(wellUnderWay+late) <= latest
}

// ownerPid reads the process out of the label that the replicas sign with.
func ownerPid(e store.Execution) int {
	_, pid, _ := strings.Cut(e.OwnerLabel, ":")
	n, _ := strconv.Atoi(pid) // 0 is nobody's
	return n
}
