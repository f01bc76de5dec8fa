//go:build linux

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startLimit bounds a start; on an idle machine each takes less than a second.
	startLimit = 3 * time.Minute
	// stopLimit bounds an orderly stop.
	stopLimit = time.Minute
	// pingLimit bounds one question whether a server is ready.
	pingLimit = 5 * time.Second
)

var (
	// errMissing marks a server that is not installed.
	errMissing = errors.New("not installed: run make deps")
	// errShort says that a short run starts no servers.
	errShort = errors.New("go test -short starts no servers")
)

// skipOrFail ends the test for a server that did not start.
func skipOrFail(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, errShort) || errors.Is(err, errMissing) && os.Getenv("SOLOTICK_REQUIRE_SERVICES") != "1" {
		tb.Skip(err)
	}
	tb.Fatal(err)
}

// find returns the program of the first name or path that exists.
func find(names ...string) (string, error) {
	for _, name := range names {
		// Newer versions are the later ones of a pattern.
		if found, err := filepath.Glob(name); err == nil && len(found) > 0 {
			return found[len(found)-1], nil
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is %w", filepath.Base(names[0]), errMissing)
}

// recipe says how a server is started.
type recipe struct {
	name    string
	program []string // names or patterns of paths
	ports   int      // that it listens on
	user    string   // that it runs as, where the test is root
	// death, stop: the signals that it ends by when the test process dies, and in
	// good order; SIGKILL and SIGTERM where they are 0.
	death, stop syscall.Signal
	// prepare fills the server's folder and returns the arguments.
	prepare func(s *Server) ([]string, error)
	ready   func(ctx context.Context, s *Server) error
	clear   func(s *Server) // after the end, what is left outside the folder
}

// Server is a running server of one test. What goes wrong in its methods fails
// the test without ending it, so that goroutines may call them, one at a time.
type Server struct {
	recipe recipe
	tb     testing.TB // nil for a server that a package shares
	folder folder
	ports  []int
	kept   []*os.File // reservations
	binary string
	args   []string
	as     *syscall.Credential

	mu      sync.Mutex
	process *process
}

// newServer prepares a server without starting it. The caller closes it.
func newServer(r recipe) (*Server, error) {
	if testing.Testing() && testing.Short() {
		return nil, errShort
	}
	s := &Server{recipe: r}
	fail := func(err error) (*Server, error) {
		return nil, errors.Join(fmt.Errorf("testenv: prepare %s: %w", r.name, err), s.close())
	}
	var err error
	if s.binary, err = find(r.program...); err != nil {
		return fail(err)
	}
	if s.as, err = account(r.user); err != nil {
		return fail(err)
	}
	for range r.ports {
		port, reservation, err := reservePort()
		if err != nil {
			return fail(err)
		}
		s.ports = append(s.ports, port)
		s.kept = append(s.kept, reservation)
	}
	if s.folder, err = newFolder(r.name); err != nil {
		return fail(err)
	}
	return s, nil
}

// open starts servers that need each other, all before it waits for any, and ends
// them with the test.
func open(tb testing.TB, servers ...*Server) {
	tb.Helper()
	for _, s := range servers {
		s.tb = tb
	}
	tb.Cleanup(func() {
		for _, s := range servers {
			if tb.Failed() {
				tb.Logf("the log of %s at %s ends with:\n%s", s.recipe.name, s.Addr(), s.logTail())
			}
			if err := s.close(); err != nil {
				tb.Error(err)
			}
		}
	})
	if err := start(servers...); err != nil {
		skipOrFail(tb, err)
	}
}

// start starts the servers and waits for all.
func start(servers ...*Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for _, s := range servers {
		if s.args == nil {
			args, err := s.recipe.prepare(s)
			if err != nil {
				return fmt.Errorf("testenv: prepare %s: %w", s.recipe.name, err)
			}
			s.args = args
		}
		if err := s.launch(); err != nil {
			return err
		}
	}
	for _, s := range servers {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// create makes a server of its own for a test.
func create(tb testing.TB, r recipe) *Server {
	tb.Helper()
	s, err := newServer(r)
	if err != nil {
		skipOrFail(tb, err)
	}
	open(tb, s)
	return s
}

// createAll makes a server of each recipe.
func createAll(tb testing.TB, n int, r recipe) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		s, err := newServer(r)
		if err != nil {
			for _, made := range servers[:i] {
				err = errors.Join(err, made.close())
			}
			skipOrFail(tb, err)
		}
		servers[i] = s
	}
	return servers
}

// launch starts the process.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.folder.join("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("testenv: start %s: %w", s.recipe.name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	cmd := exec.Command(s.binary, s.args...)
	cmd.Dir = s.folder.path
	cmd.Stdout, cmd.Stderr = log, log
	death := s.recipe.death
	if death == 0 {
		death = syscall.SIGKILL
	}
	p, err := launch(cmd, s.as, death)
	if err != nil {
		return fmt.Errorf("testenv: start %s: %w", s.recipe.name, err)
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	return nil
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context) error {
	err := s.current().poll(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pingLimit)
		defer cancel()
		return s.recipe.ready(ctx, s)
	})
	if err != nil {
		return fmt.Errorf("testenv: %s at %s is not ready: %w\n%s", s.recipe.name, s.Addr(), err, s.logTail())
	}
	return nil
}

