package configs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

const canary = "kanarienvogel4711"

func options() configs.Options {
	env := map[string]string{"SYNC_TOKEN": canary, "TOKEN": canary, "REDIS_PASSWORD": canary}
	return configs.Options{
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if strings.HasPrefix(path, "/run/secrets/") {
				return []byte("of " + filepath.Base(path) + "\n"), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
		StoreDrivers: []string{"sqlite", "postgres", "mariadb", "mysql"},
		LockDrivers:  []string{"memory", "redis", "sqlite"},
	}
}

func parse(t *testing.T, text string) *configs.Loaded {
	t.Helper()
	l, err := configs.Parse("c.yaml", []byte(text), options())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func kinds() configs.Kinds {
	return configs.Kinds{SQL: func(string) (scheduler.Handler, error) {
		return func(context.Context, *scheduler.Run) error { return nil }, nil
	}}
}

// TestSamples loads every sample and gives its jobs to a scheduler.
func TestSamples(t *testing.T) {
	names, err := filepath.Glob("*.yaml")
	if err != nil || len(names) < 5 {
		t.Fatalf("samples %v, %v", names, err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			l, err := configs.Load(name, options())
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Warnings) > 0 {
				t.Error(l.Warnings)
			}
			jobs, err := l.BuildJobs(kinds())
			if err != nil || len(jobs) == 0 {
				t.Fatalf("%d jobs, %v", len(jobs), err)
			}
			cfg := l.SchedulerConfig()
			cfg.Gate = scheduler.GateNone
			s, err := scheduler.New(cfg, scheduler.Deps{Store: memstore.New()})
			if err != nil {
				t.Fatal(err)
			}
			var open []scheduler.Job
			for i, j := range jobs {
				if g := l.Jobs[i].Gate; g == "" || g == scheduler.GateNone {
					open = append(open, j) // the others need a locker
				}
			}
			if err := s.Add(open...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWorkerSampleHasEveryKey keeps the commented sample complete.
func TestWorkerSampleHasEveryKey(t *testing.T) {
	text, err := os.ReadFile("worker.yaml")
	if err != nil {
		t.Fatal(err)
	}
	server, err := os.ReadFile("postgres.yaml") // what the driver of a file refuses
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, server...)
	seen := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(typ.Elem())
		case reflect.Struct:
			if typ == reflect.TypeFor[secret.Value]() || typ == reflect.TypeFor[strictyaml.Raw]() || typ == reflect.TypeFor[transport.TLS]() {
				return
			}
			for f := range typ.Fields() {
				name, opts, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				if name == "-" || !f.IsExported() {
					continue
				}
				if opts != "inline" {
					seen++
					if name == "" {
						t.Errorf("%s.%s has no yaml tag", typ, f.Name)
					} else if !regexp.MustCompile(`(?m)^[ -]*` + name + `:`).Match(text) {
						t.Errorf("worker.yaml and postgres.yaml do not show %s (%s.%s)", name, typ, f.Name)
					}
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[configs.Config]())
	if seen < 50 {
		t.Fatalf("only %d keys were found", seen)
	}
}

func TestDefaults(t *testing.T) {
	l := parse(t, "namespace: shop")
	if l.Store.Driver != "sqlite" || l.Store.DSN.Reveal() != "solotick.db" || !l.Store.Migrate() || l.Locks.Driver != configs.LocksInStore || l.Log != (configs.Log{Level: "info", Format: "text"}) {
		t.Errorf("%+v", l.Config)
	}
	var into struct {
		DSN string `yaml:"dsn"`
	}
	if err := l.Locks.Decode(&into); err != nil || into.DSN != "" {
		t.Errorf("a driver without a part: %v, %+v", err, into)
	}
	l = parse(t, "namespace: shop\nscheduler: {lease: 3s, gate: none}\ndegradation: {mode: store_only, jobs: {a: fail_fast}}\nlog: {level: warn}\nlocks: {driver: sqlite, ttl: 4s, sqlite: {dsn: locks.db}}\nstore: {auto_migrate: false}")
	s := l.SchedulerConfig()
	if s.Namespace != "shop" || s.Lease != 3*time.Second || s.Gate != scheduler.GateNone || s.Degradation.Mode != store.ModeStoreOnly || s.Degradation.Jobs["a"] != store.ModeFailFast {
		t.Errorf("%+v", s)
	}
	if err := l.Locks.Decode(&into); err != nil || into.DSN != "locks.db" || l.Locks.TTL != 4*time.Second || l.Store.Migrate() || l.Log.SlogLevel().String() != "WARN" {
		t.Errorf("%v, %+v, %+v", err, into, l.Config)
	}
	var strict struct{}
	const want = `c.yaml:5:43: locks.sqlite: unknown key "dsn"`
	if err := l.Locks.Decode(&strict); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestProblems shows what an operator reads: whole lines.
func TestProblems(t *testing.T) {
	job := func(keys string) string {
		return "namespace: a\njobs:\n- name: j\n  cron: '@daily'\n  exec: ['true']\n  " + strings.ReplaceAll(keys, "\n", "\n  ")
	}
	for _, c := range []struct {
		text string
		want []string // prefixes of the lines
	}{
		{"log: {}", []string{"c.yaml: namespace: is empty: give it a name"}},
		{"namespace: a b", []string{`c.yaml:1:12: namespace: "a b" has ' ' at byte 1`}},
		{"namespace: a\nstoer: {}", []string{`c.yaml:2:1: unknown key "stoer": did you mean store?`}},
		{"namespace: a\nstore: {driver: sqlit}", []string{`c.yaml:2:17: store.driver: "sqlit" is not a name known here: did you mean sqlite? allowed are sqlite, postgres, mariadb, mysql`}},
		{"namespace: a\nstore: {table_prefix: 'Bobby; --'}", []string{`c.yaml:2:23: store.table_prefix: "Bobby; --" cannot begin the name of a table: use`}},
		{"namespace: a\nlocks: {driver: redsi}", []string{`c.yaml:2:17: locks.driver: "redsi" is not a name known here: did you mean redis? allowed are store, memory, redis, sqlite`}},
		{"namespace: a\nlocks: {driver: sqlite, sqlit: {dsn: x}}", []string{`c.yaml:2:25: locks: unknown key "sqlit": did you mean sqlite?`}},
		{"namespace: a\nlocks: {tll: 10s}", []string{`c.yaml:2:9: locks: unknown key "tll": did you mean ttl?`}},
		{"namespace: a\nlocks: {ttl: 2s, renew_interval: 1s}", []string{"c.yaml:2:14: locks.ttl: 2s leaves no room for a second renewal: "}},
		{"namespace: a\nscheduler: {gate: loock, timezone: Europe/Berln, lease: 1ms, concurrency: -1, poll_interval: 1ms, drain_timeout: -1s}", []string{
			`c.yaml:2:19: scheduler.gate: "loock" is none of lock, leader, none`,
			`c.yaml:2:36: scheduler.timezone: "Europe/Berln" is not a zone of the IANA database: write`,
			"c.yaml:2:57: scheduler.lease: 1ms is outside 1s to 10m0s",
			"c.yaml:2:75: scheduler.concurrency: -1 is below 1",
			"c.yaml:2:94: scheduler.poll_interval: 1ms is below 100ms",
			"c.yaml:2:114: scheduler.drain_timeout: -1s is negative",
		}},
		{"namespace: a\ndegradation: {mode: fast, after: -1s, jobs: {x: y}}", []string{
			`c.yaml:2:21: degradation.mode: "fast" is not a name known here: allowed are fail_fast, local_mutex, store_only`,
			"c.yaml:2:34: degradation.after: -1s is negative: leave it out for the default",
			`c.yaml:2:46: degradation.jobs.x: "y" is not a name known here: allowed are fail_fast`,
		}},
		{"namespace: a\ndegradation: {switch: force}\njobs: [{name: j, cron: '@daily', exec: [a], when_store_down: run}, {name: k, cron: '@daily', sql: s, when_store_down: run}, {name: q, queue: true, exec: [a], when_store_down: wait}]", []string{
			`c.yaml:2:23: degradation.switch: "force" is not a name known here: did you mean forced?`,
			`c.yaml:3:62: jobs[0].when_store_down: has no place to note such runs: name a directory on this host's disk in scheduler.journal`,
			`c.yaml:3:119: jobs[1].when_store_down: has no place`,
			`c.yaml:3:119: jobs[1].when_store_down: stands beside sql`,
			`c.yaml:3:176: jobs[2].when_store_down: is for cron jobs`,
		}},
		{"namespace: a\ndegradation: {mode: failfast, jobs: {x: storeonly}}", []string{
			`c.yaml:2:21: degradation.mode: "failfast" is not a name known here: did you mean fail_fast?`,
			`c.yaml:2:38: degradation.jobs.x: "storeonly" is not a name known here: did you mean store_only?`,
		}},
		{"namespace: a\njobs:\n- name: x\n  schedule: '@daily'\n  command: [a]\n  retries: 3", []string{
			"c.yaml:3:3: jobs[0]: says nothing to do", "c.yaml:3:3: jobs[0]: says nothing of when",
			`c.yaml:4:3: jobs[0]: unknown key "schedule": did you mean cron?`, `c.yaml:5:3: jobs[0]: unknown key "command": did you mean exec?`, `c.yaml:6:3: jobs[0]: unknown key "retries": did you mean retry?`,
		}},
		{"namespace: a\njobs:\n- name: x\n  cron: '@daily'\n  exec: /bin/backup --all", []string{"c.yaml:5:9: jobs[0].exec: is text: write a list, as in [/bin/backup, --all]"}},
		{"namespace: a\njobs:\n- name: x\n  cron: */15 * * * *\n  exec: [a]", []string{`c.yaml:4:9: is not YAML: a value that begins with *: write it in quotes, as in cron: "*/15 * * * *"`}},
		{"namespace: a\nlog: {level: wran, format: xml}", []string{
			`c.yaml:2:14: log.level: "wran" is not a name known here: did you mean warn?`, `c.yaml:2:28: log.format: "xml" is not a name known here: allowed are text, json`,
		}},
		{"namespace: a\njobs:\n- name: x\n  cron: '@daily'\n  exec: [a]\n- name: y\n  queue: true\n  exec: [a]\n- cron: '@daily'\n  exec: [a]\n  name: x", []string{
			`c.yaml:11:9: jobs[2].name: job "x" is defined a second time, the first is in line 3: rename or remove one of them`,
		}},
		{"namespace: a\njobs:\n- {cron: '@daily', exec: [a]}", []string{"c.yaml:3:4: jobs[0].name: is empty: give it a name"}},
		{"namespace: a\njobs:\n- {name: x, cron: '@daily'}", []string{"c.yaml:3:4: jobs[0]: says nothing to do: give one of exec, http and sql"}},
		{"namespace: a\njobs:\n- {name: x, exec: [a]}", []string{"c.yaml:3:4: jobs[0]: says nothing of when: give a cron, or queue: true"}},
		{job("sql: SELECT 1"), []string{"c.yaml:6:8: jobs[0].sql: stands beside exec: keep one of them"}},
		{job("queue: true"), []string{"c.yaml:6:10: jobs[0].queue: stands beside cron: keep one"}},
		{"namespace: a\njobs:\n- {name: x, queue: true, exec: [a], overlap: skip, timezone: UTC}", []string{
			"c.yaml:3:46: jobs[0].overlap: is for cron jobs: remove it", "c.yaml:3:62: jobs[0].timezone: is for cron jobs",
		}},
		{"namespace: a\njobs:\n- {name: x, cron: '61 * * * *', exec: [a]}", []string{`c.yaml:3:19: jobs[0].cron: minute "61" `}},
		{"namespace: a\njobs:\n- {name: x, cron: '0 0 31 2 *', exec: [a]}", []string{`c.yaml:3:19: jobs[0].cron: spec "0 0 31 2 *" never fires: `}},
		{"namespace: a\njobs:\n- {name: x, cron: 'TZ=Nowhere 0 0 * * *', exec: [a]}", []string{`c.yaml:3:19: jobs[0].cron: zone "Nowhere" `}},
		{job("timezone: Europe/Berln"), []string{`c.yaml:6:13: jobs[0].timezone: zone "Europe/Berln" `}},
		{job("dst: {gap: jump, fold: first}"), []string{`c.yaml:6:14: jobs[0].dst.gap: gap "jump" is not a known policy: use next_valid, shift or skip`}},
		{job("misfire: fire_onec\noverlap: drop\ngate: lcok\ndegraded: x\non_crash: retry"), []string{
			`c.yaml:6:12: jobs[0].misfire: "fire_onec" is not a name known here: did you mean fire_once? allowed are fire_once, fire_all, skip`,
			`c.yaml:7:12: jobs[0].overlap: "drop" is not a name known here: allowed are skip, buffer_all`,
			`c.yaml:8:9: jobs[0].gate: "lcok" is not a name known here: did you mean lock?`,
			`c.yaml:9:13: jobs[0].degraded: "x" is not a name known here: allowed are fail_fast, local_mutex, store_only`,
			`c.yaml:10:13: jobs[0].on_crash: "retry" is not a name known here: allowed are rerun, mark_failed, next_tick, indeterminate`,
		}},
		{job("timeout: -1s\nretry: {attempts: -1, base: 2m, max: 1m}\ncatch_up: {window: -1s}\nspread: true"), []string{
			"c.yaml:6:12: jobs[0].timeout: is negative", "c.yaml:7:21: jobs[0].retry.attempts: is negative", "c.yaml:7:31: jobs[0].retry.base: 2m0s is longer than max, 1m0s",
			"c.yaml:8:22: jobs[0].catch_up.window: is negative", "c.yaml:9:11: jobs[0].spread: moves @every schedules only",
		}},
		{"namespace: a\njobs:\n- {name: x, cron: '@daily', exec: []}\n- {name: y, cron: '@daily', http: {url: 'x', method: get}}\n- {name: z, cron: '@daily', sql: ' '}", []string{
			"c.yaml:3:35: jobs[0].exec.command: is empty", "c.yaml:4:41: jobs[1].http.url: begins with neither", `c.yaml:4:54: jobs[1].http.method: "get" cannot be used`, "c.yaml:5:34: jobs[2].sql: is empty",
		}},
		// What the scheduler would refuse, also where nothing is wrong with the values.
		{job("retry: {attempts: 1500}"), []string{"c.yaml:6:11: jobs[0].retry: a retention of 168h0m0s is too short: the catch-up window and the retries reach "}},
		{job("retry: {attempts: 9223372036854775807}"), []string{"c.yaml:6:21: jobs[0].retry.attempts: 9223372036854775807 is over 10000: write no more, or leave it out for the default"}},
		{"namespace: a\nscheduler: {lease: 5s}\njobs:\n- {name: x, cron: '@daily', exec: {command: [a], grace: 30s}}", []string{"c.yaml:4:57: jobs[0].exec.grace: 30s is more than 4s, four fifths of scheduler.lease"}},
		{job("catch_up: {window: 10ms}"), []string{"c.yaml:6:22: jobs[0].catch_up.window: 10ms is below 12s: a tick whose owner died is found up to a lease (10s) and 2s after it"}},
		{job("catch_up: {window: 8d}\nmisfire: fire_all"), []string{"c.yaml:6:22: jobs[0].catch_up.window: a retention of 168h0m0s is too short"}},
		{"namespace: a\nscheduler: {journal: j}\njobs:\n- {name: x, cron: '@daily', when_store_down: run, http: {url: 'https://x', idempotent: true}}", []string{
			"c.yaml:4:46: jobs[0].when_store_down: run is at-least-once, which contradicts effectively-once",
		}},
		{"namespace: a\nscheduler: {retention: {skipped: 2h}}\njobs:\n- {name: x, cron: '@daily', exec: [a]}\n- {name: y, queue: true, exec: [a]}", []string{"c.yaml:5:4: jobs[1].retry: a retention of 2h0m0s is too short"}},
		// Everything at once, by line, whatever part it is of.
		{"nmaespace: a\nstore: 5\nlocks: {ttl: 1}\njobs:\n- {name: x, crn: y, exec: [a]}", []string{
			"c.yaml: namespace: is empty", `c.yaml:1:1: unknown key "nmaespace": did you mean namespace?`, "c.yaml:2:8: store: is a number: write a mapping",
			"c.yaml:3:14: locks.ttl: 1 has no unit", "c.yaml:5:4: jobs[0]: says nothing of when", `c.yaml:5:13: jobs[0]: unknown key "crn": did you mean cron?`,
		}},
	} {
		_, err := configs.Parse("c.yaml", []byte(c.text), options())
		if _, ok := errors.AsType[strictyaml.Problems](err); !ok {
			t.Errorf("%q: got %v, want problems", c.text, err)
			continue
		}
		got := strings.Split(err.Error(), "\n")
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s\n got %s\nwant %s", c.text, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

func TestLoadFails(t *testing.T) {
	if _, err := configs.Load(filepath.Join(t.TempDir(), "none.yaml"), options()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := configs.Load(t.TempDir(), options()); err == nil {
		t.Error("a directory was loaded")
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, []byte("# "+strings.Repeat("x", strictyaml.MaxBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := configs.Load(big, options()); err == nil || !strings.Contains(err.Error(), "the most is") {
		t.Error(err)
	}
}

func TestWarnings(t *testing.T) {
	l := parse(t, "namespace: a\ndegradation:\n  jobs: {bakcup: fail_fast, elsewhere: store_only}\njobs:\n- {name: backup, cron: '@daily', exec: [a]}")
	got := fmt.Sprint(l.Warnings)
	for _, want := range []string{"c.yaml:3:10: degradation.jobs.bakcup: no job of this file has that name: did you mean backup?", "c.yaml:3:29: degradation.jobs.elsewhere: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

// TestPartOfALockDriverIsChecked: what the driver finds wrong with its part is told
// with everything else, where it stands, and without a secret.
func TestPartOfALockDriverIsChecked(t *testing.T) {
	o := options()
	asked := 0
	o.CheckLocks = func(driver string, decode func(any) error) error {
		asked++
		var own struct {
			DSN  string       `yaml:"dsn"`
			Pass secret.Value `yaml:"pass"`
			TLS  struct {
				File string `yaml:"file"`
			} `yaml:"tls"`
		}
		if err := decode(&own); err != nil {
			return err
		}
		return errors.Join(
			fmt.Errorf("%slock: dsn: %q is wrong", driver, own.DSN),
			fmt.Errorf("%slock: tls.file: not with %s", driver, own.Pass.Reveal()),
			fmt.Errorf("%slock: pass and file: together", driver),
			fmt.Errorf("%slock: elsewhere: is missing", driver))
	}
	for _, c := range []struct {
		part string
		want []string
	}{
		{"{dsn: x,\n pass: '${TOKEN}',\n tls: {file: f}}", []string{
			"c.yaml:2:25: locks.sqlite.elsewhere: is missing", `c.yaml:2:39: locks.sqlite.dsn: "x" is wrong`,
			"c.yaml:3:8: locks.sqlite.pass: pass and file: together", "c.yaml:4:14: locks.sqlite.tls.file: not with ${TOKEN}",
			`c.yaml:5:10: locks: unknown key "tll"`,
		}},
		{"{dsn: 5, x: 1}", []string{"c.yaml:2:39: locks.sqlite.dsn: is a number", `c.yaml:2:42: locks.sqlite: unknown key "x"`, `c.yaml:3:10: locks: unknown key "tll"`}},
	} {
		_, err := configs.Parse("c.yaml", []byte("namespace: a\nlocks: {driver: sqlite, sqlite: "+c.part+",\n         tll: 1s}"), o)
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Fatalf("got %v", err)
		}
		if got := strings.Split(err.Error(), "\n"); !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s\n got %s\nwant %s", c.part, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
	if _, err := configs.Parse("c.yaml", []byte("namespace: a\nlocks: {driver: sqlit}"), o); err == nil || asked != 2 {
		t.Errorf("a driver that is not known was asked: %d, %v", asked, err)
	}
}

func TestBuildJobs(t *testing.T) {
	text := `namespace: a
jobs:
- {name: c, cron: "0 2 * * *", timezone: Asia/Shanghai, exec: [a], timeout: 3m, retry: {attempts: 4, base: 1s, max: 2s}, misfire: skip, overlap: buffer_all, gate: none, description: d}
- {name: h, cron: "@every 1m", gate: none, http: {url: "https://x", idempotent: true}}
- {name: s, cron: "@every 1m", gate: none, sql: "DELETE FROM t"}
- {name: q, queue: true, http: "https://x", on_crash: mark_failed, retry: {attempts: 1}}
`
	l := parse(t, text)
	jobs, err := l.BuildJobs(kinds())
	if err != nil {
		t.Fatal(err)
	}
	s, err := scheduler.New(l.SchedulerConfig(), scheduler.Deps{Store: memstore.New()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(jobs...); err != nil {
		t.Fatal(err)
	}
	want := []scheduler.JobDescription{
		{Name: "c", Kind: "cron", Spec: "0 2 * * *", Zone: "Asia/Shanghai", Gate: "none", Misfire: "skip", Overlap: "buffer_all", Timeout: "3m0s", Attempts: 4, Guarantee: scheduler.AtLeastOnce, Description: "d"},
		{Name: "h", Kind: "cron", Spec: "@every 1m", Zone: "UTC", Gate: "none", Misfire: "fire_once", Overlap: "skip", Timeout: "1h0m0s", Attempts: 1, Guarantee: scheduler.EffectivelyOnce},
		{Name: "q", Kind: "queue", Gate: "none", Timeout: "1h0m0s", Attempts: 1, Guarantee: scheduler.AtMostOnce},
		{Name: "s", Kind: "cron", Spec: "@every 1m", Zone: "UTC", Gate: "none", Misfire: "fire_once", Overlap: "skip", Timeout: "1h0m0s", Attempts: 1, Guarantee: scheduler.ExactlyOnce},
	}
	if got := s.Describe().Jobs; !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}

	const refused = "c.yaml:5:49: jobs[2].sql: "
	if _, err := l.BuildJobs(configs.Kinds{}); err == nil || !strings.HasPrefix(err.Error(), refused) {
		t.Errorf("got %v, want %s", err, refused)
	}
	bad := kinds()
	bad.SQL = func(string) (scheduler.Handler, error) {
		return nil, errors.New("sqljob: statement 1: COMMIT is refused")
	}
	if _, err := l.BuildJobs(bad); err == nil || !strings.HasPrefix(err.Error(), refused+"statement 1: COMMIT is refused") {
		t.Errorf("got %v", err)
	}
	if _, err := l.BuildJobs(kinds()); err != nil {
		t.Errorf("an earlier failure stays: %v", err)
	}
}

func TestDiff(t *testing.T) {
	const base = "namespace: a\nstore: {dsn_file: /run/secrets/x}\nlocks: {driver: sqlite, sqlite: {dsn: l.db}}\nscheduler: {lease: 10s}\ndegradation: {mode: fail_fast}\njobs: [{name: j, cron: '@daily', exec: [a], timeout: 60s}]\n"
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(base) }
	for _, c := range []struct {
		text string
		want configs.Changes
	}{
		{"# comment\n" + replace("60s", "1m", "lease: 10s", "'lease': 10s"), configs.Changes{}},
		{replace("fail_fast", "store_only"), configs.Changes{Hot: []string{"degradation.mode"}}},
		{replace("mode: fail_fast", "jobs: {j: store_only}"), configs.Changes{Hot: []string{"degradation.mode", "degradation.jobs.j"}}},
		{replace("namespace: a", "namespace: b"), configs.Changes{Restart: []string{"namespace"}}},
		{replace("dsn_file: /run/secrets/x", "dsn: other"), configs.Changes{Restart: []string{"store.dsn"}}},
		{replace("dsn_file: /run/secrets/x", "dsn: of x"), configs.Changes{}},
		{replace("dsn_file: /run/secrets/x", "driver: postgres, dsn: of x, tls: {enabled: true}"), configs.Changes{Restart: []string{"store.driver", "store.tls.enabled"}}},
		{replace("l.db", "m.db"), configs.Changes{Restart: []string{"locks.sqlite"}}},
		{replace("driver: sqlite", "driver: store"), configs.Changes{Restart: []string{"locks.driver", "locks.sqlite"}}},
		{replace("driver: sqlite", "driver: sqlite, ttl: 9s, redis: {}"), configs.Changes{Restart: []string{"locks.ttl"}}},
		{base + "leader: {ttl: 9s, priority: 2}", configs.Changes{Restart: []string{"leader.ttl", "leader.priority"}}},
		{base + "log: {level: debug, format: json}", configs.Changes{Hot: []string{"log.level"}, Restart: []string{"log.format"}}},
		{replace("lease: 10s", "lease: 11s, concurrency: 3, revision: 4, label: x, retention: {failed: 60d}"), configs.Changes{
			Hot: []string{"scheduler.concurrency", "scheduler.revision", "scheduler.retention.failed"}, Restart: []string{"scheduler.lease", "scheduler.label"},
		}},
		{replace("jobs: [", "jobs: [{name: k, queue: true, exec: [a]}, ", "60s", "61s"), configs.Changes{Hot: []string{"jobs.k (added)", "jobs.j (changed)"}}},
		{replace("name: j", "name: k"), configs.Changes{Hot: []string{"jobs.k (added)", "jobs.j (removed)"}}},
		{replace("timeout: 60s", "timeout: 60s, paused: true"), configs.Changes{Hot: []string{"jobs.j (changed)"}}},
	} {
		running, updated := parse(t, base), parse(t, c.text)
		next := running.With(updated)
		if got := configs.Diff(next, updated); len(got.Hot) > 0 || !slices.Equal(got.Restart, c.want.Restart) {
			t.Errorf("%s\n after it was taken %+v", c.text, got)
		}
		if got := configs.Diff(running, next); len(got.Restart) > 0 || !slices.Equal(got.Hot, c.want.Hot) {
			t.Errorf("%s\n taken %+v", c.text, got)
		}
		if got := configs.Diff(running, updated); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s\n got %+v\nwant %+v", c.text, got, c.want)
		}
	}
}

// TestNoErrorShowsASecret puts a secret, plain and from the environment, into every
// text value of a file that is wrong everywhere.
func TestNoErrorShowsASecret(t *testing.T) {
	for _, value := range []string{"${TOKEN}", "x ${TOKEN}", "'${TOKEN}:'"} {
		text := strings.ReplaceAll(`namespace: V
store: {driver: V, dsn: V, table_prefix: V, auto_migrate: V}
locks: {driver: V, ttl: V, label: V, V: {dsn: V}}
scheduler: {gate: V, timezone: V, lease: V, concurrency: V, drain_timeout: V, revision: V}
degradation: {mode: V, after: V, jobs: {a: V}}
log: {level: V, format: V}
jobs:
- {name: V, description: V, cron: V, timezone: V, dst: {gap: V, fold: V}, exec: {command: V, env: {A: V, "b c": V}, pass_env: [V], grace: V, output: V, permanent_codes: [V]}}
- {name: V, cron: V, http: {url: V, method: V, headers: {A: V, "b c": V}, expect: [V], timeout: V}, misfire: V, overlap: V, gate: V, degraded: V, on_crash: V, spread: V}
- {name: V, queue: V, sql: V, retry: {attempts: V, base: V}, catch_up: {window: V, most: V}}
`, " V", " "+strings.ReplaceAll("\""+value+"\"", "\"'", "\"'"))
		text = strings.ReplaceAll(text, "[V]", "[\""+value+"\"]")
		_, err := configs.Parse("c.yaml", []byte(text), options())
		if err == nil || len(strings.Split(err.Error(), "\n")) < 20 {
			t.Fatalf("accepted or cut short: %v", err)
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("shows a secret:\n%v", err)
		}
	}
	plain := "namespace: a\nstore: {dsn: " + canary + ", driver: x}\njobs:\n- {name: a, cron: x, http: {url: " + canary + ", headers: {'a b': " + canary + ", X: \"" + canary + "\\n\"}, body: [" + canary + "]}}\n- {name: b, cron: y, exec: {command: [a], env: {'=': " + canary + ", SOLOTICK_X: " + canary + "}}}\n"
	if _, err := configs.Parse("c.yaml", []byte(plain), options()); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("shows a secret:\n%v", err)
	}
	l := parse(t, "namespace: a\nstore: {dsn: "+canary+"}\njobs: [{name: j, cron: '@daily', http: {url: 'https://x/"+canary+"'}}]")
	if text := fmt.Sprintf("%v %+v %#v", l.Config, l.Config, l.Config); strings.Contains(text, canary) {
		t.Error("a configuration that is printed shows a secret")
	}
}

// TestAddressOfAServerIsNoFile: SQLite would quote it in its errors, password and all.
func TestAddressOfAServerIsNoFile(t *testing.T) {
	const text = "looks like the address of a database server: driver sqlite wants the path of a file; for a server name its driver"
	for _, dsn := range []string{
		"postgres://bob:" + canary + "@db/x", "postgres://db/x?password=" + canary, "bob:" + canary + "@tcp(db:3306)/x", "b:" + canary + "/7@db",
		"host=db user=bob password=" + canary, "host=db PASSWORD = '" + canary + "'", "postgres://bob:${TOKEN}@db/x",
	} {
		for _, c := range []struct{ text, want string }{
			{"namespace: a\nstore: {dsn: \"" + dsn + "\"}", "c.yaml:2:14: store.dsn: " + text},
			{"namespace: a\nlocks: {driver: sqlite, sqlite: {dsn: \"" + dsn + "\"}}", "c.yaml:2:39: locks.sqlite.dsn: " + text},
		} {
			_, err := configs.Parse("c.yaml", []byte(c.text), options())
			if err == nil || err.Error() != c.want {
				t.Errorf("%s\n got %v\nwant %s", c.text, err, c.want)
			}
		}
	}
	for _, dsn := range []string{"solotick.db", "/var/lib/a:b@c.db", "./x:y@z.db", `C:\data\bob@home.db`, "file:runs.db?cache=private", "file:///var/lib/runs.db", ":memory:", "passwords.db"} {
		if _, err := configs.Parse("c.yaml", []byte("namespace: a\nstore: {dsn: '"+dsn+"'}"), options()); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
