//go:build linux

package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// account returns what makes a process run as the user, nil where this process is
// not root and must run it as it is.
func account(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 || name == "" {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// process is a running program and what it started.
type process struct {
	pid  int
	done chan struct{} // closed when it has ended and was reaped
	how  string        // why it ended; set before done is closed
}

// launch starts the program. The kernel sends it death when this process ends.
func launch(cmd *exec.Cmd, as *syscall.Credential, death syscall.Signal) (*process, error) {
	// Go sets the parent-death signal after it has changed the user; changing it
	// in the child, as setpriv and mariadbd --user do, would clear the signal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death, Credential: as}
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent of a process is a thread: when it ends, the signal is sent. Of the
		// threads of a Go process only this one is sure to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the state says it better
		p.how = cmd.ProcessState.String()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for the end, at most the given time.
func (p *process) wait(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d has not ended after %v", p.pid, limit)
	}
}

// signal sends the signal to the process alone.
func (p *process) signal(s syscall.Signal) {
	if !p.ended() {
		_ = syscall.Kill(p.pid, s) // it may end at this moment
	}
}

// freeze stops the process and all that came of it, and returns the ids, its own
// first. A process group would not do: PostgreSQL's backends leave it.
func (p *process) freeze() []int {
	if p.ended() {
		return nil
	}
	_ = syscall.Kill(p.pid, syscall.SIGSTOP)
	frozen := []int{p.pid}
	for {
		fresh := slices.DeleteFunc(descendants(p.pid), func(pid int) bool { return slices.Contains(frozen, pid) })
		if len(fresh) == 0 {
			return frozen
		}
		for _, pid := range fresh {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		frozen = append(frozen, fresh...)
	}
}

// thaw undoes freeze.
func (p *process) thaw() {
	if p.ended() {
		return
	}
	for _, pid := range append(descendants(p.pid), p.pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// kill ends the process and all that came of it with SIGKILL, as at one moment, and
// waits until all have let go of what they shared: a PostgreSQL that starts while a
// backend of the last one still dies refuses to.
func (p *process) kill() error {
	all := p.freeze()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := p.wait(stopLimit); err != nil {
		return err
	}
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(stopLimit); slices.ContainsFunc(all, lives); <-again.C {
		if time.Now().After(end) {
			return fmt.Errorf("of the processes %v some have not ended after %v", all, stopLimit)
		}
	}
	return nil
}

// lives reports whether the process is neither gone nor a zombie.
func lives(pid int) bool {
	_, ok := parentOf(pid)
	return ok
}

// descendants returns the ids of the children, their children and so on.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(child); ok {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		all = append(all, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return all
}

// parentOf reads a process's parent; false for one that is gone or a zombie.
func parentOf(pid int) (parent int, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may itself hold spaces and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" {
		return 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, err == nil
}

// poll asks until the answer is nil, the process ends or the context does. The
// error is the last answer.
func (p *process) poll(ctx context.Context, ask func(context.Context) error) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-p.done:
			return fmt.Errorf("process %d ended: %s", p.pid, p.how)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
