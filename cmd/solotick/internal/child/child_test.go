//go:build unix

package child_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/cmd/solotick/internal/child"
)

// right lasts until an instant and can be lost before.
type right struct {
	until time.Time
	lost  chan struct{}
}

func lasting(d time.Duration) *right {
	return &right{until: time.Now().Add(d), lost: make(chan struct{})}
}

func (r *right) Lost() <-chan struct{}    { return r.lost }
func (r *right) Remaining() time.Duration { return time.Until(r.until) }

// pipe is an output in which a test waits for lines instead of sleeping.
type pipe struct {
	r, w *os.File
}

func newPipe(t *testing.T) pipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return pipe{r, w}
}

func (p pipe) line(t *testing.T) string {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := p.r.Read(b); err != nil {
			t.Fatalf("after %q: %v", line, err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

func shell(script string) child.Command {
	return child.Command{Argv: []string{"sh", "-c", script}, Grace: 200 * time.Millisecond}
}

func TestExitCodes(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -KILL $$": 128 + 9} {
		got, err := child.Run(shell(script), lasting(time.Minute), nil)
		if err != nil || got.Code != want || got.Lost {
			t.Errorf("%s: %+v, %v, want code %d", script, got, err, want)
		}
	}
}

func TestCommandThatCannotStart(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for argv, want := range map[string]int{"no-such-command-here": 127, plain: 126} {
		_, err := child.Run(child.Command{Argv: []string{argv}}, lasting(time.Minute), nil)
		var start *child.StartError
		if !errors.As(err, &start) || start.Code != want || !strings.Contains(err.Error(), argv) {
			t.Errorf("%s: %v, want code %d", argv, err, want)
		}
	}
}

func TestEnvironmentAndOutput(t *testing.T) {
	var out bytes.Buffer
	c := shell(`read line; echo "$line $FENCE"`)
	c.Env, c.Stdin, c.Stdout = []string{"FENCE=7"}, strings.NewReader("hello\n"), &out
	if _, err := child.Run(c, lasting(time.Minute), nil); err != nil || out.String() != "hello 7\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestSignalIsPassedToTheWholeGroup(t *testing.T) {
	p, signals := newPipe(t), make(chan os.Signal, 1)
	c := shell(`trap 'wait; exit 5' USR1; (trap 'echo grandchild; exit' USR1; echo ready; while :; do sleep 0.02; done) & wait`)
	c.Stdout = p.w
	done := make(chan child.Result, 1)
	go func() {
		got, err := child.Run(c, lasting(time.Minute), signals)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	p.line(t)
	signals <- syscall.SIGUSR1
	if got := p.line(t); got != "grandchild" {
		t.Errorf("the grandchild said %q", got)
	}
	if got := <-done; got.Code != 5 || got.Signaled != syscall.SIGUSR1 || got.Lost {
		t.Errorf("%+v", got)
	}
}

func TestLossEndsTheCommandPolitely(t *testing.T) {
	p, r := newPipe(t), lasting(time.Minute)
	c := shell(`trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.02; done`)
	c.Stdout = p.w
	go func() { p.line(t); close(r.lost) }()
	got, err := child.Run(c, r, nil)
	if err != nil || !got.Lost || got.Code != 9 {
		t.Errorf("%+v, %v", got, err)
	}
	if got := p.line(t); got != "term" {
		t.Errorf("the command said %q", got)
	}
}

func TestStubbornGroupIsKilledBeforeTheRightEnds(t *testing.T) {
	p, r := newPipe(t), lasting(3*time.Second)
	c := shell(`trap '' TERM; sleep 600 & echo $!; while :; do sleep 0.02; done`)
	c.Grace = 2 * time.Second
	c.Stdout = p.w
	got, err := child.Run(c, r, nil)
	if err != nil || !got.Lost || got.Code != 128+9 {
		t.Errorf("%+v, %v", got, err)
	}
	if late := -r.Remaining(); late > 0 {
		t.Errorf("the command ended %v after its right", late)
	}
	pid, err := strconv.Atoi(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
}

// waitGone waits until the process is dead: gone, or a zombie that its new parent
// has not reaped yet.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still lives: %s", pid, stat)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestRightThatIsRenewedLetsTheCommandRun(t *testing.T) {
	r := &renewed{}
	got, err := child.Run(shell("sleep 1"), r, nil)
	if err != nil || got.Lost || got.Code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// renewed always has a little more than the grace left.
type renewed struct{}

func (*renewed) Lost() <-chan struct{}    { return nil }
func (*renewed) Remaining() time.Duration { return 250 * time.Millisecond }

func TestTail(t *testing.T) {
	tail := child.NewTail(5)
	for _, s := range []string{"ab", "cdef", "g\xff"} {
		if n, err := tail.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if text, cut := tail.Text(); text != "defg\uFFFD" || !cut {
		t.Errorf("%q, %v", text, cut)
	}
}
