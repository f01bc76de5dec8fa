package strictyaml

import (
	"encoding"
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/solotick/solotick/configs/secret"
)

// Raw is a part of the document that is decoded later, by whom it belongs to.
type Raw struct {
	doc  *Document
	node *node
	path string
}

// IsZero reports whether the document has no such part.
func (r Raw) IsZero() bool { return r.node == nil }

// Decode decodes the part into the struct that into points to, as strictly as
// the rest of the document. The error is Problems. A part that is missing leaves
// into as it is. The document knows the places and the secrets of the part
// afterwards, so that a check of what was decoded can be told like any other.
func (r Raw) Decode(into any) error {
	if r.node == nil {
		return nil
	}
	d := &Document{o: r.doc.o, root: r.node, places: r.doc.places, hidden: slices.Clone(r.doc.hidden)}
	d.value(r.node, reflect.ValueOf(into).Elem(), r.path)
	r.doc.hidden = slices.Clone(d.hidden)
	return d.Err()
}

// Equal reports whether both parts say the same, with variables expanded.
func (r Raw) Equal(o Raw) bool {
	return reflect.DeepEqual(r.plain(), o.plain())
}

func (r Raw) plain() any {
	if r.node == nil {
		return nil
	}
	d := &Document{o: r.doc.o}
	return d.plain(r.node)
}

func (d *Document) plain(n *node) any {
	switch n.kind {
	case isList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = d.plain(item)
		}
		return list
	case isMapping:
		m := make(map[string]any, len(n.pairs))
		for _, p := range n.pairs {
			m[p.key] = d.plain(p.value)
			if file, ok := strings.CutSuffix(p.key, "_file"); ok && p.value.kind == isText {
				if content, err := d.o.ReadFile(d.relative(p.value.raw)); err == nil {
					m[file] = string(content)
				}
			}
		}
		return m
	default:
		text, _, _ := d.expand(n, "")
		return [2]any{n.kind, text}
	}
}

// Decode fills the struct that into points to and adds what is wrong to the
// document's problems.
func (d *Document) Decode(into any) {
	if d.root != nil {
		d.value(d.root, reflect.ValueOf(into).Elem(), "")
	}
}

