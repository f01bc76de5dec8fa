package leaseclock

import "time"

// noise is the growth of the lead that is put down to the clocks being read one
// after the other, and not to suspension.
const noise = time.Millisecond

// Instant is a moment on this machine. Only instants of one process compare. The
// zero Instant lies before all others.
type Instant struct {
	at   time.Time     // with Go's monotonic reading
	lead time.Duration // of the clock that counts suspension
}

// Now returns the present instant.
func Now() Instant {
	at := time.Now()
	return Instant{at: at, lead: lead(at)}
}

// Start returns the present instant for a lease to count from. It is cheaper than Now:
// the lead may be one that was measured within the last second of Go's clock. If the
// machine was suspended since then, the lease looks older than it is, never younger.
func Start() Instant {
	at := time.Now()
	if lead, ok := recentLead(at); ok {
		return Instant{at: at, lead: lead}
	}
	return Instant{at: at, lead: lead(at)}
}

// recent is how old, by Go's clock, the lead of a Start may be.
const recent = time.Second

// Elapsed is the time since i, suspension included.
func (i Instant) Elapsed() time.Duration { return Now().Since(i) }

// Since is the time from earlier to i, suspension included.
func (i Instant) Since(earlier Instant) time.Duration {
	d := i.at.Sub(earlier.at)
	if grown := i.lead - earlier.lead; grown > noise {
		d += grown
	}
	return d
}

// Add returns the instant d after i, or before it if d is negative.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{at: i.at.Add(d), lead: i.lead}
}

// Time returns i as a time.Time, for people and for timers.
func (i Instant) Time() time.Time { return i.at }

// Deadline is the end of a lease as its holder must see it. The zero Deadline
// has expired. A Deadline is an immutable value.
type Deadline struct {
	sent Instant
	life time.Duration
}

// NewDeadline returns the deadline of a lease of length ttl that was asked for
// at sent, the moment before the request left, less margin for the drift between
// the two clocks.
func NewDeadline(sent Instant, ttl, margin time.Duration) Deadline {
	return Deadline{sent: sent, life: ttl - margin}
}

// Remaining is the time left; zero or negative once the deadline has passed.
func (d Deadline) Remaining() time.Duration { return d.At(Now()) }

// At is the time left at now.
func (d Deadline) At(now Instant) time.Duration {
	if d.life <= 0 {
		return 0
	}
	return d.life - now.Since(d.sent)
}

// Expired reports whether the deadline has passed.
func (d Deadline) Expired() bool { return d.Remaining() <= 0 }

// Time is when the deadline falls if the machine is not suspended before. The
// zero Deadline has the zero time.
func (d Deadline) Time() time.Time { return d.sent.at.Add(d.life) }
