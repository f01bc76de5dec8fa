package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

func evict(l *locks.Locker, ask func() (bool, error)) (told string, err error) {
	var out bytes.Buffer
	err = eviction{locker: l, key: "k", ask: ask, out: &out, told: &out}.run(context.Background())
	return out.String(), err
}

func TestReleaseAsksFirst(t *testing.T) {
	backend := new(memlock.Space)
	holder, operator := newLocker(t, backend, 5*time.Second), newLocker(t, backend, 5*time.Second)
	lease, err := holder.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if told, err := evict(operator, func() (bool, error) { return false, nil }); err == nil || !strings.Contains(told, "k is held by box:1 since ") || !strings.Contains(told, "both may work") {
		t.Errorf("after no: %v, %s", err, told)
	}
	broken := errors.New("broken")
	if _, err := evict(operator, func() (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("after no answer: %v", err)
	}
	if lease.Err() != nil || lease.Check(t.Context()) != nil {
		t.Fatal("the lock was taken away without a yes")
	}
	if told, err := evict(operator, func() (bool, error) { return true, nil }); err != nil || !strings.Contains(told, "k is released: the next fence is above 1\n") {
		t.Errorf("after yes: %v, %s", err, told)
	}
	if err := lease.Check(t.Context()); !errors.Is(err, locks.ErrLost) {
		t.Errorf("the holder: %v", err)
	}
	if told, err := evict(operator, nil); err != nil || !strings.Contains(told, "k is free") {
		t.Errorf("a free one: %v, %s", err, told)
	}
}

// TestReleaseSparesANewHolder: who says yes means the holder that was shown.
func TestReleaseSparesANewHolder(t *testing.T) {
	backend := new(memlock.Space)
	holder, operator := newLocker(t, backend, 5*time.Second), newLocker(t, backend, 5*time.Second)
	first, err := holder.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	var second *locks.Lease
	_, err = evict(operator, func() (bool, error) {
		if err := first.Release(t.Context()); err != nil {
			t.Error(err)
		}
		second, err = holder.TryAcquire(t.Context(), "k")
		return true, err
	})
	if err == nil || !strings.Contains(err.Error(), "the holder has changed") {
		t.Errorf("got %v", err)
	}
	if err := second.Check(t.Context()); err != nil {
		t.Errorf("the new holder: %v", err)
	}
}

func TestLocksPrefix(t *testing.T) {
	for _, c := range []struct{ text, want string }{{"", "lock:shop:"}, {"cron:", "lock:shop:cron:"}, {"lock:", "lock:"}, {"lock:x", "lock:x"}} {
		if got := keyPrefix("shop", c.text); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// TestLocksShowNothingThatATerminalObeys: keys and labels come from anybody.
func TestLocksShowNothingThatATerminalObeys(t *testing.T) {
	h := locks.Holder{Key: "lock:a", Label: "b\x1b[2J", Fence: 7, Since: time.Unix(0, 0), Remaining: 1500 * time.Millisecond, Waiters: 2}
	var out bytes.Buffer
	if err := printLocks(&out, "table", []locks.Holder{h, {Key: "lock:b"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`lock:a  "b\x1b[2J"  1970-01-01T00:00:00Z  7      1.5s       2`, "lock:b  -           -                     0      -          -"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if text := describe(h); strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
}

func TestLocksRefuseNonsense(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "memory.yaml")
	if err := os.WriteFile(memory, []byte("namespace: test\nlocks: {driver: memory}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"release", "accepts 1 arg"},
		{"release a b", "accepts 1 arg"},
		{"release  --yes", "accepts 1 arg"},
		{"list --limit 0", "--limit: 0 is outside 1 to 10000"},
		{"list --limit 10001", "--limit: 10001 is outside"},
		{"list x", "unknown command"},
		{"list -c " + memory, "excludes nobody outside of one process"},
		{"release k -y -c " + memory, "excludes nobody outside of one process"},
		{"list -c none.yaml", "no such file"},
		{"lst", `unknown command "lst": did you mean list`},
	} {
		var out, errs bytes.Buffer
		if code := Run(append([]string{"locks"}, strings.Fields(c.args)...), nil, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
			t.Errorf("locks %s: code %d, %s%s", c.args, code, &out, &errs)
		}
	}
	var errs bytes.Buffer
	if code := Run([]string{"locks", "release", ""}, nil, new(bytes.Buffer), &errs); code != exitUsage || !strings.Contains(errs.String(), "KEY is empty") {
		t.Errorf("an empty key: code %d, %s", code, &errs)
	}
}
