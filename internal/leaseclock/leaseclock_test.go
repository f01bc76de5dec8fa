package leaseclock

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestElapsedFollowsTheBubblesClock(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		start := Now()
		time.Sleep(3 * time.Second)
		if got := start.Elapsed(); got != 3*time.Second {
			t.Fatalf("Elapsed = %v, want 3s exactly", got)
		}
	})
}

func TestSuspensionCountsAsElapsed(t *testing.T) {
	start := Now()
	later := Instant{at: start.at.Add(2 * time.Second), lead: start.lead + time.Hour}
	if got := later.Since(start); got != time.Hour+2*time.Second {
		t.Fatalf("Since = %v, want the hour of suspension counted", got)
	}
	later.lead = start.lead + noise
	if got := later.Since(start); got != 2*time.Second {
		t.Fatalf("Since = %v, want reading noise left out", got)
	}
	later.lead = start.lead - time.Hour
	if got := later.Since(start); got != 2*time.Second {
		t.Fatalf("Since = %v, want no time given back", got)
	}
}

func TestLeadIsSteady(t *testing.T) {
	first := Now()
	for range 10_000 {
		if got := Now().lead - first.lead; got > noise || got < -noise {
			t.Fatalf("the lead moved by %v without suspension", got)
		}
	}
}

// A lease that counts from Start never looks younger than one that counts from Now.
func TestStartIsNeverLater(t *testing.T) {
	for range 100 {
		before := Now()
		if late := Start().lead - before.lead; late > noise {
			t.Fatalf("the lead of Start is %v ahead", late)
		}
	}
	synctest.Test(t, func(*testing.T) {
		start := Start()
		time.Sleep(time.Hour)
		if got := start.Elapsed(); got != time.Hour {
			t.Fatalf("Elapsed = %v, want 1h exactly", got)
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		sent := Now()
		d := NewDeadline(sent, 10*time.Second, 102*time.Millisecond)
		if got := d.Remaining(); got != 9898*time.Millisecond || d.Expired() {
			t.Fatalf("Remaining = %v, Expired = %v", got, d.Expired())
		}
		if got := d.Time(); !got.Equal(sent.Time().Add(9898 * time.Millisecond)) {
			t.Fatalf("Time = %v", got)
		}
		time.Sleep(9898*time.Millisecond - 1)
		if d.Expired() {
			t.Fatal("expired a nanosecond early")
		}
		time.Sleep(time.Nanosecond)
		if !d.Expired() {
			t.Fatal("not expired at its time")
		}
		if old := NewDeadline(sent.Add(-time.Minute), 10*time.Second, 0); !old.Expired() {
			t.Fatal("a lease sent a minute ago has not expired")
		}
	})
	if !(Deadline{}).Expired() {
		t.Fatal("the zero Deadline has not expired")
	}
	if !NewDeadline(Now(), time.Second, time.Hour).Expired() {
		t.Fatal("a margin above the TTL leaves time")
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		_ = Now()
	}
}
