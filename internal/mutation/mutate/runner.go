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
	"syscall"
	"time"
)

// runner builds and runs the tests of the table's rows.
type runner struct {
	dir     string // module root
	bin     string // where the test binaries go
	timeout time.Duration
	out     io.Writer

	built    map[string]string // package -> test binary
	baseline map[string]error  // package and pattern -> result with nothing broken
}

// breakAll breaks the guards of all rows in turn and returns what went unnoticed
// or could not be judged.
func (r *runner) breakAll(ctx context.Context, rows []row) error {
	r.built = map[string]string{}
	r.baseline = map[string]error{}
	var errs []error
	for _, row := range rows {
		start := time.Now()
		how, err := r.breakOne(ctx, row)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			how = "ERROR"
			errs = append(errs, fmt.Errorf("guard %q: %w", row.guard, err))
		}
		fmt.Fprintf(r.out, "%-40s %-30s %6.1fs\n", row.guard, how, time.Since(start).Seconds())
	}
	fmt.Fprintf(r.out, "%d guards broken, %d not noticed or not judged\n", len(rows), len(errs))
	return errors.Join(errs...)
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
	key := pkg + "\t" + run
	if err, ok := r.baseline[key]; ok {
		return err
	}
	err := func() error {
		if err := r.build(ctx, pkg); err != nil {
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
	}()
	r.baseline[key] = err
	return err
}

func (r *runner) build(ctx context.Context, pkg string) error {
	if _, ok := r.built[pkg]; ok {
		return nil
	}
	bin, err := filepath.Abs(filepath.Join(r.bin, strings.ReplaceAll(pkg, "/", "_")+".test"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags=mutation", "-o", bin, "./"+pkg)
	cmd.Dir = r.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not build: %w\n%s", pkg, err, tail(string(out)))
	}
	if _, err := os.Stat(bin); err != nil {
		return fmt.Errorf("%s has no tests", pkg)
	}
	r.built[pkg] = bin
	return nil
}

var errTimeout = errors.New("timed out")

// test runs the built tests with one guard broken, or none.
func (r *runner) test(ctx context.Context, pkg, run, guard string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.built[pkg], "-test.v", "-test.failfast", "-test.run="+run)
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
