//go:build unix

package leadertest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// A leader that was frozen for longer than its term is not leader when it wakes,
// not for one look, although no timer of its own could fire in time.
func TestFrozenLeaderWakesDeposed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.db")
	d := sqlite(t, path)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1<<16)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	defer func() {
		_ = cmd.Process.Kill()
		for range lines { // until the pipe is closed
		}
		_ = cmd.Wait()
	}()
	await := func(prefix string) string {
		t.Helper()
		limit := time.NewTimer(2 * time.Minute)
		defer limit.Stop()
		for {
			select {
			case line, ok := <-lines:
				if !ok || strings.HasPrefix(line, "failed") {
					t.Fatalf("the replica ended: %s", line)
				}
				if strings.HasPrefix(line, prefix) {
					return line
				}
			case <-limit.C:
				t.Fatalf("the replica did not say %q", prefix)
			}
		}
	}
	var old, at int64
	if _, err := fmt.Sscanf(await("leads"), "leads %d %d", &old, &at); err != nil {
		t.Fatal(err)
	}

	freeze(t, cmd.Process, d)
	l, err := locks.New(d, locks.Config{TTL: frozenTTL})
	if err != nil {
		t.Fatal(err)
	}
	defer closeLocker(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	next, err := l.Acquire(ctx, frozenKey) // the next leader
	if err != nil {
		t.Fatal(err)
	}
	won := time.Now().UnixNano()
	if next.Fence() <= old {
		t.Errorf("term %d follows term %d", next.Fence(), old)
	}
	signal(t, cmd.Process, syscall.SIGCONT)

	ended := false
	for {
		line := await("")
		var number int64
		switch _, err := fmt.Sscanf(line, "leads %d %d", &number, &at); {
		case err != nil:
			if line != fmt.Sprintf("ended %d true false", old) && line != fmt.Sprintf("ended %d false true", old) {
				t.Fatalf("the replica said %q, want term %d ended by ErrUnavailable or ErrDeposed", line, old)
			}
			ended = true
			if err := next.Release(t.Context()); err != nil {
				t.Errorf("the next leader's Release = %v", err)
			}
		case number == old && at > won:
			t.Fatalf("the frozen leader took itself for the leader of term %d, %v after the next one was elected", old, time.Duration(at-won))
		case number > next.Fence():
			if !ended {
				t.Error("the replica was not told of the end of its term")
			}
			return // it is back, with a term of its own
		}
	}
}

// freeze stops the process at a moment at which it is not writing: SQLite has one
// writer, and a frozen one keeps everybody out.
func freeze(t *testing.T, p *os.Process, d driver.Driver) {
	t.Helper()
	for range 20 {
		signal(t, p, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		token := driver.NewToken()
		g, err := d.Acquire(ctx, driver.Request{Key: "lock:test:probe", Token: token, TTL: time.Minute})
		cancel()
		if err == nil {
			if _, err := d.Release(t.Context(), driver.Hold{Request: driver.Request{Key: "lock:test:probe", Token: token}, Fence: g.Fence}); err != nil {
				t.Fatal(err)
			}
			return
		}
		signal(t, p, syscall.SIGCONT)
	}
	t.Fatal("the replica could not be frozen outside of its writes")
}

func signal(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}
