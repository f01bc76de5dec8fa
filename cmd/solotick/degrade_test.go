//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/testenv"
)

const degradeFile = `namespace: shop
scheduler: {lease: 2s}
jobs:
  - name: beat
    cron: "@every 1s"
    misfire: fire_all
    exec: [sh, -c, "echo $SOLOTICK_TICK >> ticks"]
`

var logTime = regexp.MustCompile(`time=(\S+)`)

// obeyed waits until the worker says that it has obeyed, and tells when that was.
func obeyed(t *testing.T, w *process, what string) time.Time {
	t.Helper()
	line := w.stderr.await(t, what)
	at, err := time.Parse(time.RFC3339, logTime.FindStringSubmatch(line)[1])
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestSwitchOfAllWorkers: one command turns three workers within a second, as often as
// it is given; a setting ends by itself on all of them; the audit has all of it, and no
// tick runs twice or is lost meanwhile.
func TestSwitchOfAllWorkers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", degradeFile)
	solotick(t, dir, "migrate", "up", "-c", config)
	workers := make([]*process, 3)
	for i := range workers {
		workers[i] = start(t, dir, "run", "-c", config)
	}
	for _, w := range workers {
		w.stderr.await(t, "worker starts")
	}
	awaitFile(t, filepath.Join(dir, "ticks"), 1)
	slowest := time.Duration(0)
	throw := func(what string, args ...string) {
		t.Helper()
		solotick(t, dir, append([]string{"degrade"}, append(args, "-c", config, "--yes")...)...)
		thrown := time.Now()
		for i, w := range workers {
			late := obeyed(t, w, what).Sub(thrown)
			if slowest = max(slowest, late); late > time.Second {
				t.Errorf("worker %d: %s: obeyed %v after the command had ended", i, what, late)
			}
		}
	}

	for n := range throws(4) {
		reason := fmt.Sprintf("throw %d.", n)
		mode := []string{"store_only", "local_mutex", "off", "auto"}[n%4]
		throw(`reason="`+reason+`"`, "set", mode, "--for", "10m", "--reason", reason)
	}
	throw(`to=configuration`, "clear", "--reason", "enough")

	throw(`reason=upgrade`, "set", "store_only", "--for", "3s", "--reason", "upgrade")
	for i, w := range workers {
		w.stderr.await(t, "source=expiry")
		if strings.Count(w.stderr.all(), "source=expiry") != 1 {
			t.Errorf("worker %d: what was cleared or replaced ended, too", i)
		}
	}
	t.Logf("slowest of %d throws over %d workers: %v after the command had ended", throws(4)+2, len(workers), slowest)
	before := query(t, dir, "SELECT count(*) FROM solotick_executions WHERE state = 3")
	if n := query(t, dir, "SELECT count(*) FROM solotick_executions WHERE mode = 'store_only'"); n == 0 {
		t.Error("no run is marked with the mode")
	}
	awaitFile(t, filepath.Join(dir, "ticks"), before+2)
	out := solotick(t, dir, "degrade", "history", "-c", config)
	for _, want := range []string{`all +cli +\S+ +file +forced store_only +\S+ +upgrade`, `all +expiry +\S+ +forced store_only +file +- +upgrade`, `all +cli +\S+ +auto +file +- +enough`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("history has no %s:\n%s", want, out)
		}
	}
	stopAndCount(t, dir, workers)
}