var (
	rawType      = reflect.TypeFor[Raw]()
	secretType   = reflect.TypeFor[secret.Value]()
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (d *Document) value(n *node, v reflect.Value, path string) {
	if _, has := d.places[path]; !has {
		d.places[path] = n.at
	}
	t := v.Type()
	switch {
	case t == rawType:
		v.Set(reflect.ValueOf(Raw{d, n, path}))
		return
	case t == secretType:
		d.secret(n, v, path)
		return
	case t.Kind() == reflect.Pointer:
		if n.kind == isNull {
			d.scalar(n, reflect.New(t.Elem()).Elem(), path)
			return
		}
		v.Set(reflect.New(t.Elem()))
		before := len(d.found)
		if d.value(n, v.Elem(), path); n.kind != isMapping && len(d.found) > before {
			v.SetZero() // so that nobody misses what stands in it
		}
		return
	case reflect.PointerTo(t).Implements(textType):
		if text, ok := d.text(n, path, "text"); ok {
			if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
				d.problem(n.at, path, err.Error(), "")
			}
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Map:
		if !d.expect(n, isMapping, path, "a mapping") {
			return
		}
		v.Set(reflect.MakeMapWithSize(t, len(n.pairs)))
		for _, p := range n.pairs {
			d.entry(p, v, path)
		}
	case reflect.Slice:
		if !d.expect(n, isList, path, "a list") {
			return
		}
		v.Set(reflect.MakeSlice(t, len(n.items), len(n.items)))
		for i, item := range n.items {
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		d.scalar(n, v, path)
	}
}

func (d *Document) entry(p pair, m reflect.Value, path string) {
	if p.value.kind == isNull {
		// Where brackets or colons went wrong, the key may be a secret.
		d.problem(p.at, path, "a key here has no value", "write one, or remove the key")
		return
	}
	elem := reflect.New(m.Type().Elem()).Elem()
	below := join(path, shownKey(p.key))
	d.places[below] = p.at
	d.value(p.value, elem, below)
	m.SetMapIndex(reflect.ValueOf(p.key).Convert(m.Type().Key()), elem)
}

// expect reports whether n is of the kind; nothing at all is let pass silently.
func (d *Document) expect(n *node, k kind, path, what string) bool {
	if n.kind == isNull {
		return false
	}
	if n.kind != k {
		d.mismatch(n, path, what)
		return false
	}
	return true
}

// mismatch says what was expected. It never shows the value, which may be a
// secret that bad indentation brought here.
func (d *Document) mismatch(n *node, path, want string) {
	if n.kind == isNull {
		d.problem(n.at, path, "has no value", "write "+want+", or remove the key")
		return
	}
	d.problem(n.at, path, "is "+n.kind.String(), "write "+want)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

type field struct {
	index []int
	typ   reflect.Type
}

// layout lists the fields of a struct by key. Rest is the inline map, short the
// key that a scalar or list stands for.
func layout(t reflect.Type) (fields map[string]field, rest []int, short string) {
	fields = map[string]field{}
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported() || name == "-":
		case opts == "inline" && f.Type.Kind() == reflect.Map:
			rest = f.Index
		case opts == "inline":
			inner, _, _ := layout(f.Type)
			for key, in := range inner {
				fields[key] = field{append(slices.Clone(f.Index), in.index...), in.typ}
			}
		case name != "":
			fields[name] = field{f.Index, f.Type}
			if f.Tag.Get("short") == "true" {
				short = name
			}
		}
	}
	return fields, rest, short
}

// Keys lists the keys that a struct of into's type takes, sorted. Secret fields
// have two.
func Keys(t reflect.Type) []string {
	fields, _, _ := layout(t)
	var keys []string
	for key, f := range fields {
		keys = append(keys, key)
		if f.typ == secretType {
			keys = append(keys, key+"_file")
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys) // a field of its own may take the place of k_file
}

func (d *Document) structure(n *node, v reflect.Value, path string) {
	fields, rest, short := layout(v.Type())
	if n.kind != isMapping && n.kind != isNull && short != "" {
		f := fields[short]
		if (n.kind == isList) == (f.typ.Kind() == reflect.Slice) {
			d.places[join(path, short)] = n.at
			d.value(n, v.FieldByIndex(f.index), path)
			return
		}
		if f.typ == reflect.TypeFor[[]string]() {
			d.mismatch(n, path, "a list, as in [/bin/backup, --all]")
			return
		}
	}
	if !d.expect(n, isMapping, path, "a mapping") {
		return
	}
	for _, p := range n.pairs {
		if f, ok := fields[p.key]; ok {
			below := join(path, p.key)
			d.places[below] = p.value.at
			d.value(p.value, v.FieldByIndex(f.index), below)
			continue
		}
		if plain, ok := strings.CutSuffix(p.key, "_file"); ok && fields[plain].typ == secretType {
			if n.get(plain) != nil {
				d.problem(p.at, join(path, p.key), "stands beside "+plain, "keep one of the two")
				continue
			}
			d.places[join(path, plain)] = p.value.at
			d.secretFile(p.value, v.FieldByIndex(fields[plain].index), join(path, p.key))
			continue
		}
		if rest != nil && p.value.kind == isMapping {
			m := v.FieldByIndex(rest)
			if m.IsNil() {
				m.Set(reflect.MakeMap(m.Type()))
			}
			d.entry(p, m, path)
			continue
		}
		d.unknown(p, path, Keys(v.Type()))
	}
}

func (d *Document) unknown(p pair, path string, known []string) {
	shown, near := shownKey(p.key), Nearest(p.key, known)
	if meant := d.o.Synonyms[p.key]; slices.Contains(known, meant) {
		near = meant
	}
	if near == "" && p.value != nil && p.value.kind == isNull {
		shown = shownKey("")
	}
	remedy := "known keys are " + strings.Join(known, ", ")
	if len(known) == 0 {
		remedy = "remove it: no key is known here"
	}
	switch {
	case shown != p.key:
		remedy = "is a space missing after the colon, or a quote? " + remedy
	case near != "":
		remedy = "did you mean " + near + "?"
	case len(known) > 12:
		remedy = "remove it; docs/configuration.md has every key"
	}
	d.problem(p.at, path, fmt.Sprintf("unknown key %q", shown), remedy)
}

// UnknownKey adds the problem of a key that an inline map took and that the
// caller does not know either.
func (d *Document) UnknownKey(path, key string, known []string) {
	d.unknown(pair{key: key, at: d.At(join(path, key))}, path, known)
}

func (d *Document) text(n *node, path, want string) (string, bool) {
	if n.kind != isText {
		if n.kind == isBool || n.kind == isNumber {
			want += ", in quotes if it is to be this"
		}
		d.mismatch(n, path, want)
		return "", false
	}
	text, _, ok := d.expand(n, path)
	return text, ok
}

func (d *Document) secret(n *node, v reflect.Value, path string) {
	switch n.kind {
	case isText, isNumber, isBool:
		if text, _, ok := d.expand(n, path); ok {
			d.hide(text, secret.Redacted)
			v.Set(reflect.ValueOf(secret.New(text)))
		}
	case isMapping:
		if file := n.get("file"); file != nil && len(n.pairs) == 1 {
			d.secretFile(file, v, join(path, "file"))
			return
		}
		fallthrough
	default:
		d.mismatch(n, path, "text, or {file: PATH}")
	}
}

// relative is a path as seen from the document's directory.
func (d *Document) relative(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(d.o.File), name)
}

func (d *Document) secretFile(n *node, v reflect.Value, where string) {
	name, ok := d.text(n, where, "the path of a file")
	if !ok {
		return
	}
	content, err := d.o.ReadFile(d.relative(name))
	const most = 64 << 10
	switch {
	case err != nil:
		d.problem(n.at, where, fmt.Sprintf("%s cannot be read: %v", path.Base(filepath.ToSlash(n.raw)), reason(err)), "check the path and its permissions")
		return
	case len(content) > most:
		d.problem(n.at, where, fmt.Sprintf("the file has %d bytes, the most is %d", len(content), most), "check that it is the right file")
		return
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if text == "" {
		d.problem(n.at, where, "the file is empty", "write the secret into it")
		return
	}
	d.hide(text, secret.Redacted)
	v.Set(reflect.ValueOf(secret.New(text)))
}

// reason is the cause of a file error without the path, which may have come from
// the environment.
func reason(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err
		}
		err = inner.Unwrap()
	}
}

