//go:build linux

package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
)

// database is a database of a server, of one test.
type database struct {
	driver string // in the file
	client string // of database/sql
	addr   string
	dsnAt  func(addr string) string
}

func (d database) dsn() string { return d.dsnAt(d.addr) }

// databases are those of the kinds of servers. Both names of the second one open the
// same driver.
func databases(t *testing.T) []database {
	t.Helper()
	p, m := testenv.SharedPostgres(t), testenv.SharedMySQL(t)
	return []database{{"postgres", "pgx", p.Addr, p.DSNAt}, {"mariadb", "mysql", m.Addr, m.DSNAt}}
}

// open is the database as the test sees it.
func (d database) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.client, d.dsn())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// file writes a file that keeps its runs there. The address comes from the
// environment, as a secret does.
func (d database) file(t *testing.T, dir, rest string) (config string, env []string) {
	t.Helper()
	config = writeFile(t, dir, "solotick.yaml", fmt.Sprintf("namespace: shop\nstore: {driver: %s, dsn: \"${DSN}\"}\n%s", d.driver, rest))
	return config, []string{"DSN=" + d.dsn()}
}

// TestStoreOnServers goes through the commands with real processes and a database
// server: tables, a worker with every kind of run, a job that runs once, and lists.
func TestStoreOnServers(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.driver, func(t *testing.T) {
			t.Parallel()
			dir, db := t.TempDir(), d.open(t)
			config, env := d.file(t, dir, `scheduler: {lease: 2s, poll_interval: 100ms}
jobs:
  - {name: tick, cron: "@every 1s", exec: [touch, ticked]}
  - {name: count, cron: "@every 1s", gate: leader, sql: "INSERT INTO counted (tick) VALUES (:tick)"}
  - {name: mail, queue: true, sql: "INSERT INTO mails (args) VALUES (:args)"}
`)
			do := func(want int, args ...string) string {
				t.Helper()
				p := startWith(t, dir, env, append(args, "-c", config)...)
				if code := p.wait(); code != want {
					t.Fatalf("%v: exit code %d, want %d", args, code, want)
				}
				return p.stdout.all() + p.stderr.all()
			}
			wants := func(text string, parts ...string) {
				t.Helper()
				for _, part := range parts {
					if !strings.Contains(text, part) {
						t.Errorf("no %q in\n%s", part, text)
					}
				}
			}

			// The tables, which nobody who only looks makes.
			wants(do(1, "runs"), "solotick migrate up")
			var status []struct {
				Component       string
				Current, Latest int
				Pending         []string
			}
			before := do(0, "migrate", "status", "-o", "json")
			if err := json.Unmarshal([]byte(before), &status); err != nil || len(status) != 2 || status[0].Current != 0 || len(status[0].Pending) == 0 || status[1].Component != "locks" {
				t.Errorf("%v: %s", err, before)
			}
			wants(do(0, "migrate", "sql"), "CREATE TABLE", "solotick_executions", "solotick_locks")
			wants(do(0, "migrate", "up"), fmt.Sprintf("store: version %d\n", status[0].Latest), "locks: version ")
			wants(do(0, "migrate", "status"), "TABLES OF", "store", "locks")
			wants(do(0, "jobs"), "tick", "@every 1s")
			wants(do(0, "config", "check"), "store "+d.driver)

			for _, statement := range []string{"CREATE TABLE counted (tick VARCHAR(64))", "CREATE TABLE mails (args VARCHAR(64))"} {
				if _, err := db.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			do(0, "enqueue", "mail", `{"to":"ann"}`, "--key", "1")
			wants(do(0, "enqueue", "mail", `{"to":"bob"}`, "--key", "1"), "is there already")
			first, second := startWith(t, dir, env, "run", "-c", config), startWith(t, dir, env, "run", "-c", config)
			number := func(query string) (n int) {
				t.Helper()
				if err := db.QueryRow(query).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			for range waiting(t) {
				if number("SELECT count(*) FROM counted") >= 2 && number("SELECT count(*) FROM mails") > 0 {
					break
				}
			}
			awaitThere(t, filepath.Join(dir, "ticked"))
			wants(do(0, "locks", "list"), "lock:shop:leader")
			first.signal(syscall.SIGTERM)
			second.signal(syscall.SIGTERM)
			if a, b := first.wait(), second.wait(); a != 0 || b != 0 {
				t.Errorf("the workers: exit codes %d and %d", a, b)
			}
			if n, ran := number("SELECT count(*) FROM counted"), number("SELECT count(*) FROM solotick_executions WHERE job = 'count' AND state = 3"); n != ran || n < 2 {
				t.Errorf("%d effects of %d runs", n, ran)
			}
			if n := number("SELECT count(DISTINCT tick) - count(*) FROM counted"); n != 0 {
				t.Errorf("%d ticks twice", -n)
			}
			if n := number("SELECT count(*) FROM mails"); n != 1 {
				t.Errorf("%d mails of one key", n)
			}
			wants(do(0, "runs", "--job", "mail", "--state", "succeeded"), "mail")

			// Once, and again from another process.
			once := func() string {
				p := startWith(t, dir, env, "once", "--job", "deploy", "--key", "v1", "-c", config, "--", "sh", "-c", "echo deployed; exit 3")
				if code := p.wait(); code != 3 {
					t.Errorf("once: exit code %d", code)
				}
				return p.stdout.all() + p.stderr.all()
			}
			wants(once(), "deployed")
			wants(once(), "deployed", "has run before")
		})
	}
}

