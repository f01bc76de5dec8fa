//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/testenv"
)

func runTests(m *testing.M) int { return testenv.Main(m).Run() }

// lockServers are the backends on servers: the part of the file for each, which may
// name $DSN.
var lockServers = []struct {
	name string
	open func(t *testing.T) (part, dsn string)
}{
	{"redis", func(t *testing.T) (string, string) {
		s := testenv.SharedRedis(t)
		return fmt.Sprintf("driver: redis\n  redis: {addrs: [%q], db: %d}", s.Addr, s.DB), ""
	}},
	{"redis-fair", func(t *testing.T) (string, string) {
		s := testenv.SharedRedis(t)
		return fmt.Sprintf("driver: redis\n  redis: {addrs: [%q], db: %d, fair: true, prefix: %q}", s.Addr, s.DB, s.Name+":"), ""
	}},
	{"redlock", func(t *testing.T) (string, string) {
		var addrs []string
		for _, s := range testenv.Redises(t, 3) {
			addrs = append(addrs, strconv.Quote(s.Addr()))
		}
		return fmt.Sprintf("driver: redlock\n  redlock: {addrs: [%s], max_ttl: 3s}", strings.Join(addrs, ", ")), ""
	}},
	{"etcd", func(t *testing.T) (string, string) {
		s := testenv.SharedEtcd(t)
		return fmt.Sprintf("driver: etcd\n  etcd: {endpoints: [%q], prefix: %s}", s.Addr, s.Name), ""
	}},
	{"zookeeper", func(t *testing.T) (string, string) {
		s := testenv.SharedZooKeeper(t)
		return fmt.Sprintf("driver: zookeeper\n  zookeeper: {servers: [%q], prefix: /%s}", s.Addr, s.Name), ""
	}},
	{"postgres", func(t *testing.T) (string, string) {
		return "driver: postgres\n  postgres: {dsn: $DSN}", testenv.SharedPostgres(t).DSN()
	}},
	{"postgres-advisory", func(t *testing.T) (string, string) {
		return "driver: postgres\n  postgres: {dsn: $DSN, mode: advisory}", testenv.SharedPostgres(t).DSN()
	}},
	{"mariadb", func(t *testing.T) (string, string) {
		return "driver: mariadb\n  mariadb: {dsn: $DSN}", testenv.SharedMySQL(t).DSN()
	}},
	{"mysql-row", func(t *testing.T) (string, string) {
		return "driver: mysql\n  mysql: {dsn: $DSN, mode: row}", testenv.SharedMySQL(t).DSN()
	}},
}

// hidden is what cannot be looked into: it is waited for until its holder goes.
const hidden = "mysql-row"

// TestLocksOnServers goes through the life of a lock with real processes, on each
// backend: excluded, listed, waited for, taken away.
func TestLocksOnServers(t *testing.T) {
	for _, server := range lockServers {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			part, dsn := server.open(t)
			dir := t.TempDir()
			config := writeFile(t, dir, "solotick.yaml", "namespace: shop\nlocks:\n  ttl: 3s\n  "+strings.Replace(part, "$DSN", `"${DSN}"`, 1)+"\n")
			solotick := func(args ...string) *process { return startWith(t, dir, []string{"DSN=" + dsn}, args...) }
			ended := func(want int, args ...string) *process {
				t.Helper()
				p := solotick(args...)
				if code := p.wait(); code != want {
					t.Fatalf("%v: exit code %d, want %d", args, code, want)
				}
				return p
			}
			if server.name == "redlock" { // its nodes have just started, and grant nothing for as long as max_ttl
				for range waiting(t) {
					if p := solotick("lock", "warm-up", "-c", config, "--", "true"); p.wait() == 0 {
						break
					}
				}
			}

			holder := solotick("lock", "backup", "-c", config, "--wait", "25s", "--", "sh", "-c", "echo fence $SOLOTICK_FENCE; echo pid $$; exec sleep 600")
			pid, fence := pidOf(t, holder), fenceOf(t, holder)
			busy := ended(75, "lock", "backup", "-c", config, "--", "true").stderr
			busy.await(t, "is held by")
			if server.name != hidden {
				busy.await(t, fmt.Sprintf(":%d\"", holder.cmd.Process.Pid))
			}
			ended(0, "lock", "other", "-c", config, "--ttl", "3s", "--", "true")

			if server.name == hidden {
				ended(1, "locks", "list", "-c", config).stderr.await(t, "not supported by this backend")
			} else {
				wantListed(t, ended(0, "locks", "list", "-c", config, "-o", "json"), holder, fence)
			}
			check := func(want int) {
				t.Helper()
				ended(want, "locks", "check", "backup", "--fence", strconv.FormatInt(fence, 10), "-c", config)
			}
			if server.name == hidden {
				check(1)
			} else {
				check(0)
			}

			waiter := solotick("lock", "backup", "-c", config, "--wait", "25s", "--", "sh", "-c", "echo fence $SOLOTICK_FENCE")
			if server.name == hidden {
				holder.signal(syscall.SIGTERM)
				if code := holder.wait(); code != 128+15 {
					t.Errorf("the holder that was stopped: exit code %d", code)
				}
			} else {
				if slices.Contains([]string{"redis-fair", "etcd", "zookeeper"}, server.name) {
					told := false
					for range waiting(t) {
						told = strings.Contains(ended(0, "locks", "list", "-c", config, "-o", "json").stdout.all(), `"waiters": 1`)
						if told {
							break
						}
					}
					if !told {
						t.Error("the waiter was never listed")
					}
				}
				ended(0, "locks", "release", "backup", "-c", config, "--yes").stdout.await(t, "is released")
				check(76)
				if code := holder.wait(); code != 76 {
					t.Errorf("the holder that was thrown out: exit code %d", code)
				}
			}
			gone(t, pid)
			if code := waiter.wait(); code != 0 {
				t.Errorf("the next holder: exit code %d", code)
			}
			if next := fenceOf(t, waiter); next <= fence {
				t.Errorf("fence %d after %d", next, fence)
			}
		})
	}
}

