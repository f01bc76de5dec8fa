package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// runner builds and runs the tests of the table's rows.
type runner struct {
	dir     string // module root
	bin     string // where the test binaries go
	timeout time.Duration
	at      int // a time
	out     io.Writer

	building sync.Mutex // the compiler takes all processors by itself
	mu       sync.Mutex
	built    map[string]func() error // by package
	baseline map[string]func() error // by package and pattern: with nothing broken
}

// breakAll breaks the guards of all rows, some at a time, each in processes of its
// own, and returns what went unnoticed or could not be judged.
func (r *runner) breakAll(ctx context.Context, rows []row) error {
	r.built, r.baseline = map[string]func() error{}, map[string]func() error{}
	errs := make([]error, len(rows))
	next := make(chan int)
	var workers sync.WaitGroup
	for range max(r.at, 1) {
		workers.Go(func() {
			for i := range next {
				errs[i] = r.judge(ctx, rows[i])
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	bad := 0
	for _, err := range errs {
		if err != nil {
			bad++
		}
	}
	fmt.Fprintf(r.out, "%d guards broken, %d not noticed or not judged\n", len(rows), bad)
	return errors.Join(errs...)
}

// judge breaks one guard and prints what became of it.
func (r *runner) judge(ctx context.Context, row row) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	start := time.Now()
	how, err := r.breakOne(ctx, row)
	if err != nil {
		how, err = "ERROR", fmt.Errorf("guard %q: %w", row.guard, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%-40s %-30s %6.1fs\n", row.guard, how, time.Since(start).Seconds())
	return err
}

// once calls f for the first who asks for the key; the others wait for its result.
func (r *runner) once(results map[string]func() error, key string, f func() error) error {
	r.mu.Lock()
	result, ok := results[key]
	if !ok {
		result = sync.OnceValue(f)
		results[key] = result
	}
	r.mu.Unlock()
	return result()
}

// breakOne says which package's tests noticed.
func (r *runner) breakOne(ctx context.Context, row row) (string, error) {
	// All packages are built and checked first, so that no row is called good
	// while one of its packages has long ceased to say anything.
	for _, pkg := range row.packages {
		if err := r.passes(ctx, pkg, row.run); err != nil {
			return "", err
		}
	}
	for _, pkg := range row.packages {
		out, err := r.test(ctx, pkg, row.run, row.guard)
		switch {
		case err == nil:
		case errors.Is(err, errTimeout):
			return "noticed in " + pkg + " (hangs)", nil
		case strings.Contains(out, "--- FAIL") || strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: "):
			return "noticed in " + pkg, nil
		default:
			// Such as a leak found by goleak, or a TestMain that gave up: that
			// it was the guard's doing is not shown.
			return "", fmt.Errorf("%s ended without a failed test: %w\n%s", pkg, err, tail(out))
		}
	}
	return "", fmt.Errorf("NOT NOTICED: all tests of %s that match %q pass without it", strings.Join(row.packages, ", "), row.run)
}

// passes reports whether the tests pass, and are any, with nothing broken.
func (r *runner) passes(ctx context.Context, pkg, run string) error {
	return r.once(r.baseline, pkg+"\t"+run, func() error {
		if err := r.once(r.built, pkg, func() error { return r.build(ctx, pkg) }); err != nil {
			return err
		}
		out, err := r.test(ctx, pkg, run, "")
		if err != nil {
			return fmt.Errorf("%s fails with nothing broken: %w\n%s", pkg, err, tail(out))
		}
		if !strings.Contains(out, "--- PASS") {
			return fmt.Errorf("%s has no test that matches %q and runs", pkg, run)
		}
		return nil
	})
}

// binary is where the tests of the package go.
func (r *runner) binary(pkg string) string {
	return filepath.Join(r.bin, strings.ReplaceAll(pkg, "/", "_")+".test")
}

func (r *runner) build(ctx context.Context, pkg string) error {
	r.building.Lock()
	defer r.building.Unlock()
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags=mutation", "-o", r.binary(pkg), "./"+pkg)
	cmd.Dir = r.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not build: %w\n%s", pkg, err, tail(string(out)))
	}
	if _, err := os.Stat(r.binary(pkg)); err != nil {
		return fmt.Errorf("%s has no tests", pkg)
	}
	return nil
}

var errTimeout = errors.New("timed out")

// test runs the built tests with one guard broken, or none.
func (r *runner) test(ctx context.Context, pkg, run, guard string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary(pkg), "-test.v", "-test.failfast", "-test.run="+run)
	cmd.Dir = filepath.Join(r.dir, pkg)
	// Tests that build the program themselves must break the same guard in it.
	cmd.Env = append(os.Environ(),
		"SOLOTICK_MUTATION="+guard,
		"GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -tags=mutation"))
	// A group of its own, so that programs started by a test end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return string(out), errTimeout
	}
	return string(out), err
}

func tail(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
