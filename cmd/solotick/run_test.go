//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const workerFile = `namespace: test
scheduler: {lease: 1s, poll_interval: 100ms, drain_timeout: 20s}
degradation: {mode: fail_fast}
jobs:
  - {name: tick, cron: "@every 1s", exec: ["sh", "-c", "echo ran >>ticks"]}
  - {name: count, cron: "@every 1s", gate: leader, sql: "INSERT INTO counted(tick) VALUES (:tick)"}
  - {name: slow, queue: true, exec: ["sh", "-c", "echo begun >>slow; sleep 1; echo done >>slow"]}
  - {name: endless, queue: true, exec: ["sh", "-c", "echo begun >>endless; exec sleep 600"]}
`

// awaitFile waits until the file has n lines.
func awaitFile(t *testing.T, path string, n int) {
	t.Helper()
	for range waiting(t) {
		if data, err := os.ReadFile(path); err == nil && strings.Count(string(data), "\n") >= n {
			return
		}
	}
	t.Fatalf("%s has not got %d lines", path, n)
}

// awaitThere waits until the file is there.
func awaitThere(t *testing.T, path string) {
	t.Helper()
	for range waiting(t) {
		if _, err := os.Stat(path); err == nil {
			return
		}
	}
	t.Fatalf("there is no %s", path)
}

func solotick(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("solotick", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("solotick %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestWorker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", workerFile)
	solotick(t, dir, "migrate", "up", "-c", config)
	query(t, dir, "CREATE TABLE counted (tick INTEGER)")
	w := start(t, dir, "run", "-c", config)
	awaitFile(t, filepath.Join(dir, "ticks"), 2)

	// What the file changes live, and what it cannot.
	w.stderr.await(t, "worker starts")
	writeFile(t, dir, "solotick.yaml", strings.Replace(workerFile, "fail_fast", "store_only", 1))
	if got := w.stderr.await(t, `configuration reloaded`); !strings.Contains(got, " namespace=") || !strings.Contains(got, " owner=") {
		t.Error("whose line is it:", got)
	}
	writeFile(t, dir, "solotick.yaml", strings.Replace(strings.Replace(workerFile, "fail_fast", "store_only", 1), "lease: 1s", "lease: 2s", 1))
	if got := w.stderr.await(t, "need a restart"); !strings.Contains(got, "[scheduler.lease]") {
		t.Error(got)
	}
	writeFile(t, dir, "solotick.yaml", strings.Replace(workerFile, "mode: fail_fast", "mod: fail_fast", 1))
	if got := w.stderr.await(t, "nothing was changed"); !strings.Contains(got, `unknown key \"mod\"`) || !strings.Contains(got, "solotick.yaml:3:15") {
		t.Error(got)
	}
	writeFile(t, dir, "solotick.yaml", workerFile)
	w.signal(syscall.SIGHUP)

	// SIGTERM lets a run in progress finish.
	solotick(t, dir, "enqueue", "slow", "{}", "-c", config)
	awaitFile(t, filepath.Join(dir, "slow"), 1)
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	awaitFile(t, filepath.Join(dir, "slow"), 2)

	// The record and the tables agree.
	if out := solotick(t, dir, "runs", "-c", config, "--job", "slow", "--state", "succeeded"); !strings.Contains(out, "slow") {
		t.Error(out)
	}
	if out := solotick(t, dir, "jobs", "-c", config); !strings.Contains(out, "@every 1s") || strings.Contains(out, "another schedule") || strings.Contains(out, "never started") {
		t.Error(out)
	}
	if n, ran := query(t, dir, "SELECT count(*) FROM counted"), query(t, dir, "SELECT count(*) FROM solotick_executions WHERE job = 'count' AND state = 3"); n != ran || n == 0 {
		t.Errorf("%d effects of %d runs", n, ran)
	}
}

