package examples

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/locks/zklock"
)

var update = flag.Bool("update", false, "write docs/configuration-reference.md anew")

// parts are the structs that the configuration file is decoded into, by the place of
// their keys.
var parts = []struct {
	path string
	typ  reflect.Type
}{
	{"", reflect.TypeFor[configs.Config]()},
	{"locks.redis", reflect.TypeFor[redislock.PluginConfig]()},
	{"locks.redlock", reflect.TypeFor[redlock.PluginConfig]()},
	{"locks.etcd", reflect.TypeFor[etcdlock.PluginConfig]()},
	{"locks.zookeeper", reflect.TypeFor[zklock.PluginConfig]()},
	{"locks.postgres", reflect.TypeFor[postgres.Config]()},
	{"locks.mariadb", reflect.TypeFor[mysql.Config]()},
	{"locks.sqlite", reflect.TypeFor[sqllock.PluginConfig]()},
	{"tls", reflect.TypeFor[transport.TLS]()},
}

// TestConfigurationReference compares docs/configuration-reference.md with the structs
// and their comments, of which it is made: go test ./examples -run Reference -update.
func TestConfigurationReference(t *testing.T) {
	var out strings.Builder
	out.WriteString("# Configuration reference\n\nEvery key of the configuration file, with its type, its default and what it means.\n" +
		"Made from the structs that the file is decoded into (`go test ./examples -run Reference -update`); [configuration.md](configuration.md) is the guide.\n")
	c := comments{}
	for _, p := range parts {
		var rows []string
		c.rows(t, &rows, p.path, p.typ)
		title := p.path
		if title == "" {
			title = "The file"
		}
		fmt.Fprintf(&out, "\n## %s\n\n| key | type | default | means |\n|---|---|---|---|\n%s", title, strings.Join(rows, ""))
	}
	path := filepath.Join(root, "docs", "configuration-reference.md")
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != out.String() {
		t.Error("docs/configuration-reference.md is behind the structs: go test ./examples -run Reference -update")
	}
}

// comments are those of struct fields, by package, type and field; read once a package.
type comments map[string]map[string]string

func (c comments) of(t *testing.T, typ reflect.Type, field string) string {
	t.Helper()
	pkg, ok := c[typ.PkgPath()]
	if !ok {
		pkg = map[string]string{}
		c[typ.PkgPath()] = pkg
		dir := filepath.Join(root, strings.TrimPrefix(typ.PkgPath(), "github.com/solotick/solotick"))
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						for _, name := range f.Names {
							pkg[spec.Name.Name+"."+name.Name] = f.Doc.Text() + " " + f.Comment.Text()
						}
					}
				}
				return true
			})
		}
	}
	return strings.Join(strings.Fields(pkg[typ.Name()+"."+field]), " ")
}

// rows walks a struct as the decoder does.
func (c comments) rows(t *testing.T, into *[]string, path string, typ reflect.Type) {
	t.Helper()
	last := "" // of a comment that is for two fields
	for f := range typ.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || !f.IsExported() || f.Type == reflect.TypeFor[map[string]strictyaml.Raw]() {
			continue
		}
		if opts == "inline" {
			c.rows(t, into, path, f.Type)
			continue
		}
		key := strings.TrimPrefix(path+"."+name, ".")
		inner, list := f.Type, ""
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			if inner.Kind() == reflect.Slice {
				list = "[]"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[secret.Value]() && inner != reflect.TypeFor[transport.TLS]() {
			c.rows(t, into, key+list, inner)
			continue
		}
		comment := c.of(t, typ, f.Name)
		if comment == "" {
			comment = last
		}
		last = comment
		comment = keyed(typ, comment)
		def, means := split(comment)
		if means == "" {
			t.Errorf("%s.%s has no comment, and so %s has no meaning", typ, f.Name, key)
		}
		*into = append(*into, fmt.Sprintf("| `%s` | %s | %s | %s |\n", key, kind(f.Type), cmp.Or(def, "-"), strings.ReplaceAll(means, "|", `\|`)))
	}
}

// keyed names the fields that a comment speaks of as the file does: its first word, and
// others that can be nothing but a name of Go.
func keyed(typ reflect.Type, comment string) string {
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" || name == "-" {
			continue
		}
		if rest, ok := strings.CutPrefix(comment, f.Name+" "); ok {
			comment = "`" + name + "` " + rest
		}
		if strings.Contains(name, "_") || strings.Contains(f.Name, "ID") {
			comment = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(comment, "`"+name+"`")
		}
	}
	return comment
}

// kind is how a type is written in YAML.
func kind(typ reflect.Type) string {
	switch {
	case typ == reflect.TypeFor[time.Duration]():
		return "duration"
	case typ == reflect.TypeFor[secret.Value]():
		return "secret"
	case typ == reflect.TypeFor[transport.TLS]():
		return "[tls](#tls)"
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return kind(typ.Elem())
	case reflect.Slice:
		return "list of " + kind(typ.Elem())
	case reflect.Map:
		return "map to " + kind(typ.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float64:
		return "number"
	default:
		return "integer"
	}
}

var defaults = regexp.MustCompile(`(?i)(^|[;.,] )(default:?|required) ?`)

// split takes what a comment says of the default out of it: a sentence, or the end of
// one.
func split(comment string) (def, means string) {
	at := defaults.FindStringIndex(comment)
	if at == nil {
		return "", strings.TrimSuffix(comment, ".")
	}
	means, rest := strings.TrimRight(comment[:at[0]], " .,;"), comment[at[1]:]
	if strings.Contains(strings.ToLower(comment[at[0]:at[1]]), "required") {
		rest = "required " + rest
	}
	// To the end of the sentence; 1.5s is none, and neither is "e.g. this".
	end := len(rest)
	if i := regexp.MustCompile(`\. [A-Z]|\.$|; [^r]`).FindStringIndex(rest); i != nil {
		end = i[0]
	}
	def = strings.TrimSpace(rest[:end])
	if after := strings.TrimLeft(rest[min(end+1, len(rest)):], " ."); after != "" {
		means += ". " + after
	}
	return def, strings.TrimSuffix(strings.TrimPrefix(means, ". "), ".")
}
