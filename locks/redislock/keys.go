package redislock

import (
	"strings"

	"github.com/solotick/solotick/locks/driver"
)

// DefaultPrefix begins every key and channel.
const DefaultPrefix = "solotick:"

// RedisKey is the key of the record that holds the lock called key, for those who
// look at Redis by hand: the prefix, then the name in braces, which make all keys
// of a lock share a cluster slot. A percent sign or brace of the name is written
// as %25, %7B or %7D. The lock's other keys add :f, :q, :x and :h.
func RedisKey(prefix, key string) string { return prefix + "{" + escape.Replace(key) + "}" }

var (
	escape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	unescape = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")
	// glob escapes what SCAN and PSUBSCRIBE take for a pattern.
	glob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// member is the place of a waiter in a line: all that it takes to serve it.
func (d *Driver) member(r driver.Request) string {
	return r.Token.String() + " " + millis(r.TTL) + " " + d.hub.channel + " " + r.Label
}

// lockName is the lock whose record has the key.
func (d *Driver) lockName(redisKey string) (name string, ok bool) {
	name, ok = strings.CutPrefix(redisKey, d.prefix+"{")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}")
	return unescape.Replace(name), ok
}