// TestWorkerTakesUpAChangedFile adds, changes and removes jobs of a running worker, and
// gives it files that are not good: then nothing changes.
func TestWorkerTakesUpAChangedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const head = "namespace: test\nscheduler: {gate: none, lease: 1s, poll_interval: 100ms}\n"
	const same = `  - {name: same, cron: "@every 1s", exec: ["sh", "-c", "echo ran >>same"]}` + "\n"
	tick := func(period, file string) string {
		return `  - {name: tick, cron: "@every ` + period + `", exec: ["sh", "-c", "echo ran >>` + file + `"]}` + "\n"
	}
	const leaves = `  - {name: leaves, cron: "@every 1s", exec: ["sh", "-c", "echo ran >>leaves"]}` + "\n"
	config := writeFile(t, dir, "solotick.yaml", head+"jobs:\n"+same+tick("1s", "old")+leaves)
	w := start(t, dir, "run", "-c", config)
	for _, file := range []string{"same", "old", "leaves"} {
		awaitFile(t, filepath.Join(dir, file), 1)
	}
	write := func(text, await string, holds ...string) {
		t.Helper()
		writeFile(t, dir, "solotick.yaml", text)
		line := w.stderr.await(t, await)
		for _, part := range holds {
			if !strings.Contains(line, part) {
				t.Errorf("no %s in %s", part, line)
			}
		}
	}
	lines := func(name string) int {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "\n")
	}

	// Not good: a key, a schedule, and what only the building of the jobs finds.
	write(head+"jobs:\n"+same+"  - {name: tick, corn: x}\n", "corn", "nothing was changed", "solotick.yaml:5:")
	write(head+"jobs:\n"+same+`  - {name: tick, cron: "0 0 30 2 *", exec: ["true"]}`+"\n", "jobs[1].cron", "nothing was changed", "solotick.yaml:5:")
	write(head+"jobs:\n"+same+`  - {name: tick, cron: "@daily", sql: "COMMIT"}`+"\n", "jobs[1].sql", "nothing was changed", "solotick.yaml:5:")
	write("namespace: test\n", "has no jobs", "nothing was changed")
	for _, file := range []string{"same", "old", "leaves"} { // all goes on
		awaitFile(t, filepath.Join(dir, file), lines(file)+2)
	}

	changed := strings.Replace(head, "lease: 1s", "lease: 2s, concurrency: 3", 1) + "log: {level: debug}\ndegradation: {jobs: {comes: store_only}}\njobs:\n" + same + tick("2s", "new") +
		`  - {name: comes, cron: "@every 1s", gate: leader, exec: ["sh", "-c", "echo ran >>comes"]}` + "\n"
	write(changed, "configuration reloaded", "jobs.tick (changed)", "jobs.comes (added)", "jobs.leaves (removed)",
		"scheduler.concurrency", "log.level", "degradation.jobs.comes", "need_restart=[scheduler.lease]")
	awaitFile(t, filepath.Join(dir, "new"), 2)
	awaitFile(t, filepath.Join(dir, "comes"), 2)
	w.stderr.await(t, "level=DEBUG")
	old, left := lines("old"), lines("leaves")
	awaitFile(t, filepath.Join(dir, "same"), lines("same")+3)
	if n, m := lines("old"), lines("leaves"); n != old || m != left {
		t.Errorf("what was replaced ran %d times more, what was removed %d times", n-old, m-left)
	}
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	// Every tick of the job that stayed has one record, and each run one effect.
	const of = " FROM solotick_executions WHERE job = 'same'"
	ticks, span := query(t, dir, "SELECT count(*)"+of), query(t, dir, "SELECT (max(tick_ms) - min(tick_ms)) / 1000 + 1"+of)
	ranged := query(t, dir, "SELECT coalesce(sum(ticks), 0) FROM solotick_tick_ranges WHERE job = 'same'")
	if ran := query(t, dir, "SELECT count(*)"+of+" AND state = 3"); ticks+ranged != span || ran != lines("same") {
		t.Errorf("%d records of %d ticks, and %d in ranges; %d runs had %d effects", ticks, span, ranged, ran, lines("same"))
	}
}

func TestWorkerEndsAtTheSecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", workerFile+"log: {format: json}\n")
	solotick(t, dir, "migrate", "up", "-c", config)
	query(t, dir, "CREATE TABLE counted (tick INTEGER)")
	solotick(t, dir, "enqueue", "endless", "{}", "-c", config)
	w := start(t, dir, "run", "-c", config)
	awaitFile(t, filepath.Join(dir, "endless"), 1)
	w.signal(syscall.SIGINT)
	w.stderr.await(t, "a second signal ends it at once")
	w.signal(syscall.SIGINT)
	w.stderr.await(t, "worker ends its runs")
	w.stderr.await(t, `"msg":"command is being stopped"`) // the commands' log is the worker's
	w.wait()                                              // the test fails if that takes the drain timeout and more
}

func TestWorkerRefusesWhatItCannotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, want := range map[string]string{
		"namespace: test\n": "has no jobs",
		"namespace: test\njobs:\n  - {name: a, cron: \"0 0 30 2 *\", exec: [\"true\"]}\n": "solotick.yaml:3:21: jobs[0].cron",
		"namespace: test\njobs:\n  - {name: a, cron: \"@daily\", sql: \"COMMIT\"}\n":      "solotick.yaml:3:",
	} {
		config := writeFile(t, dir, "solotick.yaml", text)
		p := start(t, dir, "run", "-c", config)
		if code := p.wait(); code != 2 || !strings.Contains(p.stderr.all(), want) {
			t.Errorf("%q: exit code %d, %s", text, code, p.stderr.all())
		}
	}
	p := start(t, dir, "run")
	if code := p.wait(); code != 2 || !strings.Contains(p.stderr.all(), "no configuration file: name it") {
		t.Errorf("without a file: exit code %d, %s", code, p.stderr.all())
	}
}
