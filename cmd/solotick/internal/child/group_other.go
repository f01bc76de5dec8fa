//go:build !unix

package child

import (
	"os"
	"os/exec"
)

func group(*exec.Cmd) (restore func()) { return func() {} }

func signalGroup(cmd *exec.Cmd, sig os.Signal) { _ = cmd.Process.Signal(sig) }

func terminateGroup(cmd *exec.Cmd) { killGroup(cmd) }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func exitCode(state *os.ProcessState) int { return state.ExitCode() }

// Forwarded are the signals that are passed on to the command.
func Forwarded() []os.Signal { return []os.Signal{os.Interrupt} }
