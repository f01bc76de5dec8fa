package idempotent_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store/gormstore"
)

// The test binary plays the other process.
const (
	stageEnv = "IDEMPOTENT_TEST_STAGE"
	kindEnv  = "IDEMPOTENT_TEST_KIND"
	dsnEnv   = "IDEMPOTENT_TEST_DSN"

	childLease = time.Second
)

// callOnce is a process that makes a call of Once, tells when it has come to the
// stage, and goes on when it is told to.
func callOnce(stage string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	db, closer, err := openDB(os.Getenv(kindEnv), os.Getenv(dsnEnv))
	if err != nil {
		return err
	}
	defer func() { _ = closer() }()
	s, err := gormstore.New(db)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	at := func(now string) {
		if now == stage {
			fmt.Println(now)
			_, _ = in.ReadString('\n')
		}
	}
	f, err := idempotent.FingerprintOf(1)
	if err != nil {
		return err
	}
	r, err := idempotent.Once(ctx, idempotent.New(s), order("a"), f, func(tx *gorm.DB) (string, error) {
		err := tx.Create(&effect{Note: "a"}).Error
		at("written")
		return "of the other process", err
	}, idempotent.Lease(childLease), idempotent.Before(func(context.Context, *idempotent.Attempt) error {
		at("begun")
		return nil
	}))
	if err == nil {
		at("committed")
	}
	fmt.Println("ended:", r.Value, err)
	return nil
}

// caller is such a process.
type caller struct {
	w   *world
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (w *world) caller(stage string) *caller {
	w.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stageEnv+"="+stage, kindEnv+"="+w.kind, dsnEnv+"="+w.dsn)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &caller{w, cmd, in, bufio.NewReader(out)}
	p.says(stage)
	return p
}

func (p *caller) says(want string) {
	p.w.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		p.w.Fatalf("the other process says %q, %v; want %q", line, err, want)
	}
}

func (p *caller) signal(s os.Signal) {
	p.w.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.w.Fatal(err)
	}
}

// answered makes the call that the other process was making, and checks that one
// attempt had an effect.
func (w *world) answered(attempt int, value string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	var calls atomic.Int64
	r, err := idempotent.Once(ctx, w.guard, order("a"), printOf(w, 1), func(tx *gorm.DB) (string, error) {
		calls.Add(1)
		return "of the test", tx.Create(&effect{Note: "a"}).Error
	})
	if err != nil || r.Value != value || r.Attempt != attempt || r.Replayed != (calls.Load() == 0) {
		w.Errorf("the call after it: %+v, %v after %d calls of fn; want %q of attempt %d", r, err, calls.Load(), value, attempt)
	}
	if n := w.effects("a"); n != 1 {
		w.Errorf("%d effects, want 1", n)
	}
}

// A process is killed with its call at each stage. What it had not committed is made by
// the next call, what it had is that call's answer.
func TestProcessKilledInACall(t *testing.T) {
	everywhere(t, func(w *world) {
		for _, c := range []struct {
			stage, value string
			attempt      int
		}{{"begun", "of the test", 2}, {"written", "of the test", 2}, {"committed", "of the other process", 1}} {
			w.caller(c.stage).signal(syscall.SIGKILL)
			w.answered(c.attempt, c.value)
			if err := w.db.Exec("DELETE FROM solotick_executions").Error; err != nil {
				w.Fatal(err)
			}
			if err := w.db.Exec("DELETE FROM effects").Error; err != nil {
				w.Fatal(err)
			}
		}
	})
}

// A process is stopped among its writes for longer than its lease. When it goes on it
// commits nothing, since the call was made by another. (On SQLite its transaction
// would keep the other out.)
func TestProcessFrozenInACall(t *testing.T) {
	onServers(t, func(w *world) {
		p := w.caller("written")
		p.signal(syscall.SIGSTOP)
		w.answered(2, "of the test")
		p.signal(syscall.SIGCONT)
		if _, err := io.WriteString(p.in, "\n"); err != nil {
			w.Fatal(err)
		}
		line, err := p.out.ReadString('\n')
		if err != nil || strings.HasSuffix(line, "<nil>\n") {
			w.Errorf("the call that was stopped: %q, %v", line, err)
		}
		w.answered(2, "of the test")
	})
}
