//go:build unix

package execjob

import (
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/solotick/solotick/internal/mutation"
)

// group is the process group of a command. Its number is the command's process
// id, which stays taken until the command has been waited for; signals are sent
// before that only, so that they cannot reach a stranger.
type group struct {
	mu   sync.Mutex
	pid  int
	gone bool
}

func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

func (g *group) terminate() { g.signal(syscall.SIGTERM) }
func (g *group) kill()      { g.signal(syscall.SIGKILL) }

// A signal that finds nobody has nothing left to do.
func (g *group) signal(s syscall.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	target := -g.pid
	if mutation.On("exec-group") {
		target = g.pid
	}
	if !g.gone {
		_ = syscall.Kill(target, s)
	}
}

func signalName(state *os.ProcessState) string {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return ""
}
