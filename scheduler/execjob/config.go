package execjob

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/configs/secret"
)

// Config says what to run.
type Config struct {
	// Command and its arguments. The first is a path or a name found in PATH; no
	// shell is involved. Required.
	Command []string `yaml:"command" short:"true"`
	// Dir is the working directory. Default: the worker's.
	Dir string `yaml:"dir"`
	// Env adds variables. Names that begin with SOLOTICK_ are refused. Default none.
	Env map[string]secret.Value `yaml:"env"`
	// PassEnv names further variables of the worker that the command gets.
	// Default none.
	PassEnv []string `yaml:"pass_env"`
	// Grace is the time between SIGTERM and SIGKILL, at most four fifths of the lease.
	// It is cut to a tenth of the lease where the run was lost. Default 2s.
	Grace time.Duration `yaml:"grace"`
	// PermanentCodes are exit codes after which no further attempt is made.
	// Default none.
	PermanentCodes []int `yaml:"permanent_codes"`
	// Output is how many of the last bytes of its output are kept as the run's
	// result, from 0 to 65536. Default 16384.
	Output *int `yaml:"output"`
}

const (
	defaultGrace  = 2 * time.Second
	maxOutput     = 64 << 10
	defaultOutput = 16 << 10
	tempFail      = 75 // EX_TEMPFAIL of sysexits.h
)

// Validate reports every field that cannot work, and what would.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("execjob: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if len(c.Command) == 0 || c.Command[0] == "" {
		bad("command", "is empty: write the program and its arguments, as in [/usr/local/bin/backup, --all]")
	}
	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			bad(fmt.Sprintf("command[%d]", i), "has a NUL byte: no program can be given one")
		}
	}
	for name, value := range c.Env {
		if !isName(name) || strings.ContainsRune(value.Reveal(), 0) {
			bad("env", "%.64q or its value cannot stand in an environment: use letters, digits and _", name)
		}
	}
	for _, name := range c.PassEnv {
		if !isName(name) {
			bad("pass_env", "%.64q is not the name of a variable that can be passed: use letters, digits and _", name)
		}
	}
	if c.Grace < 0 {
		bad("grace", "%v is negative: leave it out for the default", c.Grace)
	}
	for _, code := range c.PermanentCodes {
		if code < 1 || code > 255 || code == tempFail {
			bad("permanent_codes", "%d is not from 1 to 255, or is 75, which means: try again", code)
		}
	}
	if c.Output != nil && (*c.Output < 0 || *c.Output > maxOutput) {
		bad("output", "%d is outside 0 to %d", *c.Output, maxOutput)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// CheckLease reports a Grace that is longer than a scheduler with the lease, 0 for its
// default of 10s, waits for a handler. Such a grace would be cut.
func (c Config) CheckLease(lease time.Duration) error {
	if most := mostGrace(cmp.Or(lease, 10*time.Second)); c.Grace > most {
		return fmt.Errorf("execjob: grace: %v is more than %v, four fifths of scheduler.lease: another command of the job may run beside this one then", c.Grace, most)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	if c.Output == nil {
		n := defaultOutput
		c.Output = &n
	}
	return c
}

const prefix = "SOLOTICK_"

func isName(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != "" && !strings.HasPrefix(s, prefix)
}
