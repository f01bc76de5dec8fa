package execjob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// Deps are the things passed in code.
type Deps struct {
	// DrainTimeout is scheduler.Config.DrainTimeout, which bounds the grace when the
	// process stops. Default 10s.
	DrainTimeout time.Duration
	// Logger gets a line per command that was stopped. Default slog.Default().
	Logger *slog.Logger
}

// run is what the command is told of a *scheduler.Run.
type run interface {
	Job() string
	Tick() time.Time
	Attempt() int
	Fence() int64
	Lease() time.Duration
	Mode() store.Mode
	Args() []byte
	Ref() store.Ref
	EffectKey(step string) string
	SetResult(b []byte)
}

var _ run = (*scheduler.Run)(nil)

// ExitError says how the command ended.
type ExitError struct {
	Code   int    // exit code; -1 where a signal ended it
	Signal string // name of the signal, or empty
	Line   string // last line of the output that was kept, at most 200 bytes; or empty
}

func (e *ExitError) Error() string {
	text := "execjob: the command ended with exit code " + strconv.Itoa(e.Code)
	if e.Signal != "" {
		text = "execjob: the command was ended by signal " + e.Signal
	}
	if e.Line != "" {
		text += ": " + e.Line
	}
	return text
}

// ErrorCode is exit:N or signal:NAME, which the scheduler records.
func (e *ExitError) ErrorCode() string {
	if e.Signal != "" {
		return "signal:" + e.Signal
	}
	return "exit:" + strconv.Itoa(e.Code)
}

// New makes the handler. The error is that of Config.Validate.
func New(cfg Config, deps Deps) (scheduler.Handler, error) {
	c, err := newCommand(cfg, deps)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, run *scheduler.Run) error { return c.run(ctx, run) }, nil
}

type command struct {
	cfg   Config
	drain time.Duration
	log   *slog.Logger
}

func newCommand(cfg Config, deps Deps) (*command, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &command{cfg: cfg.withDefaults(), drain: deps.DrainTimeout, log: deps.Logger}
	if c.drain <= 0 {
		c.drain = 10 * time.Second
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c, nil
}

func (c *command) run(ctx context.Context, r run) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out := &tail{most: *c.cfg.Output}
	err := c.execute(ctx, r, out)
	if b := out.bytes(); len(b) > 0 {
		r.SetResult(b)
	}
	if err == nil {
		return nil
	}
	exit, ok := errors.AsType[*ExitError](err)
	if ok {
		exit.Line = out.lastLine()
	}
	if ok && ctx.Err() == nil && slices.Contains(c.cfg.PermanentCodes, exit.Code) {
		return scheduler.Permanent(err)
	}
	return err
}

// execute returns after the whole group has gone.
func (c *command) execute(ctx context.Context, r run, out *tail) error {
	//nolint:gosec // running the configured command is what this job is for
	cmd := exec.Command(c.cfg.Command[0], c.cfg.Command[1:]...)
	cmd.Dir = c.cfg.Dir
	cmd.Env = c.environment(r)
	cmd.Stdin = bytes.NewReader(r.Args())
	cmd.Stdout, cmd.Stderr = out, out
	// The pipes can be open in a process that left the group; it is not waited for.
	cmd.WaitDelay = 100 * time.Millisecond
	ownGroup(cmd)

	started := make(chan *group, 1)
	ended := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the thread that started the
		// command ends, so that thread must stay until the command has gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			ended <- fmt.Errorf("execjob: the command cannot be started: %w", err)
			return
		}
		g := &group{pid: cmd.Process.Pid}
		started <- g
		ended <- exitError(g.wait(cmd))
	}()
	select {
	case err := <-ended:
		return err
	case g := <-started:
		return c.await(ctx, r, g, ended)
	}
}

func (c *command) await(ctx context.Context, r run, g *group, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	grace := c.grace(cause, r.Lease())
	log := c.log.With("job", r.Job(), "pid", g.pid, "cause", cause, "grace", grace)
	log.InfoContext(ctx, "command is being stopped")
	if grace < c.cfg.Grace {
		log.WarnContext(ctx, "grace of the command is cut: the scheduler waits no longer", "configured", c.cfg.Grace)
	}
	g.terminate()
	kill := time.NewTimer(grace)
	defer kill.Stop()
	select {
	case err := <-ended:
		return stopped(cause, err)
	case <-kill.C:
	}
	g.kill()
	return stopped(cause, <-ended)
}

// stopped is the error of a command that was sent SIGTERM. Also where it ended with
// exit code 0, since many programs do so without having finished.
func stopped(cause, err error) error {
	if err == nil {
		return fmt.Errorf("execjob: the command was stopped: %w", cause)
	}
	// The record's error code is to name the cause, not the signal that we sent.
	return fmt.Errorf("execjob: the command was stopped: %w (%s)", cause, err.Error())
}

// grace ends before the scheduler leaves the handler behind, since another command of
// the job may begin then: a lease after the end of the context, and after a drain a
// quarter of the drain timeout, at most 5s. Where the lease is what ended, its holder
// has a fifth of it left before another process can take over.
func (c *command) grace(cause error, lease time.Duration) time.Duration {
	most := mostGrace(lease)
	switch {
	case errors.Is(cause, scheduler.ErrLeaseLost), errors.Is(cause, scheduler.ErrGateLost):
		most = lease / 10
	case errors.Is(cause, scheduler.ErrDraining):
		most = min(most, min(c.drain/4, 5*time.Second)*4/5)
	}
	return min(c.cfg.Grace, most)
}

// mostGrace leaves a fifth of the lease for the kill itself.
func mostGrace(lease time.Duration) time.Duration { return lease / 5 * 4 }

func exitError(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &ExitError{Code: exit.ExitCode(), Signal: signalName(exit.ProcessState)}
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it ended well, and something outside the group still has its output open
	}
	return err
}

func (c *command) environment(r run) []string {
	var env []string
	for _, name := range append([]string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}, c.cfg.PassEnv...) {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	for name, value := range c.cfg.Env {
		env = append(env, name+"="+value.Reveal())
	}
	tick := ""
	if t := r.Tick(); !t.IsZero() {
		tick = t.UTC().Format(time.RFC3339Nano)
	}
	return append(env,
		prefix+"KEY="+r.EffectKey("exec"),
		prefix+"JOB="+r.Job(),
		prefix+"TICK="+tick,
		prefix+"ATTEMPT="+strconv.Itoa(r.Attempt()),
		prefix+"FENCE="+strconv.FormatInt(r.Fence(), 10),
		prefix+"MODE="+string(r.Mode()),
		prefix+"NAMESPACE="+r.Ref().Namespace,
	)
}