// wantListed demands that the list is the one lock of the holder.
func wantListed(t *testing.T, list, holder *process, fence int64) {
	t.Helper()
	var held []struct {
		Key, Holder string
		Fence       int64
	}
	if err := json.Unmarshal([]byte(list.stdout.all()), &held); err != nil {
		t.Fatal(err)
	}
	if len(held) != 1 || held[0].Key != "lock:shop:command:backup" || held[0].Fence != fence || !strings.HasSuffix(held[0].Holder, fmt.Sprintf(":%d", holder.cmd.Process.Pid)) {
		t.Errorf("listed: %+v; the holder is process %d, fence %d", held, holder.cmd.Process.Pid, fence)
	}
}

func fenceOf(t *testing.T, p *process) int64 {
	t.Helper()
	fence, err := strconv.ParseInt(strings.TrimPrefix(p.stdout.await(t, "fence "), "fence "), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fence
}

// TestLockServerAway: nobody listens, or somebody listens and says nothing. The
// answer comes, names no password, and is not "held".
func TestLockServerAway(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() }) // connections wait in its queue for ever
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	type command struct {
		*process
		name  string
		began time.Time
	}
	var commands []command // most of their time is waiting, so all run at once
	for name, part := range map[string]string{
		"redis":     "redis: {addrs: [ADDR], password: canary4711}",
		"redlock":   "redlock: {addrs: [ADDR, 'localhost:1', '127.0.0.2:1'], password: canary4711}",
		"etcd":      "etcd: {endpoints: [ADDR], username: u, password: canary4711}",
		"zookeeper": "zookeeper: {servers: [ADDR], username: u, password: canary4711}",
		"postgres":  "postgres: {dsn: 'postgres://u:canary4711@ADDR/d?sslmode=disable'}",
		"mysql":     "mysql: {dsn: 'u:canary4711@tcp(ADDR)/d'}",
		"mariadb":   "mariadb: {dsn: 'u@tcp(ADDR)/d', password: canary4711}",
	} {
		for how, addr := range map[string]string{"refused": closed.Addr().String(), "silent": silent.Addr().String()} {
			dir := t.TempDir()
			config := writeFile(t, dir, "solotick.yaml", "namespace: shop\nlocks:\n  driver: "+name+"\n  "+strings.ReplaceAll(part, "ADDR", addr)+"\n")
			commands = append(commands, command{start(t, dir, "lock", "k", "-c", config, "--", "echo", "it ran"), name + ", " + how, time.Now()})
		}
	}
	for _, p := range commands {
		if code := p.wait(); code != 1 {
			t.Errorf("%s: exit code %d", p.name, code)
		}
		said := p.stderr.all()
		t.Logf("%s, after at most %v: %s", p.name, time.Since(p.began).Round(100*time.Millisecond), said)
		if strings.Contains(said, "canary4711") || strings.Contains(said, "is held") || !strings.HasPrefix(said, "solotick: ") {
			t.Errorf("%s: it said %s", p.name, said)
		}
		if p.stdout.all() != "" {
			t.Errorf("%s: the command ran", p.name)
		}
	}
}

// TestWorkerOnALockServer: a worker takes its gate from the server of the file, and
// its term is listed.
func TestWorkerOnALockServer(t *testing.T) {
	t.Parallel()
	s := testenv.SharedRedis(t)
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", fmt.Sprintf(`namespace: shop
locks:
  driver: redis
  redis: {addrs: [%q], db: %d, prefix: %q}
scheduler: {gate: leader}
jobs:
  - {name: tick, cron: "@every 1s", exec: [touch, %q]}
`, s.Addr, s.DB, s.Name+":", filepath.Join(dir, "ran")))
	worker := start(t, dir, "run", "-c", config)
	awaitThere(t, filepath.Join(dir, "ran"))
	list := start(t, dir, "locks", "list", "-c", config)
	if code := list.wait(); code != 0 {
		t.Errorf("locks list: exit code %d", code)
	}
	list.stdout.await(t, "lock:shop:leader")
	worker.signal(syscall.SIGTERM)
	if code := worker.wait(); code != 0 {
		t.Errorf("the worker: exit code %d", code)
	}
}