func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Addr returns the host:port that clients connect to. It stays the same.
func (s *Server) Addr() string { return address(s.ports[0]) }

// Pid returns the id of the process that runs, or ran last.
func (s *Server) Pid() int { return s.current().pid }

// Kill ends the server with SIGKILL, and with it all its processes.
func (s *Server) Kill() {
	s.tb.Helper()
	if err := s.current().kill(); err != nil {
		s.tb.Errorf("testenv: kill %s: %v", s.recipe.name, err)
	}
}

// Stop ends the server in good order, also when it is paused.
func (s *Server) Stop() {
	s.tb.Helper()
	if err := s.stop(); err != nil {
		s.tb.Errorf("testenv: stop %s: %v", s.recipe.name, err)
	}
}

func (s *Server) stop() error {
	p := s.current()
	p.thaw()
	end := s.recipe.stop
	if end == 0 {
		end = syscall.SIGTERM
	}
	p.signal(end)
	if err := p.wait(stopLimit); err != nil {
		return errors.Join(err, p.kill())
	}
	return nil
}

// Restart starts the server again with its port and files, and waits until it is
// ready; one that runs is stopped before.
func (s *Server) Restart() {
	s.tb.Helper()
	if err := s.stop(); err != nil {
		s.tb.Errorf("testenv: stop %s: %v", s.recipe.name, err)
		return
	}
	if err := start(s); err != nil {
		s.tb.Error(err)
	}
}

// AwaitReady waits until the server answers its protocol, as its start does. A
// member of a cluster answers when the cluster has a leader, so this waits for
// the one that follows a leader that was killed.
func (s *Server) AwaitReady() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := s.await(ctx); err != nil {
		s.tb.Error(err)
	}
}

// Pause freezes the server's processes with SIGSTOP: its connections stay open and
// nothing answers.
func (s *Server) Pause() {
	s.tb.Helper()
	if len(s.current().freeze()) == 0 {
		s.tb.Errorf("testenv: pause %s: it does not run", s.recipe.name)
	}
}

// Resume undoes Pause.
func (s *Server) Resume() { s.current().thaw() }

// close ends the server, whose data nobody needs any more, and what it left.
func (s *Server) close() error {
	var errs []error
	if p := s.current(); p != nil {
		if death := s.recipe.death; death != 0 {
			p.thaw()
			p.signal(death)
			_ = p.wait(stopLimit) // or else it is killed
		}
		errs = append(errs, p.kill())
	}
	if s.recipe.clear != nil && s.folder.path != "" {
		s.recipe.clear(s)
	}
	for _, reservation := range s.kept {
		errs = append(errs, reservation.Close())
	}
	if s.folder.path != "" {
		errs = append(errs, s.folder.remove())
	}
	return errors.Join(errs...)
}

// logTail returns the last lines that the server printed.
func (s *Server) logTail() string {
	const most = 40
	text, err := os.ReadFile(s.folder.join("log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
