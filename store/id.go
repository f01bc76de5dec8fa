package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"time"
)

// Millis is an instant in milliseconds since the Unix epoch, UTC. Ticks, leases
// and run times are kept in it, because it is one number everywhere: no zone, no
// rounding, no difference between databases.
type Millis int64

// MillisOf is t cut to the millisecond.
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time is the instant in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add is the instant d later, cut to the millisecond.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }

// Sub is the time from o to m.
func (m Millis) Sub(o Millis) time.Duration { return time.Duration(m-o) * time.Millisecond }

// String is the instant in RFC 3339 with milliseconds, UTC.
func (m Millis) String() string { return m.Time().Format("2006-01-02T15:04:05.000Z07:00") }

// ID names an execution: 48 bits of time, 80 of chance, so that rows arrive in
// index order and no database has to make them.
type ID [16]byte

// latest is the last ID that this process made, so that the next one of the same
// millisecond can follow it.
var latest struct {
	sync.Mutex
	at Millis
	id ID
}

// NewID makes an ID for the given instant. IDs that a process makes one after the
// other for one millisecond rise, too.
func NewID(at Millis) ID {
	latest.Lock()
	defer latest.Unlock()
	if at == latest.at && latest.id != (ID{}) {
		// A random step keeps the next ID hard to guess; 80 bits do not run over.
		low := binary.BigEndian.Uint64(latest.id[8:])
		next := low + 1 + mrand.Uint64N(1<<32)
		binary.BigEndian.PutUint64(latest.id[8:], next)
		if next < low {
			high := binary.BigEndian.Uint16(latest.id[6:8])
			binary.BigEndian.PutUint16(latest.id[6:8], high+1)
		}
		return latest.id
	}
	var id ID
	binary.BigEndian.PutUint64(id[:8], uint64(at)<<16)
	rand.Read(id[6:]) // never fails since Go 1.24
	id[6] &= 0x7f     // room for the carry
	latest.at, latest.id = at, id
	return id
}

// ParseID reads the form that String prints.
func ParseID(s string) (ID, error) {
	var id ID
	if len(s) != 2*len(id) {
		return ID{}, fmt.Errorf("store: %q is not an execution id: want %d hex digits", s, 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return ID{}, fmt.Errorf("store: %q is not an execution id: %w", s, err)
	}
	return id, nil
}

// String is the ID in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Owner is the identity of one process start: 128 random bits. Host name and
// process id are labels and never decide anything.
type Owner [16]byte

// NewOwner draws an owner.
func NewOwner() Owner {
	var o Owner
	rand.Read(o[:])
	return o
}

// String is the owner in lower-case hex.
func (o Owner) String() string { return hex.EncodeToString(o[:]) }

// Hash is a SHA-256 over length-prefixed parts. The zero Hash stands for "none"
// and is stored as NULL.
type Hash [sha256.Size]byte

// IsZero reports whether the hash stands for "none".
func (h Hash) IsZero() bool { return h == Hash{} }

// String is the hash in lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// HashArgs is the fingerprint of a run's arguments; zero for none.
func HashArgs(args []byte) Hash {
	if len(args) == 0 {
		return Hash{}
	}
	return HashOf("args", string(args))
}

// HashOf hashes a domain and parts. Length prefixes keep ("a","bc") and ("ab","c")
// apart, whatever bytes the parts hold.
func HashOf(domain string, parts ...string) Hash {
	d := sha256.New()
	var n [8]byte
	write := func(s string) {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		d.Write(n[:])
		d.Write([]byte(s))
	}
	write("solotick/" + domain + "/v1")
	for _, p := range parts {
		write(p)
	}
	return Hash(d.Sum(nil))
}
