package strictyaml

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of a document.
const (
	MaxBytes = 1 << 20 // of the text
	MaxNodes = 100_000 // values after aliases are followed
	maxDepth = 64
)

type kind int

const (
	isNull kind = iota
	isBool
	isNumber
	isText
	isList
	isMapping
)

func (k kind) String() string {
	return [...]string{"nothing", "true or false", "a number", "text", "a list", "a mapping"}[k]
}

// node is a value with aliases and merges resolved.
type node struct {
	kind  kind
	at    Position
	raw   string // scalars: as written, quotes and escapes undone
	items []*node
	pairs []pair
}

type pair struct {
	key   string
	at    Position
	value *node
}

func (n *node) get(key string) *node {
	for _, p := range n.pairs {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

// reader turns the parser's tree into nodes.
type reader struct {
	doc     *Document
	anchors map[string]ast.Node
	open    map[string]bool // anchors being read, to find circles
	nodes   int
	full    bool
}

func at(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{}
	}
	return Position{t.Position.Line, t.Position.Column}
}

// parse returns nil after it has added a problem.
func (d *Document) parse(data []byte) (root *node) {
	switch {
	case len(data) > MaxBytes:
		d.problem(Position{}, "", fmt.Sprintf("has %d bytes, the most is %d", len(data), MaxBytes), "split it, or check that it is the right file")
		return nil
	case !utf8.Valid(data) || strings.ContainsRune(string(data), 0):
		d.problem(Position{}, "", "is not UTF-8 text", "save it as UTF-8, or check that it is the right file")
		return nil
	}
	// The parser is fed by people; a bug of its own must not end the program.
	defer func() {
		if recover() != nil {
			d.problem(Position{}, "", "cannot be read as YAML", "check indentation, quotes and brackets")
			root = nil
		}
	}()
	text := strings.TrimPrefix(string(data), "\ufeff")
	d.lines = strings.Split(text, "\n")
	file, err := parser.ParseBytes([]byte(text), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntax(err)
		return nil
	}
	var bodies []*ast.DocumentNode
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc)
		}
	}
	switch {
	case len(bodies) == 0:
		d.problem(Position{}, "", "is empty", "write at least a namespace, see configs/quickstart.yaml")
		return nil
	case len(bodies) > 1:
		d.problem(at(bodies[1].Body.GetToken()), "", "a second document begins here", "keep one document per file")
		return nil
	}
	r := &reader{doc: d, anchors: map[string]ast.Node{}, open: map[string]bool{}}
	ast.Walk(r, bodies[0].Body)
	before := len(d.found)
	root = r.read(bodies[0].Body, 0)
	if len(d.found) > before && root == nil {
		return nil
	}
	if root.kind != isMapping {
		d.problem(root.at, "", "is "+root.kind.String()+", not a mapping", "begin with keys, such as namespace: shop")
		return nil
	}
	return root
}

func (d *Document) syntax(err error) {
	const remedy = "check indentation, quotes and brackets at this place"
	var e yaml.Error
	if !errors.As(err, &e) {
		d.problem(Position{}, "", "cannot be read as YAML", remedy)
		return
	}
	if d.slip(at(e.GetToken()).Line) {
		return
	}
	// What the parser quotes from the document may be a secret.
	message, _, _ := strings.Cut(e.GetMessage(), "\"")
	d.problem(at(e.GetToken()), "", "is not YAML: "+strings.TrimRight(message, ": "), remedy)
}

var (
	// unquoted finds a value that begins with @, or with a * that no name follows.
	unquoted = regexp.MustCompile(`(?:^[ ]*-|(?:^|[ {,])[A-Za-z0-9_.-]+:)[ ]+(@|\*(?:[^A-Za-z0-9_]|$))`)
	tabbed   = regexp.MustCompile(`^[ -]*\t[ \t]*[^ \t\r#]`)
)

// slip adds the problem of a common slip in the line or, since the parser may only
// stumble at what follows, in the one before. It reports whether there was one.
func (d *Document) slip(line int) bool {
	for n := line; n > 0 && n > line-2; n-- {
		if n > len(d.lines) {
			continue
		}
		text := d.lines[n-1]
		if tab := tabbed.FindStringIndex(text); tab != nil {
			d.problem(Position{n, strings.IndexByte(text, '\t') + 1}, "", "is not YAML: a tab in the indentation", "indent with spaces, not tabs")
			return true
		}
		if m := unquoted.FindStringSubmatchIndex(text); m != nil {
			begin := text[m[2] : m[2]+1]
			d.problem(Position{n, utf8.RuneCountInString(text[:m[2]]) + 1}, "", "is not YAML: a value that begins with "+begin, "write it in quotes, as in cron: \"*/15 * * * *\"")
			return true
		}
	}
	return false
}

// Visit collects anchors.
func (r *reader) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		r.anchors[a.Name.GetToken().Value] = a.Value
	}
	return r
}

