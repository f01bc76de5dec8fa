package examples

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

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
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/sqljob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = ".."

// block is a fenced block of a document.
type block struct{ file, language, text string }

// documents are the Markdown files for users, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			docs[name] = string(text)
		}
	}
	if len(docs) < 15 {
		t.Fatalf("only %d documents", len(docs))
	}
	return docs
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

func blocks(t *testing.T, language string) []block {
	t.Helper()
	var found []block
	docs := documents(t)
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		for _, m := range fence.FindAllStringSubmatch(docs[name], -1) {
			if m[1] == language {
				found = append(found, block{name, m[1], m[2]})
			}
		}
	}
	return found
}

// sources joins the files under dir whose names end as told.
func sources(t *testing.T, dir, suffix string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		text, err := os.ReadFile(path)
		b.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGoIsCompiled: what the README and docs/ show stands like that in an example.
// CONTRIBUTING shows patterns, with names that are the reader's.
func TestGoIsCompiled(t *testing.T) {
	code, n := sources(t, "examples", ".go"), 0
	for _, b := range blocks(t, "go") {
		if filepath.Base(b.file) == "CONTRIBUTING.md" {
			continue
		}
		if n++; !strings.Contains(code, b.text) {
			t.Errorf("%s: not in any example:\n%s", b.file, b.text)
		}
	}
	if n < 5 {
		t.Errorf("only %d blocks of Go were found", n)
	}
}

// TestYAMLLoads: each block is a file that a worker would take.
func TestYAMLLoads(t *testing.T) {
	found := blocks(t, "yaml")
	for _, b := range found {
		l, err := configs.Parse(b.file, []byte(b.text), configs.Options{
			StoreDrivers: []string{"sqlite", "postgres", "mariadb", "mysql"},
			Env:          func(string) (string, bool) { return "set", true },
			ReadFile:     func(string) ([]byte, error) { return []byte("read, and long enough"), nil },
		})
		if err != nil {
			t.Error(err)
			continue
		}
		jobs, err := l.BuildJobs(configs.Kinds{SQL: func(text string) (scheduler.Handler, error) { return sqljob.New(sqljob.SQLite, text, nil) }})
		if err != nil || len(jobs) == 0 && strings.Contains(b.text, "jobs:") || len(l.Warnings) > 0 {
			t.Errorf("%s: %d jobs, warnings %v: %v", b.file, len(jobs), l.Warnings, err)
		}
	}
	if len(found) == 0 {
		t.Error("no YAML was found")
	}
}

// TestEveryKeyIsDocumented compares docs/configuration.md with the structs, both ways.
func TestEveryKeyIsDocumented(t *testing.T) {
	there := map[string]bool{}
	for path, typ := range map[string]reflect.Type{
		"":                reflect.TypeFor[configs.Config](),
		"locks.redis":     reflect.TypeFor[redislock.PluginConfig](),
		"locks.redlock":   reflect.TypeFor[redlock.PluginConfig](),
		"locks.etcd":      reflect.TypeFor[etcdlock.PluginConfig](),
		"locks.zookeeper": reflect.TypeFor[zklock.PluginConfig](),
		"locks.postgres":  reflect.TypeFor[postgres.Config](),
		"locks.mariadb":   reflect.TypeFor[mysql.Config](),
		"locks.sqlite":    reflect.TypeFor[sqllock.PluginConfig](),
	} {
		keys(there, path, typ)
	}
	for f := range reflect.TypeFor[transport.TLS]().Fields() {
		there["tls."+f.Tag.Get("yaml")] = true
	}
	told := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]]+)` \\|").FindAllStringSubmatch(documents(t)[filepath.Join(root, "docs", "configuration.md")], -1) {
		told[m[1]] = true
	}
	for key := range there {
		if !told[key] {
			t.Errorf("docs/configuration.md does not tell of %s", key)
		}
	}
	for key := range told {
		if !there[key] {
			t.Errorf("docs/configuration.md tells of %s, which is no key", key)
		}
	}
	if len(there) < 110 {
		t.Errorf("only %d keys were found", len(there))
	}
}

// keys collects the paths of the values that a file can set.
func keys(into map[string]bool, path string, typ reflect.Type) {
	switch {
	case typ.Kind() == reflect.Pointer:
		keys(into, path, typ.Elem())
		return
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
		keys(into, path+"[]", typ.Elem())
		return
	case typ.Kind() != reflect.Struct || typ == reflect.TypeFor[secret.Value]() || typ == reflect.TypeFor[transport.TLS]():
		into[path] = true
		return
	}
	for f := range typ.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-" || !f.IsExported() || f.Type == reflect.TypeFor[map[string]strictyaml.Raw]():
		case opts == "inline":
			keys(into, path, f.Type)
		default:
			keys(into, strings.TrimPrefix(path+"."+name, "."), f.Type)
		}
	}
}

// TestNamedTestsExist: a document that names a test can be believed.
func TestNamedTestsExist(t *testing.T) {
	code, n := sources(t, ".", "_test.go"), 0
	for name, text := range documents(t) {
		for _, test := range regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(text, -1) {
			if n++; !strings.Contains(code, "\nfunc "+test[1]+"(t *testing.T) {") && test[1] != "TestMain" {
				t.Errorf("%s: there is no %s", name, test[1])
			}
		}
		for _, c := range regexp.MustCompile("the case `([^`]+)` of").FindAllStringSubmatch(text, -1) {
			if cases := sources(t, "store/storetest", ".go") + sources(t, "locks/lockstest", ".go"); !strings.Contains(cases, `"`+c[1]+`"`) {
				t.Errorf("%s: there is no case %s", name, c[1])
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d tests are named", n)
	}
}

// TestNamedSamplesLoad loads the samples that commands in documents name, as somebody
// does who has set no variable and copies the line.
func TestNamedSamplesLoad(t *testing.T) {
	seen := map[string]bool{}
	for name, text := range documents(t) {
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			for _, command := range regexp.MustCompile(`(?m)^(?:\$ )?(?:bin/|go run \./cmd/)?solotick .*`).FindAllString(m[2], -1) {
				sample := regexp.MustCompile(`configs/[a-z-]+\.yaml`).FindString(command)
				if sample == "" || seen[sample] {
					continue
				}
				seen[sample] = true
				if _, err := configs.Load(filepath.Join(root, sample), configs.Options{Env: func(string) (string, bool) { return "", false }}); err != nil {
					t.Errorf("%s: %s: %v", name, command, err)
				}
			}
		}
	}
	if !seen["configs/worker.yaml"] || !seen["configs/quickstart.yaml"] {
		t.Errorf("found %v only", seen)
	}
}

