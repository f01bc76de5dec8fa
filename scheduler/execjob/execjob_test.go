//go:build unix

package execjob

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

type fakeRun struct {
	tick   time.Time
	args   []byte
	result []byte
}

func (r *fakeRun) Job() string                  { return "backup" }
func (r *fakeRun) Tick() time.Time              { return r.tick }
func (r *fakeRun) Attempt() int                 { return 2 }
func (r *fakeRun) Fence() int64                 { return 77 }
func (r *fakeRun) Lease() time.Duration         { return 10 * time.Second }
func (r *fakeRun) Mode() store.Mode             { return store.ModeStoreOnly }
func (r *fakeRun) Args() []byte                 { return r.args }
func (r *fakeRun) Ref() store.Ref               { return store.Ref{Namespace: "shop"} }
func (r *fakeRun) EffectKey(step string) string { return "key-" + step }
func (r *fakeRun) SetResult(b []byte)           { r.result = b }

func shell(t *testing.T, script string, change ...func(*Config)) *command {
	t.Helper()
	cfg := Config{Command: []string{"sh", "-c", script}}
	for _, f := range change {
		f(&cfg)
	}
	c, err := newCommand(cfg, Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEnvironmentIsOnlyWhatIsListed(t *testing.T) {
	t.Setenv("CANARY", "of the worker")
	t.Setenv("WANTED", "of the worker")
	t.Setenv("SOLOTICK_FENCE", "of the worker")
	c := shell(t, "env", func(c *Config) {
		c.Env = map[string]secret.Value{"TOKEN": secret.New("t0ken"), "HOME": secret.New("/elsewhere")}
		c.PassEnv = []string{"WANTED", "NOT_SET"}
	})
	r := &fakeRun{tick: time.Date(2026, 3, 1, 2, 30, 0, 0, time.FixedZone("x", 3600))}
	if err := c.run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	env := strings.Split(strings.TrimSpace(string(r.result)), "\n")
	for _, want := range []string{
		"SOLOTICK_KEY=key-exec", "SOLOTICK_JOB=backup", "SOLOTICK_TICK=2026-03-01T01:30:00Z", "SOLOTICK_ATTEMPT=2",
		"SOLOTICK_FENCE=77", "SOLOTICK_MODE=store_only", "SOLOTICK_NAMESPACE=shop", "TOKEN=t0ken", "HOME=/elsewhere",
		"WANTED=of the worker", "PATH=" + os.Getenv("PATH"),
	} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	if strings.Contains(string(r.result), "CANARY") {
		t.Errorf("the worker's environment leaks: %q", env)
	}
}

func TestErrorSaysTheLastLineOfOutput(t *testing.T) {
	for script, want := range map[string]string{
		"echo first; echo oops >&2; echo; exit 4": "exit code 4: oops",
		"exit 4":                   "exit code 4",
		"printf 'a\\377b'; exit 4": "exit code 4: ab",
		"echo bye; kill -9 $$":     "signal SIGKILL: bye",
		"head -c 5000 /dev/zero | tr '\\0' x; exit 4": "exit code 4: " + strings.Repeat("x", 200),
	} {
		if err := shell(t, script).run(t.Context(), &fakeRun{}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", script, err, want)
		}
	}
	quiet := func(c *Config) { c.Output = new(int) }
	if err := shell(t, "echo oops; exit 4", quiet).run(t.Context(), &fakeRun{}); err == nil || !strings.HasSuffix(err.Error(), "exit code 4") {
		t.Errorf("output that is not to be kept shows: %v", err)
	}
}

func TestArgumentsAreOnStandardInput(t *testing.T) {
	r := &fakeRun{args: []byte(`{"order":7}`)}
	if err := shell(t, "cat").run(t.Context(), r); err != nil || string(r.result) != `{"order":7}` {
		t.Fatalf("%q, %v", r.result, err)
	}
	r.args = make([]byte, 1<<20) // more than a pipe holds, and nobody reads it
	if err := shell(t, "exit 0").run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func TestExitCodes(t *testing.T) {
	permanent := fmt.Sprintf("%T", scheduler.Permanent(errors.New("x")))
	for _, c := range []struct {
		script, code string
		permanent    bool
	}{
		{"exit 3", "exit:3", false},
		{"echo why >&2; exit 75", "exit:75", false},
		{"exit 64", "exit:64", true},
		{"kill -9 $$", "signal:SIGKILL", false},
	} {
		r := &fakeRun{}
		err := shell(t, c.script, func(cfg *Config) { cfg.PermanentCodes = []int{64, 65} }).run(t.Context(), r)
		var coded interface{ ErrorCode() string }
		if !errors.As(err, &coded) || coded.ErrorCode() != c.code {
			t.Errorf("%s: %v, want code %s", c.script, err, c.code)
		}
		if got := fmt.Sprintf("%T", err) == permanent; got != c.permanent {
			t.Errorf("%s: permanent is %v", c.script, got)
		}
	}
	err := shell(t, "").run(t.Context(), &fakeRun{})
	if err != nil {
		t.Error(err)
	}
	missing, err := newCommand(Config{Command: []string{"/does/not/exist"}}, Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := missing.run(t.Context(), &fakeRun{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a command that is not there: %v", err)
	}
}

// alive reports whether a process runs; a zombie that nobody waits for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil && !errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// pipe is a FIFO through which scripts tell their process ids.
func pipe(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pids")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// told reads one line of process ids; it waits for a writer.
func told(t *testing.T, fifo string) []int {
	t.Helper()
	f, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for s := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	t.Cleanup(func() {
		for _, pid := range pids {
			if t.Failed() && alive(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // the test has said so
			}
		}
	})
	return pids
}

// stubborn starts a child, and both ignore SIGTERM.
const stubborn = `trap "" TERM; sh -c 'trap "" TERM; while :; do sleep 1; done' & echo $$ $! >"$FIFO"; while :; do sleep 1; done`

func TestNobodySurvivesTheEndOfTheRun(t *testing.T) {
	fifo := pipe(t)
	c := shell(t, stubborn, func(c *Config) {
		c.Grace = 50 * time.Millisecond
		c.Env = map[string]secret.Value{"FIFO": secret.New(fifo)}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- c.run(ctx, &fakeRun{}) }()
	pids := told(t, fifo)
	if len(pids) != 2 || !alive(pids[0]) || !alive(pids[1]) {
		t.Fatalf("processes %v", pids)
	}
	cancel(scheduler.ErrLeaseLost)
	err := <-returned
	if !errors.Is(err, scheduler.ErrLeaseLost) {
		t.Errorf("the error does not name the cause: %v", err)
	}
	if !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("the error does not say how it ended: %v", err)
	}
	gone(t, pids)
}

// gone waits for processes that were sent SIGKILL to have ended: that is soon, but
// not at once for one that is not our own child.
func gone(t *testing.T, pids []int) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(pids, alive) {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("of %v some are alive", pids)
		}
	}
}

func TestNobodySurvivesTheCommand(t *testing.T) {
	fifo := pipe(t)
	c := shell(t, `sh -c 'trap "" TERM HUP; sleep 60' & echo $! >"$FIFO"; echo done`, func(c *Config) {
		c.Env = map[string]secret.Value{"FIFO": secret.New(fifo)}
	})
	r := &fakeRun{}
	returned := make(chan error, 1)
	go func() { returned <- c.run(t.Context(), r) }()
	pids := told(t, fifo)
	if err := <-returned; err != nil || string(r.result) != "done\n" {
		t.Fatalf("%q, %v", r.result, err)
	}
	gone(t, pids)
}

func TestTermGivesTimeToTidyUp(t *testing.T) {
	fifo := pipe(t)
	c := shell(t, `trap 'echo tidy; exit 0' TERM; echo $$ >"$FIFO"; while :; do sleep 0.05; done`, func(c *Config) {
		c.Env = map[string]secret.Value{"FIFO": secret.New(fifo)}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &fakeRun{}
	returned := make(chan error, 1)
	go func() { returned <- c.run(ctx, r) }()
	told(t, fifo)
	cancel(scheduler.ErrDraining)
	if err := <-returned; !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("exit code 0 after SIGTERM does not say that the work was done: %v", err)
	}
	if !strings.HasSuffix(string(r.result), "tidy\n") {
		t.Errorf("result %q", r.result)
	}
}

func TestNoCommandIsStartedWithoutRight(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(scheduler.ErrLeaseLost)
	file := filepath.Join(t.TempDir(), "ran")
	err := shell(t, "touch "+file).run(ctx, &fakeRun{})
	if _, stat := os.Stat(file); !errors.Is(err, scheduler.ErrLeaseLost) || stat == nil {
		t.Fatalf("%v; started: %v", err, stat == nil)
	}
}

func TestGraceEndsBeforeTheLease(t *testing.T) {
	c, err := newCommand(Config{Command: []string{"x"}, Grace: time.Minute}, Deps{DrainTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for cause, want := range map[error]time.Duration{
		scheduler.ErrLeaseLost:                     200 * time.Millisecond,
		fmt.Errorf("%w: x", scheduler.ErrGateLost): 200 * time.Millisecond,
		scheduler.ErrTimeout:                       1600 * time.Millisecond,
		scheduler.ErrDraining:                      800 * time.Millisecond,
		scheduler.ErrCancelRequested:               1600 * time.Millisecond,
		context.Canceled:                           1600 * time.Millisecond,
	} {
		if got := c.grace(cause, 2*time.Second); got != want {
			t.Errorf("%v: %v, want %v", cause, got, want)
		}
	}
}

// TestNoCommandBesideOneThatIsStopped: a command that ignores SIGTERM, with a grace much
// longer than the lease, has gone before the next tick's begins.
func TestNoCommandBesideOneThatIsStopped(t *testing.T) {
	dir := t.TempDir()
	h, err := New(Config{
		Command: []string{"sh", "-c", `trap "" TERM
			for pid in $(cat pids 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $$ beside $pid >>beside; done
			echo $$ >>pids; exec sleep 60`},
		Dir: dir, Grace: 5 * time.Second,
	}, Deps{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 100)
	s, err := scheduler.New(scheduler.Config{Namespace: "test", Gate: scheduler.GateNone, Lease: time.Second}, scheduler.Deps{
		Store: memstore.New(), Logger: slog.New(slog.DiscardHandler),
		Listeners: []scheduler.Listener{scheduler.ListenerFunc(func(e scheduler.Event) {
			if _, ok := e.(scheduler.RunFinished); ok {
				ended <- struct{}{}
			}
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(scheduler.Cron("stubborn", "@every 1s", h, scheduler.Timeout(100*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 { // real time: leases and processes
		<-ended
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	pids, err := os.ReadFile(filepath.Join(dir, "pids"))
	if n := strings.Count(string(pids), "\n"); err != nil || n < 3 {
		t.Errorf("%d commands, %v", n, err)
	}
	if beside, err := os.ReadFile(filepath.Join(dir, "beside")); err == nil {
		t.Errorf("commands ran beside each other:\n%s", beside)
	}
}

func TestGraceThatTheLeaseDoesNotAllow(t *testing.T) {
	for _, c := range []struct {
		grace, lease time.Duration
		ok           bool
	}{
		{8 * time.Second, 0, true},
		{8001 * time.Millisecond, 0, false},
		{0, time.Second, true},
		{time.Second, time.Second, false},
		{time.Minute, 10 * time.Minute, true},
	} {
		if err := (Config{Grace: c.grace}).CheckLease(c.lease); (err == nil) != c.ok {
			t.Errorf("grace %v with lease %v: %v", c.grace, c.lease, err)
		}
	}
}

func TestCommandDiesWithItsWorker(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the parent-death signal is Linux's")
	}
	fifo := pipe(t)
	worker := exec.Command(os.Args[0], "-test.run=^$")
	worker.Env = append(os.Environ(), workerEnv+"=echo $$ >"+fifo+"; while :; do sleep 1; done")
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	pids := told(t, fifo)
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait() // it was killed
	gone(t, pids)
}

func TestOutputTail(t *testing.T) {
	most := 64
	r := &fakeRun{}
	c := shell(t, "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done", func(c *Config) { c.Output = &most })
	if err := c.run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got := string(r.result); len(got) > most || !strings.HasPrefix(got, "line ") || !strings.HasSuffix(got, "line 499\n") {
		t.Fatalf("%q", got)
	}
	none := 0
	r = &fakeRun{}
	if err := shell(t, "echo x", func(c *Config) { c.Output = &none }).run(t.Context(), r); err != nil || r.result != nil {
		t.Fatalf("%q, %v", r.result, err)
	}
	for _, sizes := range [][]int{{1}, {10}, {11}, {5, 5}, {5, 6}, {100, 3}, {3, 3, 3, 3, 3, 3, 3, 3}, {25, 25}} {
		tl, all := &tail{most: 10}, ""
		for i, n := range sizes {
			part := strings.Repeat(string(rune('a'+i)), n)
			all += part
			if n, err := io.WriteString(tl, part); err != nil || n != len(part) {
				t.Fatal(n, err)
			}
		}
		if got, want := string(tl.bytes()), all[max(0, len(all)-10):]; got != want {
			t.Errorf("%v: %q, want %q", sizes, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	tooMuch := maxOutput + 1
	err := Config{
		Env: map[string]secret.Value{"SOLOTICK_KEY": secret.New("canary"), "A=B": secret.New("canary")}, PassEnv: []string{"SOLOTICK_X"},
		Grace: -1, PermanentCodes: []int{75, 0, 256}, Output: &tooMuch,
	}.Validate()
	for _, want := range []string{"command: is empty", `env: "SOLOTICK_KEY"`, `env: "A=B"`, `pass_env: "SOLOTICK_X"`, "grace:", "permanent_codes: 75", "permanent_codes: 0", "permanent_codes: 256", "output: 65537"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("shows a value: %v", err)
	}
	if _, err := New(Config{}, Deps{}); err == nil {
		t.Error("New takes what Validate refuses")
	}
}