// stopAndCount stops the workers, and demands that every tick of their time ran once.
func stopAndCount(t *testing.T, dir string, workers []*process) {
	t.Helper()
	for _, w := range workers {
		w.signal(syscall.SIGTERM)
	}
	for i, w := range workers {
		if code := w.wait(); code != 0 {
			t.Errorf("worker %d: exit code %d", i, code)
		}
	}

	seen := map[string]bool{}
	for tick := range strings.FieldsSeq(readFile(t, dir, "ticks")) {
		if seen[tick] {
			t.Errorf("tick %s ran twice", tick)
		}
		seen[tick] = true
	}
	first := query(t, dir, "SELECT min(tick_ms) FROM solotick_executions WHERE state = 3")
	last := query(t, dir, "SELECT max(tick_ms) FROM solotick_executions WHERE state = 3")
	if want := (last-first)/1000 + 1; len(seen) != want {
		t.Errorf("%d ticks ran, want %d", len(seen), want)
	}
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// throws is how often the switch is thrown: SOLOTICK_SOAK times in the long form.
func throws(few int) int {
	if n, err := strconv.Atoi(os.Getenv("SOLOTICK_SOAK")); err == nil && n > 0 {
		return n
	}
	return few
}

// TestSwitchByFileAndByRequest is the same for the ways that reach one process each: a
// file that is saved, which three workers watch, and a request to each of the three.
func TestSwitchByFileAndByRequest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "token", adminCanary)
	text := degradeFile + "admin: {listen: \"127.0.0.1:0\", token_file: token}\n"
	config := writeFile(t, dir, "solotick.yaml", text)
	solotick(t, dir, "migrate", "up", "-c", config)
	workers, urls := make([]*process, 3), make([]string, 3)
	for i := range workers {
		workers[i] = start(t, dir, "run", "-c", config)
	}
	for i, w := range workers {
		w.stderr.await(t, "worker starts")
		_, addr, _ := strings.Cut(w.stderr.await(t, "admin server listens"), "address=")
		urls[i] = "http://" + strings.TrimSpace(addr)
	}
	awaitFile(t, filepath.Join(dir, "ticks"), 1)
	slowest := map[string]time.Duration{}
	judge := func(way, what string, thrown time.Time) {
		t.Helper()
		for i, w := range workers {
			late := obeyed(t, w, what).Sub(thrown)
			if slowest[way] = max(slowest[way], late); late > time.Second {
				t.Errorf("worker %d: %s: obeyed %v after %s", i, what, late, way)
			}
		}
	}
	for n := range throws(3) {
		at := []string{"forced", "off", "auto"}[n%3]
		mode := []string{"store_only", "local_mutex"}[n%2]
		after := time.Duration(1000+n) * time.Second // tells this file from the others
		fresh := writeFile(t, dir, "fresh", fmt.Sprintf("%sdegradation: {switch: %s, mode: %s, after: %v}\n", text, at, mode, after))
		if err := os.Rename(fresh, config); err != nil {
			t.Fatal(err)
		}
		judge("the file was saved", fmt.Sprintf("after=%v ", after), time.Now())
		for i, url := range urls {
			_, h, _ := get(t, http.MethodGet, url+"/api/v1/switch", "", nil)
			body := fmt.Sprintf(`{"position": %q, "mode": %q, "reason": "request %d.", "by": "somebody", "for": "10m"}`, at, mode, n)
			status, _, answer := get(t, http.MethodPut, url+"/api/v1/switch", body,
				map[string]string{"Content-Type": "application/json", "If-Match": h.Get("ETag"), "Authorization": "Bearer " + adminCanary})
			if status != http.StatusOK {
				t.Fatalf("worker %d: %d %s", i, status, answer)
			}
		}
		judge("the requests were answered", fmt.Sprintf(`reason="request %d."`, n), time.Now())
	}
	t.Logf("slowest of %d throws over %d workers: %v", throws(3), len(workers), slowest)
	broken := "degradation: {switch: forced, mode: guess}\n"
	writeFile(t, dir, "solotick.yaml", text+broken)
	for _, w := range workers {
		if line := w.stderr.await(t, "nothing was changed"); !strings.Contains(line, "guess") {
			t.Error(line)
		}
	}
	before := strings.Count(readFile(t, dir, "ticks"), "\n")
	awaitFile(t, filepath.Join(dir, "ticks"), before+2)
	stopAndCount(t, dir, workers)
}

// TestSwitchInACentre: with the setting in a server of its own, a worker obeys, the
// audit is in the store, and a store that is away is warned about and no more.
func TestSwitchInACentre(t *testing.T) {
	t.Parallel()
	for name, centre := range map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string {
			s := testenv.SharedRedis(t)
			return fmt.Sprintf("redis: {addrs: [%s], db: %d}", s.Addr, s.DB)
		},
		"etcd": func(t *testing.T) string {
			s := testenv.SharedEtcd(t)
			return fmt.Sprintf("etcd: {endpoints: [%s], prefix: %s}", s.Addr, s.Name)
		},
		"zookeeper": func(t *testing.T) string {
			s := testenv.SharedZooKeeper(t)
			return fmt.Sprintf("zookeeper: {servers: [%s], prefix: /%s}", s.Addr, s.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, part := t.TempDir(), centre(t)
			config := writeFile(t, dir, "solotick.yaml", degradeFile+"degradation: {centre: {driver: "+name+", "+part+"}}\n")
			// Reached as the locks are, and with a store that nobody answers for.
			away := writeFile(t, dir, "away.yaml", "namespace: shop\nstore: {driver: postgres, dsn: \"postgres://shop@127.0.0.1:1/shop\"}\n"+
				"locks: {driver: "+name+", "+part+"}\ndegradation: {centre: {driver: "+name+"}}\n")
			w := start(t, dir, "run", "-c", config)
			w.stderr.await(t, "worker starts")
			solotick(t, dir, "degrade", "set", "store_only", "-c", config, "--for", "10m", "--reason", "first", "--yes")
			w.stderr.await(t, "reason=first")
			if out := solotick(t, dir, "degrade", "-c", away); !strings.Contains(out, name+": forced store_only") {
				t.Error(out)
			}
			if out := solotick(t, dir, "degrade", "set", "off", "-c", away, "--no-expiry", "--reason", "second", "--yes"); !strings.Contains(out, "warning: the store is away") {
				t.Error(out)
			}
			w.stderr.await(t, "reason=second")
			solotick(t, dir, "degrade", "clear", "-c", config, "--reason", "third", "--yes")
			w.stderr.await(t, "to=configuration")
			out := solotick(t, dir, "degrade", "history", "-c", config)
			if !strings.Contains(out, "first") || strings.Contains(out, "second") || !strings.Contains(out, "third") {
				t.Errorf("history:\n%s", out)
			}
			w.signal(syscall.SIGTERM)
			if code := w.wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
