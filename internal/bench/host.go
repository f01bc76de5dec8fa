package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing" //nolint:depguard // the servers are those of the tests
)

// Host makes of a program what package testenv asks of a test. A method of testing.TB
// that it does not have would panic; testenv uses none.
type Host struct {
	testing.TB
	log      io.Writer
	cleanups []func()
	failed   bool
}

// NewHost tells what the servers say to log.
func NewHost(log io.Writer) *Host { return &Host{log: log} }

// fatal is what ends the program from within testenv.
type fatal struct{ error }

// End runs the clean-ups, and turns a fatal panic into an error. Defer it.
func (h *Host) End(err *error) {
	if p := recover(); p != nil {
		f, ok := p.(fatal)
		if !ok {
			panic(p)
		}
		*err = errors.Join(*err, f.error)
		h.failed = true
	}
	for len(h.cleanups) > 0 {
		last := len(h.cleanups) - 1
		clean := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		clean()
	}
}

// Helper implements testing.TB.
func (h *Host) Helper() {}

// Failed implements testing.TB.
func (h *Host) Failed() bool { return h.failed }

// Cleanup implements testing.TB.
func (h *Host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

// Logf implements testing.TB.
func (h *Host) Logf(f string, a ...any) { fmt.Fprintf(h.log, f+"\n", a...) }

// Error implements testing.TB.
func (h *Host) Error(a ...any) { h.failed = true; fmt.Fprintln(h.log, a...) }

// Errorf implements testing.TB.
func (h *Host) Errorf(f string, a ...any) { h.failed = true; h.Logf(f, a...) }

// Fatal implements testing.TB.
func (h *Host) Fatal(a ...any) { panic(fatal{errors.New(fmt.Sprint(a...))}) }

// Fatalf implements testing.TB.
func (h *Host) Fatalf(f string, a ...any) { panic(fatal{fmt.Errorf(f, a...)}) }

// Skip implements testing.TB: what cannot be measured is an error.
func (h *Host) Skip(a ...any) { h.Fatal(a...) }

// TempDir implements testing.TB.
func (h *Host) TempDir() string {
	dir, err := os.MkdirTemp("", "solotick-bench")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) }) // what is left is in the system's folder for that
	return dir
}