// TestWorkerWaitsForItsServers: a worker that is started first says what it waits for,
// gives no password away, and works when they come; it can be stopped meanwhile.
func TestWorkerWaitsForItsServers(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.driver, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			proxy := faultproxy.Start(t, d.addr)
			proxy.Refuse()
			d.addr = proxy.Addr()
			config, env := d.file(t, dir, "jobs:\n  - {name: tick, cron: \"@every 1s\", exec: [touch, ticked]}\n")
			if strings.Count(env[0], "solotick:solotick@") != 1 {
				t.Fatalf("no password to look for in %s", env[0])
			}
			patient, stopped := startWith(t, dir, env, "run", "-c", config), startWith(t, dir, env, "run", "-c", config)
			for _, w := range []*process{patient, stopped} {
				if line := w.stderr.await(t, "store cannot be reached: the worker waits for it"); strings.Contains(line, "solotick:solotick@") {
					t.Errorf("it shows the password: %s", line)
				}
			}
			stopped.signal(syscall.SIGTERM)
			if code := stopped.wait(); code != 0 {
				t.Errorf("stopped while it waited: exit code %d", code)
			}
			// One that does not wait says so at once.
			if p := startWith(t, dir, env, "runs", "-c", config); p.wait() != 1 || !strings.Contains(p.stderr.all(), "unavailable") {
				t.Errorf("runs: %s", p.stderr.all())
			}
			proxy.Pass()
			patient.stderr.await(t, "store answers")
			awaitThere(t, filepath.Join(dir, "ticked"))
			patient.signal(syscall.SIGTERM)
			if code := patient.wait(); code != 0 {
				t.Errorf("the worker: exit code %d", code)
			}
		})
	}
}

// TestWorkerWaitsForItsLocks: with ZooKeeper away the degradation mode says what
// happens; etcd is waited for.
func TestWorkerWaitsForItsLocks(t *testing.T) {
	t.Parallel()
	const jobs = "degradation: {mode: store_only, after: 100ms}\njobs:\n  - {name: tick, cron: \"@every 1s\", exec: [touch, ticked]}\n"
	run := func(locks string) (*process, string) {
		dir := t.TempDir()
		return start(t, dir, "run", "-c", writeFile(t, dir, "solotick.yaml", "namespace: shop\nlocks: {"+locks+"}\n"+jobs)), filepath.Join(dir, "ticked")
	}
	e := testenv.SharedEtcd(t)
	proxy := faultproxy.Start(t, e.Addr)
	proxy.Refuse()
	etcd, ran := run(fmt.Sprintf("driver: etcd, etcd: {endpoints: [%q], prefix: %s}", proxy.Addr(), e.Name))
	zk, degraded := run(`driver: zookeeper, zookeeper: {servers: ["127.0.0.1:1"]}`)
	awaitThere(t, degraded)
	etcd.stderr.await(t, "lock backend cannot be reached: the worker waits for it")
	proxy.Pass()
	awaitThere(t, ran)
	etcd.stderr.await(t, "lock backend answers")
	for _, w := range []*process{etcd, zk} {
		w.signal(syscall.SIGTERM)
		if code := w.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}
