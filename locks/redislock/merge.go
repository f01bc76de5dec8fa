package redislock

import (
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// Acquires that wait to be sent together go as one script, and releases as another: to
// run a script costs the server about as much as what the script does for one lock.

// mergeMost bounds the locks of one script: it keeps the server from others.
const mergeMost = 64

// refusedTogether is the answer to requests whose script was refused for all of them:
// they are to be sent again.
type refusedTogether struct{ serverError }

// apart reports whether each is to be sent by itself then: the reason may be one of
// them, where it is not that the server does not know the script.
func (e refusedTogether) apart() bool { return !redis.HasErrorPrefix(e, "NOSCRIPT") }

// rank is the place of a request among those that are sent together.
func (r *request) rank() int {
	switch c := r.commands[0]; {
	case r.apart || r.text || len(r.commands) > 1 || c.script.many == nil:
		return 2
	case c.script.own == 1:
		return 0
	default:
		return 1
	}
}

// merge arranges requests so that those which share a script follow each other, and
// notes with the first how many they are. The caller holds the mutex.
func (l *lane) merge(rs []*request) {
	if len(rs) < 2 {
		return
	}
	slices.SortStableFunc(rs, func(a, b *request) int { return a.rank() - b.rank() })
	for len(rs) > 1 && rs[0].rank() < 2 {
		n := 1
		first := rs[0].commands[0]
		for n < len(rs) && n < mergeMost && first.joins(rs[n]) {
			n++
		}
		if n > 1 {
			rs[0].shared = n
			many := first.script.many
			rs[0].text = !l.knows[many]
			if l.knows == nil {
				l.knows = map[*script]bool{}
			}
			l.knows[many] = true
		}
		rs = rs[n:]
	}
}

// joins reports whether r can share a script with c.
func (c *command) joins(r *request) bool {
	other := r.commands[0]
	return r.rank() < 2 && other.script == c.script && slices.Equal(other.args[c.script.own:], c.args[c.script.own:])
}

// encodeAll appends the requests, those that share a script as one.
func encodeAll(b []byte, rs []*request) []byte {
	for len(rs) > 0 {
		n := max(rs[0].shared, 1)
		if rs[0].led {
			b = appendText(append(b, "*1\r\n"...), "ping")
		}
		if n > 1 {
			b = encodeMany(b, rs[:n])
		} else {
			for _, c := range rs[0].commands {
				b = c.encode(b, rs[0].text)
			}
		}
		rs = rs[n:]
	}
	return b
}

func encodeMany(b []byte, rs []*request) []byte {
	first := rs[0].commands[0]
	own, many := first.script.own, first.script.many
	keys := len(rs) * len(many.suffixes)
	b = many.begin(b, rs[0].text, keys, len(first.args)-own+len(rs)*own)
	for _, r := range rs {
		b = many.appendKeys(b, r.commands[0].keys)
	}
	for _, a := range first.args[own:] {
		b = appendText(b, a)
	}
	for _, r := range rs {
		for _, a := range r.commands[0].args[:own] {
			b = appendText(b, a)
		}
	}
	return b
}

// begin appends what comes before the keys.
func (s *script) begin(b []byte, text bool, keys, args int) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(3+keys+args), 10)
	b = append(b, '\r', '\n')
	if text {
		b = appendText(appendText(b, "eval"), s.text)
	} else {
		b = append(b, s.head...)
	}
	return appendText(b, strconv.Itoa(keys))
}

func (s *script) appendKeys(b []byte, keys []string) []byte {
	for _, k := range keys {
		for _, suffix := range s.suffixes {
			b = appendText(b, k, suffix)
		}
	}
	return b
}

// share gives the answer to a script to those who shared it, unless it is none. The
// caller holds the mutex.
func (l *lane) share(rs []*request, val any) bool {
	list, _ := val.([]any)
	failed, refusal := val.(serverError)
	if refusal {
		delete(l.knows, rs[0].commands[0].script.many)
	} else if len(list) != len(rs) {
		return false
	}
	for i, r := range rs {
		c := r.commands[0]
		switch {
		case refusal && refused(failed):
			c.val, c.err = nil, refusedTogether{failed}
		case refusal:
			c.val, c.err = nil, failed
		default:
			c.answer(list[i])
		}
		l.finish(r)
	}
	return true
}

// answer takes what the server said.
func (c *command) answer(val any) {
	if serr, failed := val.(serverError); failed {
		c.val, c.err = nil, serr
	} else {
		c.val, c.err = val, nil
	}
}
