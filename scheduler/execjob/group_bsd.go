//go:build unix && !linux

package execjob

import (
	"os/exec"
	"syscall"
)

// Elsewhere nothing tells a child of its parent's death.
func dieWithParent(*syscall.SysProcAttr) {}

// wait waits for the command to end and kills what is left of its group. While a
// member is left the group's number is not given to another.
func (g *group) wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	g.kill()
	g.mu.Lock()
	g.gone = true
	g.mu.Unlock()
	return err
}
