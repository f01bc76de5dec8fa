package locks

import (
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key that every backend must take. A backend may
// declare a lower limit.
const MaxKeyBytes = 512

// Key builds a lock key from its parts: Key("shop", "cron", "report") is
// "lock:shop:cron:report". Different parts always give different keys: a colon or
// a percent sign inside a part, a control character and a byte that is not UTF-8
// are written as %XX, and an empty part as a lone percent sign.
func Key(parts ...string) string {
	var b strings.Builder
	b.WriteString("lock")
	for _, part := range parts {
		b.WriteByte(':')
		if part == "" {
			b.WriteByte('%')
		}
		for i := 0; i < len(part); {
			r, size := utf8.DecodeRuneInString(part[i:])
			if r < ' ' || r == 0x7f || r == ':' || r == '%' || r == utf8.RuneError && size == 1 {
				const hex = "0123456789ABCDEF"
				b.Write([]byte{'%', hex[part[i]>>4], hex[part[i]&15]})
			} else {
				b.WriteString(part[i : i+size])
			}
			i += size
		}
	}
	return b.String()
}

func checkKey(key string, longest int) error {
	switch {
	case key == "":
		return invalid("key: it is empty; build it with locks.Key")
	case len(key) > longest:
		return invalid("key: %d bytes, but this backend takes at most %d; shorten it or hash its last part", len(key), longest)
	case !utf8.ValidString(key):
		return invalid("key %q: it is not UTF-8; build it with locks.Key, which escapes", key)
	}
	for _, r := range key {
		if r < ' ' || r == 0x7f {
			return invalid("key %q: it has a control character; build it with locks.Key, which escapes", key)
		}
	}
	return nil
}
