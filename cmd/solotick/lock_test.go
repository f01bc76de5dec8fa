//go:build linux

package main

import (
	"database/sql"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/libtnb/sqlite"
)

// stubborn is a command that tells its process id and ignores SIGTERM.
const stubborn = `trap 'echo got TERM' TERM; echo pid $$; while :; do sleep 0.05; done`

func pidOf(t *testing.T, p *process) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimPrefix(p.stdout.await(t, "pid "), "pid "))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestLockThatCannotBeRenewed takes the database away: the command gets SIGTERM
// and SIGKILL before another could have the lock.
func TestLockThatCannotBeRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "lock", "k", "--ttl", "3s", "--", "sh", "-c", stubborn)
	pid := pidOf(t, p)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "solotick.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	// No renewal succeeds after this, so the lock ends within its TTL.
	gone(t, pid)
	if code := p.wait(); code != 76 {
		t.Errorf("exit code %d", code)
	}
	if _, err := db.Exec("ROLLBACK"); err != nil {
		t.Error(err)
	}
	p.stdout.await(t, "got TERM")
	p.stderr.await(t, "solotick: ")
}

// TestLockOfAFrozenProcess freezes the holder for longer than its lock lasts: the
// next holder has a higher fence, and the frozen one's command is stopped.
func TestLockOfAFrozenProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, "lock", "k", "--ttl", "1s", "--", "sh", "-c", "echo fence $SOLOTICK_FENCE; "+stubborn)
	pid := pidOf(t, p)
	fence := p.stdout.await(t, "fence ")
	p.signal(syscall.SIGSTOP)
	next := start(t, dir, "lock", "k", "--ttl", "1s", "--wait", "20s", "--", "sh", "-c", "echo fence $SOLOTICK_FENCE")
	if code := next.wait(); code != 0 {
		t.Errorf("the next holder: exit code %d", code)
	}
	if higher := next.stdout.await(t, "fence "); len(higher) < len(fence) || len(higher) == len(fence) && higher <= fence {
		t.Errorf("%q is not above %q", higher, fence)
	}
	p.signal(syscall.SIGCONT)
	if code := p.wait(); code != 76 {
		t.Errorf("exit code %d", code)
	}
	gone(t, pid)
}

func TestLockPassesSignalsOn(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir(), "lock", "k", "--", "sh", "-c", `trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done`)
	p.stdout.await(t, "ready")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 7 {
		t.Errorf("exit code %d", code)
	}
}

func TestOnceTakesOverFromAKilledProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := writeFile(t, dir, "solotick.yaml", "namespace: test\nscheduler: {lease: 1s}\n")
	p := start(t, dir, "once", "-c", config, "--job", "j", "--key", "k", "--", "sh", "-c", `echo pid $$; exec sleep 600`)
	pid := pidOf(t, p)
	busy := start(t, dir, "once", "-c", config, "--job", "j", "--key", "k", "--", "true")
	if code := busy.wait(); code != 75 {
		t.Errorf("while it runs: exit code %d", code)
	}
	p.signal(syscall.SIGKILL)
	p.wait()
	gone(t, pid)
	for deadline := time.Now().Add(2 * time.Minute); ; {
		again := start(t, dir, "once", "-c", config, "--job", "j", "--key", "k", "--", "sh", "-c", "echo attempt $SOLOTICK_ATTEMPT")
		if code := again.wait(); code == 0 {
			again.stdout.await(t, "attempt 2")
			return
		} else if code != 75 || time.Now().After(deadline) {
			t.Fatalf("exit code %d", code)
		}
	}
}
