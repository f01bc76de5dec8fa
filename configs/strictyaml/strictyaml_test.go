package strictyaml_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/strictyaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server struct {
	URL      secret.Value            `yaml:"url" short:"true"`
	Password secret.Value            `yaml:"password"`
	Headers  map[string]secret.Value `yaml:"headers"`
	Timeout  time.Duration           `yaml:"timeout"`
}

type limits struct {
	Most  int     `yaml:"most"`
	Share float64 `yaml:"share"`
}

type root struct {
	Name     string                    `yaml:"name"`
	On       bool                      `yaml:"on"`
	Maybe    *bool                     `yaml:"maybe"`
	Count    int64                     `yaml:"count"`
	List     []string                  `yaml:"list"`
	Server   *server                   `yaml:"server"`
	Servers  []server                  `yaml:"servers"`
	Limits   limits                    `yaml:",inline"`
	Part     strictyaml.Raw            `yaml:"part"`
	Sections map[string]strictyaml.Raw `yaml:",inline"`
	Hidden   func()                    `yaml:"-"`
}

var files = map[string]string{
	"dir/pw":    "from-a-file\n",
	"dir/empty": "\n",
	"/abs/pw":   "absolute",
}

func options() strictyaml.Options {
	env := map[string]string{"NAME": "shop", "PORT": "8080", "EMPTY": "", "YES": "true", "WAIT": "3s", "INJECT": "a\nlist: [x]\n# ", "PW": "env-canary"}
	return strictyaml.Options{
		File: "dir/c.yaml",
		Env:  func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := files[path]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

func decode(text string) (root, error) {
	var r root
	d := strictyaml.Parse([]byte(text), options())
	d.Decode(&r)
	return r, d.Err()
}

func TestDecode(t *testing.T) {
	yes := true
	for _, c := range []struct {
		text string
		want root
	}{
		{"name: shop\non: true\nmaybe: true\ncount: -3\nmost: 7\nshare: 0.5", root{Name: "shop", On: true, Maybe: &yes, Count: -3, Limits: limits{7, 0.5}}},
		{"list: [a, \"b\", 'c']", root{List: []string{"a", "b", "c"}}},
		{"list:\n", root{}},
		{"name: |\n  two\n  lines\n", root{Name: "two\nlines\n"}},
		{"name: ${NAME}-${EMPTY:-none}-${UNSET:-}-$$-$HOME-$", root{Name: "shop-none--$-$HOME-$"}},
		{"name: $${NAME}", root{Name: "${NAME}"}},
		{"name: ${INJECT}", root{Name: "a\nlist: [x]\n# "}},
		{"count: ${PORT}\non: ${YES}\nserver: {timeout: \"${WAIT}\"}", root{Count: 8080, On: true, Server: &server{Timeout: 3 * time.Second}}},
		{"name: !!str 12", root{Name: "12"}},
		{"server: https://x", root{Server: &server{URL: secret.New("https://x")}}},
		{"server: {password: 0123}", root{Server: &server{Password: secret.New("0123")}}},
		{"server: {password_file: pw}", root{Server: &server{Password: secret.New("from-a-file")}}},
		{"server: {headers: {A: {file: /abs/pw}, B: x}}", root{Server: &server{Headers: map[string]secret.Value{"A": secret.New("absolute"), "B": secret.New("x")}}}},
		{"servers:\n  - &base {url: a, timeout: 1s}\n  - {<<: *base, url: b}\n  - *base", root{Servers: []server{
			{URL: secret.New("a"), Timeout: time.Second}, {URL: secret.New("b"), Timeout: time.Second}, {URL: secret.New("a"), Timeout: time.Second},
		}}},
		{"server: {timeout: 1d12h}", root{Server: &server{Timeout: 36 * time.Hour}}},
		{"server: {timeout: 0}", root{Server: &server{}}},
		{"\ufeffname: x # a comment", root{Name: "x"}},
		{"---\nname: x\n...\n", root{Name: "x"}},
	} {
		got, err := decode(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
		} else if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %+v, want %+v", c.text, got, c.want)
		}
	}
}

// TestProblems compares whole messages: they are what an operator works with.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{"dir/c.yaml: is empty: write at least a namespace, see configs/quickstart.yaml"}},
		{"# only this\n", []string{"dir/c.yaml: is empty: write at least a namespace, see configs/quickstart.yaml"}},
		{"a: \xff", []string{"dir/c.yaml: is not UTF-8 text: save it as UTF-8, or check that it is the right file"}},
		{"- a", []string{"dir/c.yaml:1:1: is a list, not a mapping: begin with keys, such as namespace: shop"}},
		{"name: a\n---\nname: b", []string{"dir/c.yaml:3:5: a second document begins here: keep one document per file"}},
		{"nmae: x", []string{`dir/c.yaml:1:1: unknown key "nmae": did you mean name?`}},
		{"server: {timeuot: 3s}", []string{`dir/c.yaml:1:10: server: unknown key "timeuot": did you mean timeout?`}},
		{"server: {zzz: 3s}", []string{`dir/c.yaml:1:10: server: unknown key "zzz": known keys are headers, password, password_file, timeout, url, url_file`}},
		{"server:\n  timeout: 10", []string{"dir/c.yaml:2:12: server.timeout: 10 has no unit: write a duration such as 10s, 1h30m or 2d"}},
		{"server:\n  timeout: soon", []string{"dir/c.yaml:2:12: server.timeout: is not a duration: write a duration such as 10s, 1h30m or 2d"}},
		{"count: many", []string{"dir/c.yaml:1:8: count: is text: write a whole number"}},
		{"count: 1.5", []string{"dir/c.yaml:1:8: count: 1.5 is not a whole number: write a whole number"}},
		{"count: \"5\"", []string{"dir/c.yaml:1:8: count: is text: write a whole number"}},
		{"on: yes", []string{"dir/c.yaml:1:5: on: is text: write true or false"}},
		{"name: 5", []string{"dir/c.yaml:1:7: name: is a number: write text, in quotes if it is to be this"}},
		{"name:\ncount: 1", []string{"dir/c.yaml:1:6: name: has no value: write text, or remove the key"}},
		{"name: [a]", []string{"dir/c.yaml:1:7: name: is a list: write text"}},
		{"list: {a: b}", []string{"dir/c.yaml:1:8: list: is a mapping: write a list"}},
		{"list: [a, {b: c}]", []string{"dir/c.yaml:1:12: list[1]: is a mapping: write text"}},
		{"name: a\nname: b", []string{`dir/c.yaml:2:1: key "name" stands here a second time, the first is in line 1: keep one of them`}},
		{"name: ${UNSET}", []string{"dir/c.yaml:1:7: name: environment variable UNSET is not set: set it, or give a default as in ${UNSET:-default}"}},
		{"name: ${NAME", []string{"dir/c.yaml:1:7: name: has ${ without }: close it, or write $$ for a dollar sign"}},
		{"name: ${a-b}", []string{"dir/c.yaml:1:7: name: has ${…} around something that is not a variable's name: write ${NAME} or ${NAME:-default}, or $$ for a dollar sign"}},
		{"count: ${NAME}", []string{"dir/c.yaml:1:8: count: ${NAME} is not a whole number: write a whole number"}},
		{"server: {password: a, password_file: pw}", []string{"dir/c.yaml:1:23: server.password_file: stands beside password: keep one of the two"}},
		{"server: {password_file: nowhere}", []string{"dir/c.yaml:1:25: server.password_file: nowhere cannot be read: file does not exist: check the path and its permissions"}},
		{"server: {password_file: empty}", []string{"dir/c.yaml:1:25: server.password_file: the file is empty: write the secret into it"}},
		{"server: [a]", []string{"dir/c.yaml:1:9: server: is a list: write a mapping"}},
		{"name: *a", []string{"dir/c.yaml:1:7: alias *a has no anchor: write &a before the value meant"}},
		{"part: &a [*a]", []string{"dir/c.yaml:1:11: alias *a refers to itself: write the value out"}},
		{"name: */15 * * * *\ncount: 1", []string{`dir/c.yaml:1:7: is not YAML: a value that begins with *: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"name: * * * * *\ncount: 1", []string{`dir/c.yaml:1:7: is not YAML: a value that begins with *: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"count: 1\nname: * * * * *", []string{`dir/c.yaml:2:7: is not YAML: a value that begins with *: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"name: @every 5s\ncount: 1", []string{`dir/c.yaml:1:7: is not YAML: a value that begins with @: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"servers:\n- {timeout: 1s, url: @every 5s}", []string{`dir/c.yaml:2:22: is not YAML: a value that begins with @: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"list:\n  - a\n  - @daily", []string{`dir/c.yaml:3:5: is not YAML: a value that begins with @: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"server:\n\ttimeout: 1s", []string{"dir/c.yaml:2:1: is not YAML: a tab in the indentation: indent with spaces, not tabs"}},
		{"servers:\n- url: a\n\ttimeout: 1s", []string{"dir/c.yaml:3:1: is not YAML: a tab in the indentation: indent with spaces, not tabs"}},
		{"name: !secret x", []string{"dir/c.yaml:1:7: has a tag: remove it: only !!str before a scalar is understood"}},
		{"server:\n  password:hunter2: x", []string{`dir/c.yaml:2:3: server: unknown key "password:…": is a space missing after the colon, or a quote? known keys are headers, password, password_file, timeout, url, url_file`}},
		{"count: x\nnmae: y\non: 1\nname: [", []string{"dir/c.yaml:4:7: is not YAML: sequence end token ']' not found: check indentation, quotes and brackets at this place"}},
		{"count: x\nnmae: y\non: 1", []string{ // all, by line
			"dir/c.yaml:1:8: count: is text: write a whole number",
			`dir/c.yaml:2:1: unknown key "nmae": did you mean name?`,
			"dir/c.yaml:3:5: on: 1 is not true or false: write true or false",
		}},
	} {
		_, err := decode(c.text)
		if _, ok := errors.AsType[strictyaml.Problems](err); !ok {
			t.Errorf("%q: got %v, want problems", c.text, err)
			continue
		}
		if got := strings.Split(err.Error(), "\n"); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q:\n got %s\nwant %s", c.text, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

func TestLimits(t *testing.T) {
	laughs := "part:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		laughs += fmt.Sprintf("  a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	for name, text := range map[string]string{
		"size":   "name: " + strings.Repeat("x", strictyaml.MaxBytes),
		"laughs": laughs,
		"depth":  "part: " + strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		if _, err := decode(text); err == nil {
			t.Errorf("%s: accepted", name)
		} else if len(err.Error()) > 400 {
			t.Errorf("%s: a message of %d bytes", name, len(err.Error()))
		}
	}
}

func TestRawDecodesStrictlyWithItsPlace(t *testing.T) {
	r, err := decode("part:\n  password: ${PW}\n  timeuot: 3\nother: {url: x}\n")
	if err != nil {
		t.Fatal(err)
	}
	var s server
	const want = `dir/c.yaml:3:3: part: unknown key "timeuot": did you mean timeout?`
	if err := r.Part.Decode(&s); err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
	if err := r.Sections["other"].Decode(&s); err != nil || s.URL.Reveal() != "x" {
		t.Fatalf("%v, %q", err, s.URL.Reveal())
	}
	if err := r.Sections["none"].Decode(&s); err != nil || !r.Sections["none"].IsZero() {
		t.Fatalf("a missing part: %v", err)
	}
	same, _ := decode("part: {timeuot: 3, password: env-canary}")
	other, _ := decode("part: {timeuot: 4, password: env-canary}")
	if !r.Part.Equal(same.Part) || r.Part.Equal(other.Part) || r.Part.Equal(strictyaml.Raw{}) {
		t.Fatal("parts are compared by what they say")
	}
}

// TestCallersMessagesHideSecrets: a check that shows the value it refuses must
// not show one that came from outside the document.
func TestCallersMessagesHideSecrets(t *testing.T) {
	var r root
	d := strictyaml.Parse([]byte("name: x${PW}y\nserver: {password: plain-canary, url_file: pw}\nlimits: {}\n"), options())
	d.Decode(&r)
	d.AddError("", fmt.Errorf("pkg: name: %q is bad", r.Name))
	d.AddError("server", errors.Join(fmt.Errorf("pkg: password: %s is weak", r.Server.Password.Reveal()), fmt.Errorf("pkg: invalid url: %s", r.Server.URL.Reveal())))
	text := d.Err().Error()
	for _, canary := range []string{"env-canary", "plain-canary", "from-a-file"} {
		if strings.Contains(text, canary) {
			t.Errorf("shows %s:\n%s", canary, text)
		}
	}
	for _, want := range []string{
		`dir/c.yaml:1:7: name: "x${PW}y" is bad`, "dir/c.yaml:2:20: server.password: [redacted] is weak", "dir/c.yaml:2:44: server.url: [redacted]",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestBrokenDocumentsHideSecrets breaks a document at every byte in several ways.
func TestBrokenDocumentsHideSecrets(t *testing.T) {
	const canary = "kanarienvogel4711"
	const good = "name: a\nserver:\n  url: \"" + canary + "\"\n  password: " + canary + "\n  headers: {A: '" + canary + "', B: \"${NAME}\"}\nservers: [{password: " + canary + "}]\nlist:\n- b\n"
	if _, err := decode(good); err != nil {
		t.Fatal(err)
	}
	check := func(text string) {
		t.Helper()
		if _, err := decode(text); err != nil && strings.Contains(err.Error(), canary) {
			t.Fatalf("shows the secret: %v\n%s", err, text)
		}
	}
	for i := range good {
		check(good[:i])
		check(good[:i] + good[i+1:])
		for _, c := range []string{":", "\"", "'", "\n", " ", "\t", "[", "}", "&", "*", "!", "|", ">", "$", "${", "#", "-", "?", ",", "%", "\\"} {
			if i%2 == 0 { // one way of breaking for each byte is enough, in turn
				check(good[:i] + c + good[i:])
			} else {
				check(good[:i] + c + good[i+1:])
			}
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"10s": 10 * time.Second, "2d": 48 * time.Hour, "1d1h": 25 * time.Hour, "0d": 0, "1.5h": 90 * time.Minute} {
		if got, err := strictyaml.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "1", "1x", "-1d", "1.5d", "1d-1h", "1d+1h", "1d1d", "99999d", "s"} {
		if got, err := strictyaml.ParseDuration(text); err == nil {
			t.Errorf("%q gave %v", text, got)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"timeout", "timezone", "cron", "exec", "catch_up"}
	for got, want := range map[string]string{"timeuot": "timeout", "Timezone": "timezone", "corn": "cron", "catchup": "catch_up", "zzz": "", "": ""} {
		if near := strictyaml.Nearest(got, names); near != want {
			t.Errorf("%q: got %q, want %q", got, near, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"name: ${NAME}\nserver: {url: x, password_file: pw}\nservers: [&a {url: b}, *a, {<<: *a}]\n", "part: &a [*a]", "? a\n: b", "a: !!str 1", "a: |\n  x\n---\nb", "list: [a, [b], {c: d}]", "- 1\n-", "%YAML 1.2\n---\na: b", "a: \"\\x\"", "<<: [*a, {}]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := decode(text)
		var ps strictyaml.Problems
		if err != nil && (!errors.As(err, &ps) || len(ps) == 0) {
			t.Fatalf("not problems: %v", err)
		}
		for _, p := range ps {
			if p.Message == "" || strings.Contains(p.Error(), "env-canary") {
				t.Fatalf("bad message %q", p.Error())
			}
		}
		var s server
		_ = r.Part.Decode(&s)
	})
}

func TestAddressesNeedNoQuotes(t *testing.T) {
	for text, want := range map[string][]string{
		"a: [127.0.0.1:6379, redis-2:6379]":                   {"127.0.0.1:6379", "redis-2:6379"},
		"part: {a: [127.0.0.1:6379, b:1:2 , 'c:3', d], x: 1}": {"127.0.0.1:6379", "b:1:2", "c:3", "d"},
		"part: {a: [https://h:1, e:007], x: 1}":               {"https://h:1", "e:007"},
		"a:\n- localhost:6379":                                {"localhost:6379"},
	} {
		type part struct {
			A []string `yaml:"a"`
			X int      `yaml:"x"`
		}
		var into struct {
			A    []string `yaml:"a"`
			Part part     `yaml:"part"`
		}
		d := strictyaml.Parse([]byte(text), strictyaml.Options{})
		d.Decode(&into)
		if err := d.Err(); err != nil || !slices.Equal(append(into.A, into.Part.A...), want) {
			t.Errorf("%s: %q, %v", text, append(into.A, into.Part.A...), err)
		}
	}
	var into struct {
		Part struct {
			A []string `yaml:"a"`
		} `yaml:"part"`
	}
	d := strictyaml.Parse([]byte("part: {a: [b: 1, 'c':2]}"), strictyaml.Options{})
	d.Decode(&into)
	if err := d.Err(); err == nil || !strings.Contains(err.Error(), "part.a[0]: is a mapping") || !strings.Contains(err.Error(), "part.a[1]: is a mapping") {
		t.Errorf("mappings were taken for text: %v", err)
	}
}
