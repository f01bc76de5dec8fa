//go:build unix

package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// oneMachine is a caller of once that shares a store with others.
type oneMachine struct {
	*onceRun
	stdout, stderr bytes.Buffer
}

func machine(st store.Store, key, script string) *oneMachine {
	m := &oneMachine{onceRun: &onceRun{
		store: st, namespace: "test", job: "nightly", key: key, owner: store.NewOwner(), label: "box:1",
		lease: time.Second, signals: &relay{signals: make(chan os.Signal, 1)},
	}}
	m.command = child.Command{Argv: []string{"sh", "-c", script}, Stdout: &m.stdout, Stderr: &m.stderr}
	return m
}

func codeOf(err error) int {
	var coded *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	}
	return exitFailure
}

func TestOnceRunsOncePerKey(t *testing.T) {
	st, ran := memstore.New(), filepath.Join(t.TempDir(), "ran")
	script := `echo out; echo "$SOLOTICK_JOB $SOLOTICK_KEY $SOLOTICK_ATTEMPT" >&2; echo x >> ` + ran + `; exit 3`
	first := machine(st, "a", script)
	if code := codeOf(first.run(t.Context())); code != 3 || first.stdout.String() != "out\n" || first.stderr.String() != "nightly a 1\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, &first.stdout, &first.stderr)
	}
	again := machine(st, "a", script)
	if code := codeOf(again.run(t.Context())); code != 3 || !strings.Contains(again.stdout.String(), "out\n") || !strings.Contains(again.stdout.String(), "nightly a 1\n") {
		t.Errorf("the repeat: code %d, stdout %q", code, &again.stdout)
	}
	if !strings.Contains(again.stderr.String(), "nightly/a has run before: exit code 3 at ") {
		t.Errorf("the repeat said %q", &again.stderr)
	}
	other := machine(st, "b", script)
	if code := codeOf(other.run(t.Context())); code != 3 {
		t.Errorf("another key: code %d", code)
	}
	if log, err := os.ReadFile(ran); err != nil || string(log) != "x\nx\n" {
		t.Errorf("it ran %q, %v", log, err)
	}
}

func TestOnceIsBusyWhileAnotherRunsIt(t *testing.T) {
	st := memstore.New()
	fifo := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	slow := machine(st, "a", "read x < "+fifo)
	go func() { done <- slow.run(t.Context()) }()
	gate, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits until the command reads
	if err != nil {
		t.Fatal(err)
	}
	// Longer than its lease: the heartbeat has to keep it.
	<-time.After(1500 * time.Millisecond)
	rival := machine(st, "a", "exit 0")
	if err := rival.run(t.Context()); codeOf(err) != exitBusy || !strings.Contains(err.Error(), "in progress on box:1") {
		t.Errorf("the rival: %v", err)
	}
	if _, err := gate.WriteString("x\n"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(gate.Close(), <-done); err != nil {
		t.Error(err)
	}
}

func TestOnceTakesOverFromTheDeadAndLeavesOtherKeysAlone(t *testing.T) {
	st := memstore.New()
	for _, key := range []string{"a", "b"} { // two machines that die after the claim
		dead := machine(st, key, "")
		if exec, _, _, err := dead.claim(t.Context()); err != nil || exec.Attempt != 1 {
			t.Fatal(exec, err)
		}
	}
	<-time.After(1100 * time.Millisecond)
	for _, key := range []string{"a", "b"} {
		m := machine(st, key, `echo "$SOLOTICK_KEY"`)
		if err := m.run(t.Context()); err != nil || m.stdout.String() != key+"\n" {
			t.Errorf("%s: %v, %q", key, err, &m.stdout)
		}
		e, err := st.Find(t.Context(), "test", store.Key{Class: store.ClassKey, Job: "nightly", Name: key})
		if err != nil || e.State != store.StateSucceeded || e.Attempt != 2 {
			t.Errorf("%s: %v attempt %d, %v", key, e.State, e.Attempt, err)
		}
	}
}

func TestOnceStoppedBySignalIsOpenToTheNextCall(t *testing.T) {
	st := memstore.New()
	m := machine(st, "a", `trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done`)
	m.command.Stdout = writerFunc(func(p []byte) (int, error) {
		m.signals.signals <- syscall.SIGTERM
		return len(p), nil
	})
	if code := codeOf(m.run(t.Context())); code != 7 {
		t.Errorf("code %d", code)
	}
	next := machine(st, "a", `echo "attempt $SOLOTICK_ATTEMPT"`)
	if err := next.run(t.Context()); err != nil || next.stdout.String() != "attempt 2\n" {
		t.Errorf("%v, %q", err, &next.stdout)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOnceLosesARunThatAnotherTook(t *testing.T) {
	st := &deafStore{Store: memstore.New()}
	m := machine(st, "a", `trap '' TERM; echo ready; while :; do sleep 0.02; done`)
	m.command.Stdout = writerFunc(func(p []byte) (int, error) {
		st.deaf.Store(true)
		return len(p), nil
	})
	start := time.Now()
	if err := m.run(t.Context()); codeOf(err) != exitLost {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > m.lease {
		t.Errorf("the command was stopped after %v, when its lease of %v had ended", took, m.lease)
	}
}

// deafStore stops to answer heartbeats.
type deafStore struct {
	store.Store
	deaf atomic.Bool
}

func (s *deafStore) Heartbeat(ctx context.Context, r store.HeartbeatRequest) (store.Heartbeats, error) {
	if s.deaf.Load() {
		<-ctx.Done()
		return store.Heartbeats{}, store.ErrUnavailable
	}
	return s.Store.Heartbeat(ctx, r)
}

func TestOnceRefusesAJobWithASchedule(t *testing.T) {
	st := memstore.New()
	if _, err := st.Register(t.Context(), "test", []store.JobSpec{{Job: "nightly", Spec: "{}", Hash: "h"}}); err != nil {
		t.Fatal(err)
	}
	if err := machine(st, "a", "exit 0").run(t.Context()); codeOf(err) != exitUsage || !strings.Contains(err.Error(), "choose another name") {
		t.Errorf("%v", err)
	}
}

func TestOnceCommandThatCannotStartLeavesTheKeyFree(t *testing.T) {
	st := memstore.New()
	for range 2 {
		m := machine(st, "a", "")
		m.command.Argv = []string{"no-such-command-here"}
		if code := codeOf(m.run(t.Context())); code != 127 {
			t.Errorf("code %d", code)
		}
	}
	m := machine(st, "a", "echo $SOLOTICK_ATTEMPT; exit 3")
	if code := codeOf(m.run(t.Context())); code != 3 || m.stdout.String() != "1\n" {
		t.Errorf("the corrected command: code %d, %q", code, &m.stdout)
	}
}
