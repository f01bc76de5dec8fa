//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// finding is one of "doctor -o json".
type finding struct{ Check, State, Found, Remedy string }

// examine runs the doctor, and demands that the exit code fits what it says.
func examine(t *testing.T, dir, config string, env ...string) map[string]finding {
	t.Helper()
	p := startWith(t, dir, env, "doctor", "-c", config, "-o", "json")
	code := p.wait()
	var d struct {
		State    string
		Findings []finding
	}
	if err := json.Unmarshal([]byte(p.stdout.all()), &d); err != nil {
		t.Fatalf("%v: %s%s", err, p.stdout.all(), p.stderr.all())
	}
	if want := map[string]int{"ok": 0, "warning": 0, "problem": 1}[d.State]; code != want {
		t.Errorf("state %s: exit code %d, want %d", d.State, code, want)
	}
	found := map[string]finding{}
	for _, f := range d.Findings {
		if (f.State == "ok") != (f.Remedy == "") {
			t.Errorf("a remedy belongs to what is not ok: %+v", f)
		}
		if earlier := found[f.Check]; earlier.State == "" || earlier.State == "ok" {
			found[f.Check] = f
		}
	}
	return found
}

// wantOnly demands that nothing but these is not ok; they are CHECK: state: part of
// the text.
func wantOnly(t *testing.T, what string, found map[string]finding, want ...string) {
	t.Helper()
	for _, w := range want {
		part := strings.SplitN(w, ": ", 3)
		f := found[part[0]]
		if f.State != part[1] || !strings.Contains(f.Found, part[2]) {
			t.Errorf("%s: got %+v, want %s", what, f, w)
		}
		delete(found, part[0])
	}
	for _, f := range found {
		if f.State != "ok" {
			t.Errorf("%s: %+v was not wanted", what, f)
		}
	}
}

func TestDoctorOnAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", "namespace: shop\n")
	wantOnly(t, "before the first start", examine(t, dir, config), "store: warning: there is no database yet", "locks: warning: there is no database yet")
	manual := writeFile(t, dir, "manual.yaml", "namespace: shop\nstore: {auto_migrate: false}\n")
	wantOnly(t, "without the right to migrate", examine(t, dir, manual), "store: problem: there is no database yet")
	solotick(t, dir, "migrate", "up", "-c", config)
	healthy := examine(t, dir, config)
	for _, check := range []string{"config", "store", "clock", "version", "file", "schema", "indexes", "grants", "locks", "scope"} {
		if healthy[check].State != "ok" {
			t.Errorf("%s: %+v", check, healthy[check])
		}
	}

	for text, want := range map[string]string{
		"namespace: shop\nnamspace: x\n":                                                                `config: problem: wrong.yaml:2:1`,
		"namespace: shop\nscheduler: {clock_offset: -5s}\n":                                             "clock: warning: ahead of this host's",
		"namespace: shop\nscheduler: {clock_offset: 5s}\n":                                              "clock: warning: behind this host's",
		"namespace: shop\nlocks: {driver: memory}\n":                                                    "scope: warning: one process only",
		"namespace: shop\nlocks: {driver: sqlite, sqlite: {dsn: solotick.db}}\n":                        "scope: warning: the file of the store",
		"namespace: shop\nlocks: {driver: redis, redis: {addrs: [\"127.0.0.1:1\"]}}\n":                  "locks: problem: unavailable",
		"namespace: shop\nstore: {dsn: none/solotick.db, auto_migrate: false}\n":                        "store: problem: there is no database yet",
		"namespace: shop\nstore: {dsn: text.db}\nlocks: {driver: sqlite, sqlite: {dsn: solotick.db}}\n": "store: problem: not a SQLite database",
	} {
		writeFile(t, dir, "text.db", strings.Repeat("This is no database. ", 100))
		wantOnly(t, text, examine(t, dir, writeFile(t, dir, "wrong.yaml", text)), want)
	}
	query(t, dir, "DROP INDEX solotick_executions_due")
	wantOnly(t, "an index less", examine(t, dir, config), "indexes: problem: solotick_executions_due (fetch)")
	query(t, dir, "INSERT INTO solotick_schema_version (component, version, name, checksum, applied_ms) VALUES ('store', 9999, 'later', 'x', 0)")
	wantOnly(t, "a newer program", examine(t, dir, config), "schema: problem: newer program")
	if p := start(t, dir, "doctor"); p.wait() != 2 {
		t.Error("without a file")
	}
	if err := os.Chmod(filepath.Join(dir, "solotick.db"), 0o400); err != nil {
		t.Fatal(err)
	}
	wantOnly(t, "read-only", examine(t, dir, config), "store: problem: read-only")
}

