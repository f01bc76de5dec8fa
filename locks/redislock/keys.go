package redislock

import "strings"

// DefaultPrefix begins every key and channel.
const DefaultPrefix = "solotick:"

// RedisKey is the key of the record that holds the lock called key, for those who
// look at Redis by hand: the prefix, then the name in braces, which make all keys
// of a lock share a cluster slot. A percent sign or brace of the name is written
// as %25, %7B or %7D. The lock's other keys add :f, :q and :h; its wake-up channel
// adds :w.
func RedisKey(prefix, key string) string { return prefix + "{" + escape.Replace(key) + "}" }

var (
	escape   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	unescape = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")
	// glob escapes what SCAN and PSUBSCRIBE take for a pattern.
	glob = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

// lockKeys are the keys of a lock as the scripts want them.
func (d *Driver) lockKeys(key string) []string {
	k := RedisKey(d.prefix, key)
	return []string{k, k + ":f", k + ":q", k + ":h"}
}

func (d *Driver) lookKeys(key string) []string {
	all := d.lockKeys(key)
	return []string{all[0], all[2]}
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
