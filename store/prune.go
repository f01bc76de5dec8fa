package store

import (
	"errors"
	"fmt"
	"time"
)

// Retention says how long records are kept after their end, by the store's clock.
// 0 keeps them for ever.
type Retention struct {
	Succeeded time.Duration
	Failed    time.Duration // failed and indeterminate
	Canceled  time.Duration
	Idle      time.Duration // skipped and missed
	Ranges    time.Duration // stretches of ticks that did not run, since they were last written

	// Keys is for runs of class key. At the age of their state they lose their
	// arguments and result; the row itself, with hashes, outcome and error, stays for
	// this long after the run's end, so that the key is not run again. After that it
	// may be.
	Keys time.Duration
}

// Of is the age at which a record of the state goes; 0 for never.
func (r Retention) Of(s State) time.Duration {
	switch s {
	case StateSucceeded:
		return r.Succeeded
	case StateFailed, StateIndeterminate:
		return r.Failed
	case StateCanceled:
		return r.Canceled
	case StateSkipped, StateMissed:
		return r.Idle
	case StatePending, StateRunning:
	}
	return 0
}

// PruneRequest asks for records to be removed.
type PruneRequest struct {
	Namespace string
	Jobs      []string // empty means all that have records
	Retention Retention
	Limit     int  // records that one call removes at most; 0 means 1000
	Batch     int  // records of one transaction at most; 0 means 200
	DryRun    bool // only count; not bounded by Limit
}

// The defaults of a PruneRequest, and the most that Batch can be.
const (
	DefaultPruneLimit = 1000
	DefaultPruneBatch = 200
	MaxPruneBatch     = 1000
)

// Checked is the request with its defaults, or why it makes no sense.
func (r PruneRequest) Checked() (PruneRequest, error) {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if r.Namespace == "" {
		bad("Namespace", "is empty: name it")
	}
	t := r.Retention
	for _, age := range []struct {
		name string
		d    time.Duration
		kept bool
	}{
		{"Succeeded", t.Succeeded, true},
		{"Failed", t.Failed, true},
		{"Canceled", t.Canceled, true},
		{"Idle", t.Idle, true},
		{"Ranges", t.Ranges, false},
		{"Keys", t.Keys, false},
	} {
		switch {
		case age.d < 0:
			bad("Retention."+age.name, "%v is negative: 0 keeps records for ever", age.d)
		case age.kept && t.Keys != 0 && t.Keys < age.d:
			bad("Retention.Keys", "%v is below %s, %v: a key is kept at least as long as what it ran", t.Keys, age.name, age.d)
		}
	}
	if r.Limit == 0 {
		r.Limit = DefaultPruneLimit
	}
	if r.Batch == 0 {
		r.Batch = DefaultPruneBatch
	}
	if r.Limit < 0 || r.Batch < 0 || r.Batch > MaxPruneBatch {
		bad("Limit, Batch", "%d and %d: at least 1, and at most %d to a transaction", r.Limit, r.Batch, MaxPruneBatch)
	}
	return r, errors.Join(errs...)
}

// Pruned tells what was removed.
type Pruned struct {
	Now       Millis
	Succeeded int
	Failed    int
	Canceled  int
	Idle      int
	Emptied   int // rows of class key that lost arguments and result
	Keys      int // rows of class key that went
	Ranges    int
	Attempts  int  // superseded attempts that went with their rows; not counted by a dry run
	More      bool // Limit was reached: there may be more
}

// Records is the number of records removed, superseded attempts apart.
func (p Pruned) Records() int {
	return p.Succeeded + p.Failed + p.Canceled + p.Idle + p.Emptied + p.Keys + p.Ranges
}

// Add adds what another call removed; the clock is the later one's, More the other's.
func (p *Pruned) Add(o Pruned) {
	p.Now, p.More = max(p.Now, o.Now), o.More
	p.Succeeded += o.Succeeded
	p.Failed += o.Failed
	p.Canceled += o.Canceled
	p.Idle += o.Idle
	p.Emptied += o.Emptied
	p.Keys += o.Keys
	p.Ranges += o.Ranges
	p.Attempts += o.Attempts
}

// Count adds n records of the state.
func (p *Pruned) Count(s State, n int) {
	switch s {
	case StateSucceeded:
		p.Succeeded += n
	case StateFailed, StateIndeterminate:
		p.Failed += n
	case StateCanceled:
		p.Canceled += n
	case StateSkipped, StateMissed:
		p.Idle += n
	case StatePending, StateRunning:
	}
}

// TableSize is how large a table is, over all namespaces.
type TableSize struct {
	Name     string // as the database calls it
	Rows     int64
	Estimate bool  // Rows is the database's own idea; it may be far off on a young table
	Bytes    int64 // with its indexes; 0 where that cannot be told
}
