//go:build unix

package demo

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the keyboard's signals from the replica: its end is for the
// demo to decide.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killProcess(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // gone already is fine
