package zklock

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

func TestNamesAreOneToOne(t *testing.T) {
	seen := make(map[string]string)
	for _, key := range []string{
		"lock:shop:cron:report", "a", "A", ".", "..", "...", "a/b", "a%2Fb", "%", "a b", "é", "e\u0301", "作业", "\u00a0", "'; DROP", "a.b", "zookeeper",
	} {
		name := nodeName(key)
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q are both %q", key, other, name)
		}
		seen[name] = key
		if back, ok := keyOf(name); !ok || back != key {
			t.Errorf("%q became %q and then %q", key, name, back)
		}
		for _, c := range name {
			if c <= ' ' || c > '~' || c == '/' {
				t.Errorf("%q became %q", key, name)
			}
		}
	}
	for _, name := range []string{"a%", "a%2", "a%zz", "a%2f", "a b", "é"} {
		if key, ok := keyOf(name); ok {
			t.Errorf("%q is taken for the key %q", name, key)
		}
	}
}

func TestOnlyOurOwnAreMembers(t *testing.T) {
	token := driver.NewToken()
	for suffix, seq := range map[string]int32{
		"0000000000": 0, "0000000017": 17, "2147483647": math.MaxInt32, "-2147483648": math.MinInt32, "-000000005": -5,
	} {
		m, ok := parseMember(token.String() + infix + suffix)
		if !ok || m.token != token || m.seq != seq {
			t.Errorf("%q = %+v, %v", suffix, m, ok)
		}
	}
	for _, name := range []string{
		"", "lock-0000000001", token.String(), token.String() + "-lock-", token.String() + "-lock-1", token.String() + "-lock-00000x0001",
		token.String() + "-read-0000000001", token.String() + "-lock-9999999999", "X" + token.String()[1:] + "-lock-0000000001", "notes",
	} {
		if _, ok := parseMember(name); ok {
			t.Errorf("%q counts as a member", name)
		}
	}
}

// The order is by the counter alone, whatever the names say, also where it wraps.
func TestOrder(t *testing.T) {
	for _, start := range []int32{0, 41, math.MaxInt32 - 2, math.MinInt32, -3} {
		var line []member
		var names []string
		seq := start
		for range 6 {
			line = append(line, member{name: driver.NewToken().String(), seq: seq})
			names = append(names, line[len(line)-1].name)
			seq++
		}
		shuffled := []member{line[3], line[0], line[5], line[1], line[4], line[2]}
		if first, ok := head(shuffled); !ok || first.name != names[0] {
			t.Errorf("from %d: the head is %+v", start, first)
		}
		for i, me := range line {
			at := standingOf(shuffled, me)
			if !at.present || at.ahead != i || i > 0 && at.next.name != names[i-1] || i > 1 && at.second.name != names[i-2] {
				t.Errorf("from %d: ahead of %d: %+v", start, i, at)
			}
		}
		if standingOf(shuffled[1:], shuffled[0]).present {
			t.Error("present in a line that it is not in")
		}
	}
}

func TestRefusedAtConstruction(t *testing.T) {
	pass := secret.New("s3cret")
	for name, c := range map[string]struct {
		servers []string
		opts    []Option
	}{
		"no server":                {nil, nil},
		"no host":                  {[]string{":2181"}, nil},
		"session of nothing":       {[]string{"localhost"}, []Option{WithSessionTimeout(0)}},
		"prefix without a slash":   {[]string{"localhost"}, []Option{WithPrefix("locks")}},
		"prefix with one too many": {[]string{"localhost"}, []Option{WithPrefix("/locks/")}},
		"user without password":    {[]string{"localhost"}, []Option{WithDigest("bob", secret.Value{})}},
		"password without user":    {[]string{"localhost"}, []Option{WithDigest("", pass)}},
		"user with a colon":        {[]string{"localhost"}, []Option{WithDigest("bob:x", pass)}},
		"password in clear":        {[]string{"zk.example.org"}, []Option{WithDigest("bob", pass)}},
		"nil dialer":               {[]string{"localhost"}, []Option{WithDialer(nil)}},
	} {
		_, err := NewDriver(context.Background(), c.servers, c.opts...)
		if !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A lease and its session fit each other.
func TestSessionForTTL(t *testing.T) {
	for _, ttl := range []time.Duration{time.Millisecond, 7 * time.Millisecond, 999 * time.Millisecond, time.Second, 10 * time.Second, 1234567 * time.Microsecond} {
		s := sessionFor(ttl)
		if s%time.Millisecond != 0 || leaseFor(s) < ttl.Truncate(time.Millisecond) || s > ttl*3/2+2*time.Millisecond {
			t.Errorf("ttl %v: session %v, which carries %v", ttl, s, leaseFor(s))
		}
	}
}

// Frames are found however the bytes are cut.
func TestFramesAreFollowed(t *testing.T) {
	frame := func(body ...byte) []byte { return append([]byte{0, 0, 0, byte(len(body))}, body...) }
	greeting := frame(append([]byte{0, 0, 0, 0, 0, 0, 5, 220, 0, 0, 0, 0, 0, 0, 0, 9}, make([]byte, 21)...)...)
	answer := frame(append([]byte{0, 0, 0, 7}, make([]byte, 40)...)...)
	event := frame(append([]byte{255, 255, 255, 255}, make([]byte, 20)...)...)
	short := frame(0, 0, 0, 8)
	stream := append(append(append(append([]byte(nil), greeting...), event...), answer...), short...)
	for size := 1; size <= len(stream); size++ {
		w := &wire{}
		c := &watchedConn{w: w, sent: []stamp{{}}}
		for i := 0; i < len(stream); i += size {
			c.follow(stream[i:min(i+size, len(stream))])
			if c.greeted && c.sent == nil && w.timeout != 0 && i < len(greeting)+len(event) {
				c.sent = []stamp{{xid: 7}, {xid: 8}, {xid: 9}}
			}
		}
		if w.timeout != 1500*time.Millisecond || w.session != 9 {
			t.Fatalf("cut to %d: timeout %v, session %d", size, w.timeout, w.session)
		}
		if size <= len(greeting) && (len(c.sent) != 1 || c.sent[0].xid != 9) {
			t.Fatalf("cut to %d: %+v is left unanswered", size, c.sent)
		}
	}
}