// read returns nil after it has added a problem.
func (r *reader) read(n ast.Node, depth int) *node {
	if n == nil {
		return &node{}
	}
	pos := at(n.GetToken())
	if r.nodes++; r.nodes > MaxNodes || depth > maxDepth {
		if !r.full {
			r.full = true
			r.doc.problem(pos, "", fmt.Sprintf("is nested over %d levels deep or has over %d values", maxDepth, MaxNodes), "use fewer aliases")
		}
		return nil
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return &node{at: pos}
	case *ast.BoolNode:
		return &node{kind: isBool, at: pos, raw: n.Token.Value}
	case *ast.IntegerNode:
		return &node{kind: isNumber, at: pos, raw: n.Token.Value}
	case *ast.FloatNode:
		return &node{kind: isNumber, at: pos, raw: n.Token.Value}
	case *ast.InfinityNode:
		return &node{kind: isNumber, at: pos, raw: n.Token.Value}
	case *ast.NanNode:
		return &node{kind: isNumber, at: pos, raw: n.Token.Value}
	case *ast.StringNode:
		return &node{kind: isText, at: pos, raw: n.Value}
	case *ast.LiteralNode:
		return &node{kind: isText, at: pos, raw: n.Value.Value}
	case *ast.AnchorNode:
		return r.read(n.Value, depth)
	case *ast.AliasNode:
		return r.alias(n, depth)
	case *ast.TagNode:
		if n.Start.Value == "!!str" {
			if v := r.read(n.Value, depth); v != nil && v.kind < isList {
				v.kind = isText
				return v
			}
		}
		r.doc.problem(pos, "", "has a tag", "remove it: only !!str before a scalar is understood")
		return nil
	case *ast.SequenceNode:
		list := &node{kind: isList, at: pos}
		for _, v := range n.Values {
			if text := glued(v); text != nil {
				list.items = append(list.items, text)
			} else if item := r.read(v, depth+1); item != nil {
				list.items = append(list.items, item)
			}
		}
		return list
	case *ast.MappingValueNode:
		return r.mapping(pos, []*ast.MappingValueNode{n}, depth)
	case *ast.MappingNode:
		return r.mapping(pos, n.Values, depth)
	}
	r.doc.problem(pos, "", "has a construct that is not understood here", "use mappings, lists and scalars")
	return nil
}

// glued is the text of a list's item such as host:6379, which the parser takes for a
// mapping where the list stands in braces; nil for any other item. A colon that no
// space follows is part of a plain text (YAML 1.2.2, 7.3.3).
func glued(item ast.Node) *node {
	m, ok := item.(*ast.MappingNode)
	if !ok || len(m.Values) != 1 || m.Values[0].Start == nil {
		return nil
	}
	key, colon, value := m.Values[0].Key.GetToken(), m.Values[0].Start, m.Values[0].Value
	scalar, ok := value.(ast.ScalarNode)
	if !ok || key.Type != token.StringType || scalar.GetToken().Position.Line != colon.Position.Line || scalar.GetToken().Position.Column != colon.Position.Column+1 {
		return nil
	}
	return &node{kind: isText, at: at(key), raw: key.Value + ":" + scalar.GetToken().Value}
}

func (r *reader) alias(n *ast.AliasNode, depth int) *node {
	name := n.Value.GetToken().Value
	target, ok := r.anchors[name]
	switch {
	case !ok && r.doc.slip(at(n.Start).Line):
		return nil
	case !ok:
		r.doc.problem(at(n.Start), "", fmt.Sprintf("alias *%s has no anchor", name), fmt.Sprintf("write &%s before the value meant", name))
		return nil
	case r.open[name]:
		r.doc.problem(at(n.Start), "", fmt.Sprintf("alias *%s refers to itself", name), "write the value out")
		return nil
	}
	r.open[name] = true
	defer delete(r.open, name)
	return r.read(target, depth+1)
}

func (r *reader) mapping(pos Position, values []*ast.MappingValueNode, depth int) *node {
	m := &node{kind: isMapping, at: pos}
	if len(values) > 0 {
		m.at = at(values[0].Key.GetToken())
	}
	var merged []pair
	seen := map[string]Position{}
	for _, v := range values {
		keyAt := at(v.Key.GetToken())
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, r.merge(v.Value, depth)...)
			continue
		}
		key, ok := r.key(v.Key)
		if !ok {
			continue
		}
		if first, dup := seen[key]; dup {
			r.doc.problem(keyAt, "", fmt.Sprintf("key %q stands here a second time, the first is in line %d", shownKey(key), first.Line), "keep one of them")
			continue
		}
		seen[key] = keyAt
		if value := r.read(v.Value, depth+1); value != nil {
			if value.at == (Position{}) {
				value.at = keyAt
			}
			m.pairs = append(m.pairs, pair{key, keyAt, value})
		}
	}
	for _, p := range merged {
		if _, has := seen[p.key]; !has {
			seen[p.key] = p.at
			m.pairs = append(m.pairs, p)
		}
	}
	return m
}

func (r *reader) key(k ast.MapKeyNode) (string, bool) {
	var n ast.Node = k
	if explicit, ok := k.(*ast.MappingKeyNode); ok {
		n = explicit.Value
	}
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.NullNode:
		return n.GetToken().Value, true
	}
	r.doc.problem(at(k.GetToken()), "", "has a key that is not a plain word", "write a key such as name:")
	return "", false
}

// merge reads what << brings in: a mapping or a list of mappings, the first of
// which wins.
func (r *reader) merge(n ast.Node, depth int) []pair {
	v := r.read(n, depth+1)
	if v == nil {
		return nil
	}
	parts := []*node{v}
	if v.kind == isList {
		parts = v.items
	}
	var pairs []pair
	for _, part := range parts {
		if part.kind != isMapping {
			r.doc.problem(part.at, "", "<< takes a mapping, not "+part.kind.String(), "refer to an anchored mapping, as in <<: *name")
			return nil
		}
		pairs = append(pairs, part.pairs...)
	}
	return pairs
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// shownKey is a key as messages show it. A key that does not look like one may
// be a value, and so a secret, that a missing space or indentation made a key.
func shownKey(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	if word, _, ok := strings.Cut(key, ":"); ok && plainKey.MatchString(word) {
		return word + ":…"
	}
	return "…"
}
