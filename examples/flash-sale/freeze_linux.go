package main

import (
	"os"
	"os/exec"
	"syscall"
)

// freeze stops a process where it stands, as a paused machine does.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// dieWithUs lets no frozen worker outlive this process.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
