package child

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Right is what the command runs under. Its methods may be called from any
// goroutine.
type Right interface {
	// Lost is closed when the right is known to be gone.
	Lost() <-chan struct{}
	// Remaining is how long the right lasts if it is not renewed again.
	Remaining() time.Duration
}

// Command is what to run.
type Command struct {
	Argv   []string // name, looked up in PATH, and arguments; never empty
	Env    []string // added to this process's environment
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Grace is how long before the end of the right the command gets SIGTERM. SIGKILL
	// follows when a quarter of it is left, so that the command is dead before the end
	// also where this process is late. It must be shorter than what is left of the
	// right when renewals are on time.
	Grace time.Duration
}

// Result is how the command ended.
type Result struct {
	Code     int       // exit code as a shell shows it: 128 + n after signal n
	Lost     bool      // the right was lost before the command ended
	Signaled os.Signal // the first signal that was passed on; nil for none
}

// StartError says that the command could not be started: not found (Code 127) or
// not executable (Code 126), as shells number these.
type StartError struct {
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// outputDelay bounds the wait for output that the command's descendants hold
// open after it has ended.
const outputDelay = 2 * time.Second

// Run runs the command until it ends and passes on what arrives on signals. The
// error is a *StartError, or says that the wait for the command failed.
func Run(c Command, right Right, signals <-chan os.Signal) (Result, error) {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.WaitDelay = outputDelay
	restore := group(cmd)
	defer restore()

	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The death signal belongs to the thread that started the command, so that
		// thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return Result{}, startError(c.Argv[0], err)
	}
	return watch(c, cmd, right, signals, ended)
}

func watch(c Command, cmd *exec.Cmd, right Right, signals <-chan os.Signal, ended <-chan error) (Result, error) {
	var result Result
	timer := time.NewTimer(right.Remaining() - c.Grace)
	defer timer.Stop()
	for !result.Lost {
		select {
		case err := <-ended:
			return finish(result, cmd, err)
		case sig := <-signals:
			if result.Signaled == nil {
				result.Signaled = sig
			}
			signalGroup(cmd, sig)
		case <-right.Lost():
			result.Lost = true
		case <-timer.C:
			left := right.Remaining() - c.Grace
			if result.Lost = left <= 0; !result.Lost {
				timer.Reset(left)
			}
		}
	}
	terminateGroup(cmd)
	// A right that is gone has no time left, whatever its clock says.
	timer.Reset(min(right.Remaining(), c.Grace) - c.Grace/4)
	var err error
	select {
	case err = <-ended:
		killGroup(cmd) // whatever the command left behind
	case <-timer.C:
		killGroup(cmd)
		err = <-ended
	}
	return finish(result, cmd, err)
}

func finish(result Result, cmd *exec.Cmd, err error) (Result, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return result, fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
	result.Code = exitCode(cmd.ProcessState)
	return result, nil
}

func startError(name string, err error) error {
	code := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = 127
	}
	return &StartError{Code: code, Err: fmt.Errorf("cannot start %q: %w", name, err)}
}
