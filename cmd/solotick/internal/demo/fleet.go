package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

// replica is a process that runs the demo's jobs.
type replica struct {
	number int
	pid    int
	cmd    *exec.Cmd
	stdin  io.Closer
	ready  atomic.Bool
	killed bool
	ended  chan struct{} // closed when the process is reaped
	err    error         // how it ended; read after ended
}

func (r *replica) gone() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// fleet starts, kills and ends replicas. It belongs to one goroutine.
type fleet struct {
	exe  string   // program to start
	argv []string // its name and the arguments before the fleet's own
	dir  string
	skew time.Duration
	all  []*replica // by number - 1
}

// newFleet starts n replicas with the program that is running.
func newFleet(dir string, n int, skew time.Duration) (*fleet, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: find this program: %w", err)
	}
	f := &fleet{exe: exe, argv: []string{os.Args[0], "demo-worker"}, dir: dir, skew: skew, all: make([]*replica, n)}
	for number := 1; number <= n; number++ {
		if err := f.start(number); err != nil {
			f.stop()
			return nil, err
		}
	}
	return f, nil
}

// offset is the replica's clock error: behind, right and ahead in turn.
func (f *fleet) offset(number int) time.Duration { return time.Duration((number-1)%3-1) * f.skew }

// start starts a process in the replica's place.
func (f *fleet) start(number int) error {
	cmd := exec.Command(f.exe)
	cmd.Args = append(append([]string{}, f.argv...), "--dir", f.dir, "--replica", strconv.Itoa(number), "--skew", f.offset(number).String())
	ownGroup(cmd)
	log, err := os.OpenFile(f.logFile(number), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("demo: start replica %d: %w", number, err)
	}
	r := &replica{number: number, pid: cmd.Process.Pid, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	f.all[number-1] = r
	go func() {
		defer close(r.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			r.ready.Store(true) // it says nothing else
		}
		r.err = cmd.Wait()
	}()
	return nil
}

func (f *fleet) logFile(number int) string {
	return filepath.Join(f.dir, fmt.Sprintf("replica-%d.log", number))
}

// kill ends the replica's process with SIGKILL and waits for it.
func (f *fleet) kill(r *replica) {
	r.killed = true
	killProcess(r.cmd)
	<-r.ended
}

// byPid finds the living replica.
func (f *fleet) byPid(pid int) *replica {
	for _, r := range f.all {
		if r != nil && r.pid == pid && !r.gone() {
			return r
		}
	}
	return nil
}

// stopTimeout is how long the replicas have to end by themselves.
const stopTimeout = 4 * time.Second

// stop ends all processes: politely, and after a while not.
func (f *fleet) stop() {
	for _, r := range f.all {
		if r != nil {
			_ = r.stdin.Close() // closed already where the process has ended
		}
	}
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	late := false
	for _, r := range f.all {
		if r == nil {
			continue
		}
		if !late {
			select {
			case <-r.ended:
				continue
			case <-deadline.C:
				late = true
			}
		}
		f.kill(r)
	}
}

// fallen restarts the replicas that ended although nobody killed them, and tells
// which. Too many such ends are an error.
func (f *fleet) fallen(deaths *int) (restarted []*replica, err error) {
	for i, r := range f.all {
		if !r.gone() || r.killed {
			continue
		}
		if *deaths++; *deaths > 5*len(f.all) {
			return restarted, fmt.Errorf("demo: replicas keep ending by themselves, the last one with %w; see %s", cause(r.err), f.logFile(i+1))
		}
		restarted = append(restarted, r)
		if err := f.start(i + 1); err != nil {
			return restarted, err
		}
	}
	return restarted, nil
}

// cause is how a process ended, also where that was with success.
func cause(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}