// TestNamedCommandsExist looks the commands up in the recorded help, and their long
// flags with them.
func TestNamedCommandsExist(t *testing.T) {
	const help = "../cmd/solotick/internal/cli/testdata/help/"
	n := 0
	for name, text := range documents(t) {
		var lines []string
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			lines = append(lines, strings.Split(m[2], "\n")...)
		}
		for _, m := range regexp.MustCompile("`(solotick [^`]+)`").FindAllStringSubmatch(text, -1) {
			lines = append(lines, m[1])
		}
		for _, line := range lines {
			m := regexp.MustCompile(`^(?:\$ )?(?:bin/|go run \./cmd/)?solotick ([a-z][a-z ]*)(.*)`).FindStringSubmatch(line)
			if m == nil {
				continue
			}
			n++
			words := strings.Fields(m[1])
			var text []byte
			for len(words) > 0 && text == nil {
				text, _ = os.ReadFile(help + "solotick-" + strings.Join(words, "-") + ".txt")
				words = words[:len(words)-1]
			}
			if text == nil {
				t.Errorf("%s: there is no such command: %s", name, line)
				continue
			}
			own, _, _ := strings.Cut(m[2], " -- ")
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(own, -1) {
				if !strings.Contains(string(text), flag+" ") {
					t.Errorf("%s: no flag %s: %s", name, flag, line)
				}
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d commands are named", n)
	}
}
