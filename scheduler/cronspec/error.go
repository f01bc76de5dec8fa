package cronspec

import "fmt"

// Error says why a spec was refused. Every error of this package is one.
type Error struct {
	// Field is the part at fault: "spec", "zone", "second", "minute", "hour",
	// "day of month", "month", "day of week", "@every", "gap", "fold", "offset"
	// or "stored spec".
	Field string
	// Value is the text of that part.
	Value string
	// Problem is what is wrong with it.
	Problem string
	// Remedy is what to write instead.
	Remedy string
}

func (e *Error) Error() string {
	return fmt.Sprintf("cronspec: %s %q: %s; %s", e.Field, e.Value, e.Problem, e.Remedy)
}

// refuse builds an Error whose problem is formatted.
func refuse(field, value, remedy, problem string, args ...any) error {
	return &Error{Field: field, Value: value, Problem: fmt.Sprintf(problem, args...), Remedy: remedy}
}
