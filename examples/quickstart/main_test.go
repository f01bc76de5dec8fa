package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) {
	if os.Getenv("QUICKSTART_IS_MAIN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestTwoProcessesRunEachTickOnce starts the program twice on one file.
func TestTwoProcessesRunEachTickOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "quickstart.db")
	first, second := start(t, file), start(t, file)
	ticks := map[string]int{}
	deadline := time.After(2 * time.Minute)
	for n := 0; n < 5; {
		select {
		case line := <-first.lines:
			ticks[tickOf(line)]++
			n++
		case line := <-second.lines:
			ticks[tickOf(line)]++
			n++
		case <-deadline:
			t.Fatalf("only %d ticks in 30 s", n)
		}
	}
	for _, p := range []*process{first, second} {
		for _, line := range p.interrupt(t) {
			ticks[tickOf(line)]++
		}
	}

	ran := map[string]int{}
	for _, e := range executions(t, file) {
		if e.State == store.StateSucceeded {
			ran[e.Key.Tick.Time().UTC().Format(time.RFC3339)]++
		}
	}
	if len(ran) < 5 || fmt.Sprint(ran) != fmt.Sprint(ticks) {
		t.Errorf("the store says that %v ran, the processes printed %v", ran, ticks)
	}
	for tick, n := range ticks {
		if n != 1 {
			t.Errorf("%s ran %d times", tick, n)
		}
	}
}

func tickOf(line string) string {
	tick, _, _ := strings.Cut(line, " ")
	return tick
}

func executions(t *testing.T, file string) []store.Execution {
	t.Helper()
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	st, err := gormstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := st.List(t.Context(), store.Filter{Namespace: "quickstart"})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

type process struct {
	cmd   *exec.Cmd
	lines chan string // closed at the end of its output
}

// start runs the program as a process of its own.
func start(t *testing.T, file string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0], file), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(), "QUICKSTART_IS_MAIN=1")
	p.cmd.Stderr = t.Output()
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

// interrupt does what Ctrl-C does, and returns what the process printed after it.
func (p *process) interrupt(t *testing.T) (last []string) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for line := range p.lines {
		last = append(last, line)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	return last
}
