package locks

import (
	"time"

	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/internal/mutation"
)

// alarm is a timer that is set for the first of many moments. The Locker's mu guards
// it.
type alarm struct {
	timer *time.Timer
	at    time.Time // when it fires; zero if it does not
}

// fireAt makes the alarm call f at t at the latest, in a goroutine of its own.
func (a *alarm) fireAt(t time.Time, f func()) {
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(t), f)
	} else {
		a.timer.Reset(time.Until(t))
	}
}

// fired notes that the alarm is to be set anew.
func (a *alarm) fired() { a.at = time.Time{} }

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.at = time.Time{}
}

// guardAt makes the guard look at t at the latest. It ends grants at their deadlines
// whatever their renewal is doing: a runtime timer, which waits for no goroutine of
// ours and for no I/O. One serves all grants, since one for each would cost as much
// memory as the rest of the grant. It is not moved when a renewal moves a deadline, but
// looks in vain then, about once a TTL. The caller holds mu.
func (l *Locker) guardAt(t time.Time) {
	if mutation.On("lock-guard-timer") {
		return
	}
	l.guard.fireAt(t, l.guardFired)
}

// guardFired ends the grants whose deadline has come.
func (l *Locker) guardFired() {
	var lost []ending
	l.mu.Lock()
	l.guard.fired()
	now := leaseclock.Now()
	var next time.Duration                    // to the first deadline to come
	for i := len(l.grants) - 1; i >= 0; i-- { //nolint:modernize // lose shortens the slice and moves the last one
		g := l.grants[i]
		left := g.deadline.At(now)
		if left <= 0 {
			lost = append(lost, l.lose(g, ReasonUnavailable))
		} else if next == 0 || left < next {
			next = left
		}
	}
	if next > 0 {
		l.guardAt(now.Time().Add(next))
	}
	l.mu.Unlock()
	tellAll(lost)
}
