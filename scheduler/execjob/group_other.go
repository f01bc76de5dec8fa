//go:build !unix

package execjob

import (
	"os"
	"os/exec"
)

// group is the command alone where there are no process groups.
type group struct{ pid int }

func ownGroup(*exec.Cmd) {}

func (g *group) terminate() { g.kill() }

func (g *group) kill() {
	if p, err := os.FindProcess(g.pid); err == nil {
		_ = p.Kill() // it has ended by itself, or it ends now
	}
}

func (g *group) wait(cmd *exec.Cmd) error { return cmd.Wait() }

func signalName(*os.ProcessState) string { return "" }