// provoked is what is done to a database, what that makes the doctor say, and what
// undoes it.
type provoked struct{ do, want, undo string }

func TestDoctorOnServers(t *testing.T) {
	broken := map[string][]provoked{
		"postgres": {
			{"ALTER TABLE solotick_job_state ALTER COLUMN job TYPE TEXT COLLATE \"default\"", "collation: problem: solotick_job_state.job", "ALTER TABLE solotick_job_state ALTER COLUMN job TYPE TEXT COLLATE \"C\""},
			{"REVOKE DELETE ON solotick_executions FROM $USER", "grants: problem: DELETE on solotick_executions refused", "GRANT DELETE ON solotick_executions TO $USER"},
			{"DROP INDEX solotick_executions_lease", "indexes: problem: solotick_executions_lease (takeover)", "CREATE INDEX solotick_executions_lease ON solotick_executions (ns, lease_until_ms, id) WHERE state = 2"},
		},
		"mariadb": {
			{"ALTER TABLE solotick_job_state MODIFY job VARCHAR(128) NOT NULL", "collation: problem: solotick_job_state.job", "ALTER TABLE solotick_job_state MODIFY job VARBINARY(512) NOT NULL"},
			{"ALTER TABLE solotick_fences ENGINE=MyISAM", "engine: problem: solotick_fences (MyISAM)", "ALTER TABLE solotick_fences ENGINE=InnoDB"},
			{"REVOKE DELETE ON $DB.* FROM $USER", "grants: problem: DELETE on solotick_executions", "GRANT DELETE ON $DB.* TO $USER"},
			{"DROP INDEX solotick_executions_run ON solotick_executions", "indexes: problem: solotick_executions_run (claim)", "CREATE UNIQUE INDEX solotick_executions_run ON solotick_executions (ns, run_hash)"},
		},
	}
	sessions := map[string][][2]string{ // what is added to the address, and what that makes the doctor say
		"postgres": {
			{"&plan_cache_mode=auto", "session: warning: plan_cache_mode is auto"},
			{"&default_transaction_read_only=on", "session: problem: takes no writes"},
		},
		"mariadb": {
			{"&sql_mode=%27%27", "session: problem: is not strict"},
			{"&autocommit=0", "session: problem: autocommit is off"},
		},
	}
	for _, d := range databases(t) {
		t.Run(d.driver, func(t *testing.T) {
			t.Parallel()
			dir, db := t.TempDir(), d.open(t)
			config, env := d.file(t, dir, "")
			var standing []string // what is so on every server of the tests
			if d.driver == "postgres" {
				standing = []string{"durability: warning: fsync off"}
			}
			also := func(more ...string) []string { return append(more, standing...) }
			wantOnly(t, "an empty database", examine(t, dir, config, env...), also("schema: warning: pending are 0001_initial")...)
			startWith(t, dir, env, "migrate", "up", "-c", config).wait()
			healthy := examine(t, dir, config, env...)
			for _, check := range []string{"config", "store", "clock", "version", "session", "isolation", "schema", "collation", "indexes", "grants", "locks", "scope"} {
				if healthy[check].State != "ok" {
					t.Errorf("%s: %+v", check, healthy[check])
				}
			}
			wantOnly(t, "healthy", healthy, standing...)

			worker, name := d.worker(t)
			run := func(statement string) {
				t.Helper()
				if _, err := db.Exec(strings.NewReplacer("$USER", name, "$DB", strings.TrimPrefix(name, "w_")).Replace(statement)); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			wantOnly(t, "a worker's rights", examine(t, dir, config, "DSN="+worker), standing...)
			for _, p := range broken[d.driver] {
				run(p.do)
				wantOnly(t, p.do, examine(t, dir, config, "DSN="+worker), also(p.want)...)
				run(p.undo)
			}
			for _, s := range sessions[d.driver] {
				// The locks take writes in the same sessions.
				apart := writeFile(t, dir, "apart.yaml", fmt.Sprintf("namespace: shop\nstore: {driver: %s, dsn: \"${DSN}\"}\nlocks: {driver: sqlite, sqlite: {dsn: l.db}}\n", d.driver))
				wantOnly(t, s[0], examine(t, dir, apart, "DSN="+d.dsn()+s[0]), also(s[1], "locks: warning: no database yet", "scope: warning: shared by hosts")...)
			}
			away := writeFile(t, dir, "away.yaml", fmt.Sprintf("namespace: shop\nstore: {driver: %s, dsn: \"${DSN}\"}\n", d.driver))
			wantOnly(t, "away", examine(t, dir, away, "DSN="+d.dsnAt("127.0.0.1:1")), "store: problem: refused")
		})
	}
}

// worker makes a user who may do what a worker must, and no more.
func (d database) worker(t *testing.T) (dsn, user string) {
	t.Helper()
	db, name := d.open(t), ""
	query := "SELECT current_database()"
	if d.driver == "mariadb" {
		query = "SELECT DATABASE()"
	}
	if err := db.QueryRow(query).Scan(&name); err != nil {
		t.Fatal(err)
	}
	user = "w_" + name
	statements, drop := []string{"CREATE ROLE " + user + " LOGIN PASSWORD 'secret'", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + user}, []string{"DROP OWNED BY " + user, "DROP ROLE " + user}
	if d.driver == "mariadb" {
		statements, drop = []string{"CREATE USER " + user + " IDENTIFIED BY 'secret'", "GRANT SELECT, INSERT, UPDATE, DELETE ON " + name + ".* TO " + user}, []string{"DROP USER " + user}
	}
	for _, statement := range statements {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() {
		for _, statement := range drop {
			if _, err := db.Exec(statement); err != nil {
				t.Error(err)
			}
		}
	})
	return strings.Replace(d.dsn(), "solotick:solotick@", user+":secret@", 1), user
}

// TestDoctorInTheDocuments keeps the example of docs/operations.md true: it is what the
// doctor prints, but for what differs from one run to the next.
func TestDoctorInTheDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", "namespace: shop\nstore: {auto_migrate: false}\nlocks: {driver: memory}\n")
	solotick(t, dir, "migrate", "up", "-c", config)
	query(t, dir, "DROP INDEX solotick_executions_due")
	p := start(t, dir, "doctor", "-c", config)
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(text), "$ solotick doctor -c solotick.yaml\n")
	example, _, _ = strings.Cut(example, "```")
	steady := func(s string) string {
		s = regexp.MustCompile(`-?\d+(\.\d+)?(ms|µs|s)\b`).ReplaceAllString(s, "T")
		s = regexp.MustCompile(`\d+ of \d+`).ReplaceAllString(s, "N of N")
		s = regexp.MustCompile(`SQLite [0-9.]+|the \d+ tables`).ReplaceAllString(s, "N")
		return regexp.MustCompile(`(ahead of|behind)`).ReplaceAllString(s, "off")
	}
	if got := steady(p.stdout.all()); !found || got != steady(example) {
		t.Errorf("docs/operations.md shows\n%s\nthe doctor says\n%s", example, p.stdout.all())
	}
}
