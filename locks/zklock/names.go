package zklock

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/solotick/solotick/locks/driver"
)

// A key is a node below the prefix, named by the key with everything escaped that
// could have a meaning to ZooKeeper or to a person's terminal. Its children are
// the line: the token of a caller, "-lock-", and the counter that ZooKeeper adds.

const infix = "-lock-"

// nodeName is the name of a key's node. Different keys have different names.
func nodeName(key string) string {
	var b strings.Builder
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == ':', c == '-', c == '_', c == '.' && key != "." && key != "..":
			b.WriteByte(c)
		default:
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

// keyOf is the key of a node's name; false for one that is not ours.
func keyOf(name string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '%' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		c, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nodeName(b.String()) == name
}

// member is one child in a line.
type member struct {
	name  string
	token driver.Token
	seq   int32
}

// parseMember reads a child's name; false for a foreign child, which is ignored.
func parseMember(name string) (member, bool) {
	m := member{name: name}
	const digits = 2 * len(m.token)
	if len(name) < digits+len(infix)+10 || name[digits:digits+len(infix)] != infix {
		return m, false
	}
	if _, err := hex.Decode(m.token[:], []byte(name[:digits])); err != nil || m.token.String() != name[:digits] {
		return m, false
	}
	seq, err := strconv.ParseInt(name[digits+len(infix):], 10, 32)
	m.seq = int32(seq)
	return m, err == nil
}

// before reports whether m is ahead of o. The counter is a signed 32-bit number
// that wraps, so it is the difference that counts, as in RFC 1982.
func (m member) before(o member) bool { return m.seq-o.seq < 0 }

func members(children []string) []member {
	line := make([]member, 0, len(children))
	for _, name := range children {
		if m, ok := parseMember(name); ok {
			line = append(line, m)
		}
	}
	return line
}

// head is the first in line.
func head(line []member) (member, bool) {
	if len(line) == 0 {
		return member{}, false
	}
	first := line[0]
	for _, m := range line[1:] {
		if m.before(first) {
			first = m
		}
	}
	return first, true
}

// standing is where one is in the line.
type standing struct {
	present bool // in the line at all
	ahead   int  // how many are ahead
	next    member
	second  member // the one before next
}

func standingOf(line []member, me member) standing {
	var s standing
	for _, m := range line {
		switch {
		case m.name == me.name:
			s.present = true
			continue
		case !m.before(me):
			continue
		case s.ahead == 0:
			s.next = m
		case s.next.before(m):
			s.next, s.second = m, s.next
		case s.ahead == 1 || s.second.before(m):
			s.second = m
		}
		s.ahead++
	}
	return s
}

// ofToken are the children of one caller.
func ofToken(line []member, t driver.Token) (found []member) {
	for _, m := range line {
		if m.token == t {
			found = append(found, m)
		}
	}
	return found
}
