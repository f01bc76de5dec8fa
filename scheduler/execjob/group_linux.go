package execjob

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// wait waits for the command to end, kills what is left of its group, and only
// then gives its process id back.
func (g *group) wait(cmd *exec.Cmd) error {
	for errors.Is(unix.Waitid(unix.P_PID, g.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		continue
	}
	g.kill()
	g.mu.Lock()
	g.gone = true
	g.mu.Unlock()
	return cmd.Wait()
}
