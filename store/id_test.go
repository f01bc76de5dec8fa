package store_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/store"
)

func TestIDs(t *testing.T) {
	now := store.MillisOf(time.Now())
	seen, last := map[store.ID]bool{}, ""
	for range 1000 {
		id := store.NewID(now)
		if seen[id] {
			t.Fatalf("%s was made twice", id)
		}
		if id.String() < last {
			t.Fatalf("%s was made after %s", id, last)
		}
		seen[id], last = true, id.String()
	}
	// IDs of later instants come later, in bytes and in text.
	var ids []store.ID
	for _, at := range []store.Millis{0, 1, 255, 256, 1 << 16, now - 1, now, now + 1, 1<<48 - 1} {
		ids = append(ids, store.NewID(at))
	}
	if !slices.IsSortedFunc(ids, func(a, b store.ID) int { return bytes.Compare(a[:], b[:]) }) {
		t.Errorf("not in the order of their instants: %v", ids)
	}
	if !slices.IsSortedFunc(ids, func(a, b store.ID) int { return strings.Compare(a.String(), b.String()) }) {
		t.Errorf("not in the order of their instants, as text: %v", ids)
	}
	if a, b := store.NewOwner(), store.NewOwner(); a == b {
		t.Error("two owners are one")
	}
	if s := store.NewOwner().String(); len(s) != 32 || strings.ToLower(s) != s {
		t.Errorf("owner %q is not 32 hex digits in lower case", s)
	}
}

func TestParseID(t *testing.T) {
	id := store.NewID(1_767_225_600_000)
	for _, s := range []string{id.String(), strings.ToUpper(id.String())} {
		if got, err := store.ParseID(s); err != nil || got != id {
			t.Errorf("ParseID(%q): %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "7", id.String()[1:], id.String() + "0", "g" + id.String()[1:], " " + id.String()[1:]} {
		if got, err := store.ParseID(s); err == nil || got != (store.ID{}) || !strings.Contains(err.Error(), "execution id") {
			t.Errorf("ParseID(%q): %v, %v", s, got, err)
		}
	}
}

func TestMillis(t *testing.T) {
	zone := time.FixedZone("east", 5*3600+45*60)
	at := time.Date(2026, 11, 1, 5, 30, 0, 123_999_999, zone)
	m := store.MillisOf(at)
	if got, want := m.String(), "2026-10-31T23:45:00.123Z"; got != want {
		t.Errorf("String: got %s, want %s: cut to the millisecond, in UTC", got, want)
	}
	if got := m.Time(); !got.Equal(at.Truncate(time.Millisecond)) || got.Location() != time.UTC {
		t.Errorf("Time: got %v", got)
	}
	if store.MillisOf(m.Time()) != m {
		t.Error("an instant does not survive Time and back")
	}
	if got := m.Add(1500*time.Microsecond) - m; got != 1 {
		t.Errorf("Add: got %d ms for 1.5 ms", got)
	}
	if got := m.Add(-time.Hour).Sub(m); got != -time.Hour {
		t.Errorf("Sub: got %v", got)
	}
	if got := store.Millis(-1).Time(); got.Year() != 1969 {
		t.Errorf("before the epoch: got %v", got)
	}
}

func TestHashArgs(t *testing.T) {
	if !store.HashArgs(nil).IsZero() || !store.HashArgs([]byte{}).IsZero() {
		t.Error("the fingerprint of no args is not zero")
	}
	if store.HashArgs([]byte{0}).IsZero() || store.HashArgs([]byte("a")) == store.HashArgs([]byte("b")) {
		t.Error("different args have one fingerprint")
	}
	if (store.Hash{1}).IsZero() || !(store.Hash{}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

// FuzzHashOf: however a string is cut into parts, another cut, another order or
// another domain has another hash.
func FuzzHashOf(f *testing.F) {
	f.Add("abc", uint8(1), uint8(2))
	f.Add("", uint8(0), uint8(0))
	f.Add("a\x00b\x00\x00\x00\x00\x00\x00\x00\x01", uint8(2), uint8(9))
	f.Add("run/v1", uint8(3), uint8(3))
	f.Fuzz(func(t *testing.T, s string, i, j uint8) {
		a, b := min(int(i), len(s)), min(int(j), len(s))
		first := []string{s[:a], s[a:]}
		for _, other := range [][]string{{s}, {s[:b], s[b:]}, {s[a:], s[:a]}, {s, ""}, {"", s}, {s[:a], s[a:], ""}, {s[:a] + s[a:]}} {
			same := slices.Equal(first, other)
			if got := store.HashOf("d", first...) == store.HashOf("d", other...); got != same {
				t.Errorf("%q and %q: one hash is %v", first, other, got)
			}
		}
		if store.HashOf("d", first...) == store.HashOf("e", first...) || store.HashOf("d", s) == store.HashOf("d"+s) {
			t.Errorf("domains of %q run together", s)
		}
	})
}
