//go:build unix

package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

func newLocker(t *testing.T, backend *memlock.Space, ttl time.Duration) *locks.Locker {
	t.Helper()
	l, err := memlock.New(backend, &locks.Config{TTL: ttl, Label: "box:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return l
}

func lockShell(l *locks.Locker, script string) (lockJob, *bytes.Buffer) {
	var out bytes.Buffer
	return lockJob{
		locker: l, key: lockKey("test", "k"), signals: &relay{signals: make(chan os.Signal, 1)},
		command: child.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out},
	}, &out
}

func TestLockGivesTheCommandItsFence(t *testing.T) {
	l := newLocker(t, new(memlock.Space), 5*time.Second)
	for _, want := range []string{"1\n", "2\n"} {
		j, out := lockShell(l, `echo $SOLOTICK_FENCE; exit 4`)
		if code := codeOf(j.run(t.Context())); code != 4 || out.String() != want {
			t.Errorf("code %d, fence %q, want %q", code, out, want)
		}
	}
}

func TestLockHeldByAnother(t *testing.T) {
	backend := new(memlock.Space)
	l, rival := newLocker(t, backend, 5*time.Second), newLocker(t, backend, 5*time.Second)
	lease, err := rival.TryAcquire(t.Context(), lockKey("test", "k"))
	if err != nil {
		t.Fatal(err)
	}
	for wait, remedy := range map[time.Duration]string{0: "--wait", 50 * time.Millisecond: "did not become free within 50ms"} {
		j, out := lockShell(l, `echo ran`)
		j.wait = wait
		err := j.run(t.Context())
		if codeOf(err) != exitBusy || !strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), `held by "box:1"`) || out.Len() > 0 {
			t.Errorf("%v, output %q", err, out)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLockTakenAwayStopsTheCommand(t *testing.T) {
	backend := new(memlock.Space)
	l := newLocker(t, backend, 2*time.Second)
	j, _ := lockShell(l, `trap '' TERM; echo ready; while :; do sleep 0.02; done`)
	j.command.Stdout = writerFunc(func(p []byte) (int, error) {
		if _, err := newLocker(t, backend, time.Second).ForceRelease(t.Context(), j.key); err != nil {
			t.Error(err)
		}
		return len(p), nil
	})
	start := time.Now()
	err := j.run(t.Context())
	if codeOf(err) != exitLost || !strings.Contains(err.Error(), "no longer ours") || !strings.Contains(err.Error(), "its code: 137") {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

func TestLockWaitEndsWithASignal(t *testing.T) {
	backend := new(memlock.Space)
	l, rival := newLocker(t, backend, 5*time.Second), newLocker(t, backend, 5*time.Second)
	if _, err := rival.TryAcquire(t.Context(), lockKey("test", "k")); err != nil {
		t.Fatal(err)
	}
	j, _ := lockShell(l, "exit 0")
	j.wait = time.Minute
	j.signals.signals <- syscall.SIGTERM
	if err := j.run(t.Context()); codeOf(err) != 128+15 {
		t.Errorf("%v", err)
	}
}

func TestLockKeys(t *testing.T) {
	if got := lockKey("shop", "a b:c"); got != "lock:shop:command:a b%3Ac" {
		t.Error(got)
	}
	if got := lockKey("shop", "lock:shop:cron:report"); got != "lock:shop:cron:report" {
		t.Error(got)
	}
}