func (d *Document) scalar(n *node, v reflect.Value, path string) {
	if v.Type() == durationType {
		d.duration(n, v, path)
		return
	}
	want := map[reflect.Kind]string{reflect.String: "text", reflect.Bool: "true or false", reflect.Float64: "a number"}[v.Kind()]
	if want == "" {
		want = "a whole number"
	}
	if v.Kind() == reflect.String {
		if text, ok := d.text(n, path, want); ok {
			v.SetString(text)
		}
		return
	}
	text, used, ok := d.expand(n, path)
	if !ok {
		return
	}
	// Text is taken for a number or a truth value only if a variable gave it.
	if n.kind == isList || n.kind == isMapping || n.kind == isNull || n.kind == isText && !used {
		d.mismatch(n, path, want)
		return
	}
	var err error
	switch v.Kind() {
	case reflect.Bool:
		var b bool
		if b, err = parseBool(text); err == nil {
			v.SetBool(b)
		}
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16, reflect.Int8:
		var i int64
		if i, err = strconv.ParseInt(text, 10, v.Type().Bits()); err == nil {
			v.SetInt(i)
		}
	case reflect.Float64:
		var f float64
		if f, err = strconv.ParseFloat(text, 64); err == nil {
			v.SetFloat(f)
		}
	default:
		panic("strictyaml: " + path + " is of a type that is not supported: " + v.Type().String())
	}
	if err != nil {
		d.problem(n.at, path, n.raw+" is not "+want, "write "+want)
	}
}

func parseBool(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, strconv.ErrSyntax
}

func (d *Document) duration(n *node, v reflect.Value, path string) {
	const want = "a duration such as 10s, 1h30m or 2d"
	if n.kind == isNumber && n.raw != "0" {
		d.problem(n.at, path, n.raw+" has no unit", "write "+want)
		return
	}
	if n.kind != isText && n.kind != isNumber {
		d.mismatch(n, path, want)
		return
	}
	text, _, ok := d.expand(n, path)
	if !ok {
		return
	}
	length, err := ParseDuration(text)
	if err != nil {
		d.problem(n.at, path, "is not a duration", "write "+want)
		return
	}
	v.SetInt(int64(length))
}

// ParseDuration reads a Go duration that may begin with whole days of 24 hours,
// as in 2d or 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	const most = 10_000
	n, err := strconv.Atoi(days)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("strictyaml: %q does not begin with a number of days from 0 to %d", text, most)
	}
	length := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return length, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 || strings.HasPrefix(rest, "+") {
		return 0, fmt.Errorf("strictyaml: %q is not a duration", text)
	}
	return length + more, nil
}
