//go:build unix

package child

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// group gives the command a process group of its own. Where standard input is
// the terminal and this process is in the foreground, the command's group takes
// its place, so that it can read and gets the keyboard's signals; restore takes
// the terminal back.
func group(cmd *exec.Cmd) (restore func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	stdin, ok := cmd.Stdin.(*os.File)
	if !ok {
		return func() {}
	}
	tty := int(stdin.Fd())
	front, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() {
		return func() {}
	}
	cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, tty
	return func() {
		// A process in the background is stopped for this call unless it ignores the signal.
		signal.Ignore(syscall.SIGTTOU)
		defer signal.Reset(syscall.SIGTTOU)
		_ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, front) // the terminal may be gone
	}
}

// signalGroup signals what is left of the group; an empty group is no error. The
// number stays taken while the group has a process, also after its leader was
// reaped, so it is not another group's in the moment between.
func signalGroup(cmd *exec.Cmd, sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		_ = syscall.Kill(-cmd.Process.Pid, s)
	}
}

func terminateGroup(cmd *exec.Cmd) { signalGroup(cmd, syscall.SIGTERM) }

func killGroup(cmd *exec.Cmd) { signalGroup(cmd, syscall.SIGKILL) }

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// Forwarded are the signals that are passed on to the command.
func Forwarded() []os.Signal {
	return []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	}
}
