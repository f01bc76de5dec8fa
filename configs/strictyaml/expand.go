package strictyaml

import (
	"fmt"
	"strings"
)

// expand replaces references to the environment in text. Used tells whether
// there were any.
func (d *Document) expand(n *node, path string) (text string, used, ok bool) {
	if n.kind != isText || !strings.Contains(n.raw, "$") {
		return n.raw, false, true
	}
	var b strings.Builder
	rest, ok := n.raw, true
	for {
		i := strings.IndexByte(rest, '$')
		if i < 0 || i+1 == len(rest) {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		rest = rest[i:]
		switch rest[1] {
		case '$':
			b.WriteByte('$')
			rest = rest[2:]
		case '{':
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				d.problem(n.at, path, "has ${ without }", "close it, or write $$ for a dollar sign")
				return "", true, false
			}
			value, good := d.variable(n, path, rest[2:end])
			used, ok = true, ok && good
			b.WriteString(value)
			rest = rest[end+1:]
		default:
			b.WriteByte('$')
			rest = rest[1:]
		}
	}
	if used && ok {
		d.hide(b.String(), n.raw)
	}
	return b.String(), used, ok
}

func (d *Document) variable(n *node, path, ref string) (string, bool) {
	name, fallback, has := strings.Cut(ref, ":-")
	if !isVariable(name) {
		d.problem(n.at, path, "has ${…} around something that is not a variable's name", "write ${NAME} or ${NAME:-default}, or $$ for a dollar sign")
		return "", false
	}
	value, set := d.o.Env(name)
	switch {
	case has && value == "":
		return fallback, true
	case !set:
		d.problem(n.at, path, fmt.Sprintf("environment variable %s is not set", name), fmt.Sprintf("set it, or give a default as in ${%s:-default}", name))
		return "", false
	}
	return value, true
}

func isVariable(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
