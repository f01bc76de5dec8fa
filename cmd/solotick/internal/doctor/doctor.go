// Package doctor looks at what a worker relies on (the store, its tables, the rights
// of its user, the clocks, the lock backend) and tells what is wrong and what to do.
// It changes nothing: statements that try a right match no row, and the lock that it
// takes is given back.
package doctor

import "fmt"

// State is how grave a finding is.
type State string

// The states. A warning is something that works today.
const (
	OK      State = "ok"
	Warning State = "warning"
	Problem State = "problem"
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	State  State  `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // none where the state is ok
}

// good is a finding without a remedy.
func good(check, format string, args ...any) Finding {
	return Finding{Check: check, State: OK, Found: fmt.Sprintf(format, args...)}
}

// Bad is a problem.
func Bad(check, found, remedy string) Finding { return Finding{check, Problem, found, remedy} }

// doubtful is a warning.
func doubtful(check, found, remedy string) Finding { return Finding{check, Warning, found, remedy} }

// Worst is the gravest state of the findings.
func Worst(all []Finding) State {
	worst := OK
	for _, f := range all {
		if f.State == Problem || f.State == Warning && worst == OK {
			worst = f.State
		}
	}
	return worst
}
