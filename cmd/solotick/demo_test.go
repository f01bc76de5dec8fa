//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

type demoReport struct {
	Replicas   int     `json:"replicas"`
	Seconds    float64 `json:"seconds"`
	Kills      int     `json:"kills"`
	Ticks      int     `json:"ticks"`
	Runs       int     `json:"runs"`
	Skipped    int     `json:"skipped"`
	Duplicates int     `json:"duplicates"`
	Missed     int     `json:"missed"`
	Waiting    int     `json:"waiting"`
	Takeovers  int     `json:"takeovers"`
}

// TestDemo runs the demo in short, with clocks that are wrong: every tick once,
// although replicas are killed.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "demo", "--for", "12s", "--replicas", "3", "--kill-every", "5s", "--skew", "700ms", "--json", "--dir", filepath.Join(dir, "kept"))
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out := strings.Split(strings.TrimSpace(p.stdout.all()), "\n")
	if len(out) != 1 {
		t.Fatalf("stdout has %d lines", len(out))
	}
	d := json.NewDecoder(strings.NewReader(out[0]))
	d.DisallowUnknownFields()
	var r demoReport
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.Replicas != 3 || r.Seconds != 12 || r.Kills < 2 || r.Takeovers < 1 {
		t.Errorf("%+v", r)
	}
	// Three jobs every second, one every six.
	if r.Ticks != 3*12+2 || r.Runs != r.Ticks || r.Skipped != 0 || r.Duplicates != 0 || r.Missed != 0 || r.Waiting != 0 {
		t.Errorf("%+v", r)
	}
	p.stderr.await(t, "KEPT: nothing was lost and nothing ran twice.")
	p.stderr.await(t, "killed replica ")
	p.stderr.await(t, " taken over by replica ")
	if _, err := os.Stat(filepath.Join(dir, "kept", "demo.db")); err != nil {
		t.Error(err)
	}
	noReplicas(t, dir)

	// A directory of an earlier demo is not used again.
	again := start(t, dir, "demo", "--for", "3s", "--dir", filepath.Join(dir, "kept"))
	if code := again.wait(); code != 1 || !strings.Contains(again.stderr.all(), "earlier demo") {
		t.Errorf("exit code %d: %s", code, again.stderr.all())
	}
}

// TestDemoInterrupted ends the demo before its time: no replica and no file is left.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startWith(t, dir, []string{"TMPDIR=" + dir}, "demo", "--for", "1h", "--kill-every", "5s")
	p.stdout.await(t, "killed replica ")
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	p.stderr.await(t, "solotick: demo: interrupted before the end")
	left, err := filepath.Glob(filepath.Join(dir, "solotick-demo-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	noReplicas(t, dir)
}

// TestDemoReplicasEndWithTheirParent kills the demo itself.
func TestDemoReplicasEndWithTheirParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startWith(t, dir, []string{"TMPDIR=" + dir}, "demo", "--for", "1h", "--kill-every", "5s")
	p.stdout.await(t, "killed replica ")
	p.signal(syscall.SIGKILL)
	p.wait()
	noReplicas(t, dir)
}

// noReplicas waits until no replica of a demo under dir is left.
func noReplicas(t *testing.T, dir string) {
	t.Helper()
	for range waiting(t) {
		if !slices.ContainsFunc(living(t), func(p proc) bool { return strings.Contains(p.args, "demo-worker --dir "+dir) }) {
			return
		}
	}
	t.Errorf("replicas are left")
}

func TestDemoRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"--for 1s", "--replicas 0", "--kill-every 10ms", "--kill-every 3s", "--skew -1s"} {
		p := start(t, t.TempDir(), append([]string{"demo"}, strings.Fields(args)...)...)
		if code := p.wait(); code != 2 || !strings.Contains(p.stderr.all(), strings.Fields(args)[0]) {
			t.Errorf("%s: exit code %d, %s", args, code, p.stderr.all())
		}
	}
}
