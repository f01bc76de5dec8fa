//go:build linux

package main

import (
	"bufio"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is the program as a real process, in a directory of its own.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *lines
	stderr *lines
	ended  chan struct{}
	code   int
}

// start starts "solotick args..."; the test ends it if it does not end itself.
func start(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return startWith(t, dir, nil, args...)
}

// startWith is start with more environment.
func startWith(t *testing.T, dir string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command("solotick", args...), stdout: newLines(), stderr: newLines(), ended: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		err := p.cmd.Wait()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			p.code = exit.ExitCode()
		case err != nil:
			p.code = -1
		}
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		if t.Failed() {
			t.Logf("%v\nstdout:\n%s\nstderr:\n%s", p.cmd.Args, p.stdout.all(), p.stderr.all())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.code
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("%v has not ended", p.cmd.Args)
		return 0
	}
}

// lines is an output in which a test waits for lines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	news chan struct{} // closed and replaced with every write
}

func newLines() *lines { return &lines{news: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.news)
	l.news = make(chan struct{})
	return l.text.Write(p)
}

func (l *lines) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await waits for a line that holds the text and returns it.
func (l *lines) await(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		l.mu.Lock()
		all, news := l.text.String(), l.news
		l.mu.Unlock()
		for s := bufio.NewScanner(strings.NewReader(all)); s.Scan(); {
			if strings.Contains(s.Text(), text) {
				return s.Text()
			}
		}
		select {
		case <-news:
		case <-timeout:
			t.Fatalf("no line with %q in\n%s", text, all)
		}
	}
}

func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// gone waits until no process of the group is left; one that nobody has reaped yet
// counts as gone.
func gone(t *testing.T, group int) {
	t.Helper()
	for range waiting(t) {
		if !slices.ContainsFunc(living(t), func(p proc) bool { return p.group == group }) {
			return
		}
	}
	t.Errorf("the process group %d still lives", group)
}

// proc is a process that lives, as /proc shows it.
type proc struct {
	group int
	args  string
}

func living(t *testing.T) []proc {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var all []proc
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// The name stands in brackets and can hold anything; then state, parent, group.
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		group, err := strconv.Atoi(f[2])
		if err != nil || f[0] == "Z" || f[0] == "X" {
			continue
		}
		args, _ := os.ReadFile(strings.TrimSuffix(path, "stat") + "cmdline") // empty if it ended meanwhile
		all = append(all, proc{group, strings.ReplaceAll(string(args), "\x00", " ")})
	}
	return all
}

// waiting ticks until a test has waited for long enough.
func waiting(t *testing.T) func(yield func(int) bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	return func(yield func(int) bool) {
		for n := 0; time.Now().Before(deadline) && yield(n); n++ {
			<-time.After(10 * time.Millisecond)
		}
	}
}

// query runs a statement on the database of the directory; the answer is the number
// that a SELECT gives.
func query(t *testing.T, dir, statement string) int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "solotick.db")+"?_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if !strings.HasPrefix(statement, "SELECT") {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
		return 0
	}
	var n int
	if err := db.QueryRow(statement).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
