package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

// Gate says what a tick must hold before its run is claimed. It saves work and
// spreads load; that a tick runs once is the store's doing, with any gate.
type Gate string

// The gates.
const (
	GateLock   Gate = "lock"   // a lease on lock:<namespace>:cron:<job>
	GateLeader Gate = "leader" // the current term of the elector
	GateNone   Gate = "none"   // nothing: every replica tries to claim
)

// Config is what an operator writes. The zero value of every field but Namespace
// works.
type Config struct {
	// Namespace keeps applications and environments apart in one store and one
	// lock backend. Required; letters, digits, '-', '_' and '.', at most 128.
	Namespace string `yaml:"-"`
	// Gate of jobs that do not name their own. Default lock.
	Gate Gate `yaml:"gate"`
	// Partitions shares the leadership of gate leader out: jobs belong to partitions by
	// their names, and every replica leads as many of them as the others. It must be the
	// same in every replica. Up to 256; default 0 or 1, one leader for all jobs. With
	// more, Deps.Shares is needed.
	Partitions int `yaml:"partitions"`
	// TimeZone of cron jobs that do not name their own. Default UTC.
	TimeZone string `yaml:"timezone"`
	// Lease is how long a run stays its owner's without a heartbeat, and so how
	// soon another replica takes over. From 1s to 10m. Default 10s.
	Lease time.Duration `yaml:"lease"`
	// DrainTimeout is how long runs may go on after a stop before their contexts
	// are cancelled; they get a quarter of it, at most 5s, to return after that.
	// Default 10s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// PollInterval is how often pending rows are looked for when nothing hints at
	// them. At least 100ms. Default 2s, jittered by 20 %.
	PollInterval time.Duration `yaml:"poll_interval"`
	// Concurrency is how many pending rows (queue jobs, retries, catch-ups) run at
	// once in this process; ticks on time are not counted. Default 16.
	Concurrency int `yaml:"concurrency"`
	// Revision of the schedules in this configuration. Where replicas disagree the
	// highest is in force, and among equals the one registered last. Default 0.
	Revision int64 `yaml:"revision"`
	// Label tells people which process this is. Default host:pid. It never decides
	// anything.
	Label string `yaml:"label"`
	// ClockOffset is added to this process's clock, to show in tests and drills
	// that skew does no harm. Default 0.
	ClockOffset time.Duration `yaml:"clock_offset"`
	// Journal is a directory on this host's disk for the runs that the store could not
	// record, see WhenStoreDown; it is made if missing, and processes of a host may share
	// it. Default none.
	Journal string `yaml:"journal"`
	// Retention says how long records are kept. See its fields for the defaults.
	Retention Retention `yaml:"retention"`
	// Degradation says what happens while the lock backend or the elector cannot
	// answer. It can be changed live, see Scheduler.SetDegradation.
	Degradation Degradation `yaml:"-"`

	uncorrected bool // tests: the clock is not corrected towards the store's
}

// Degradation configures the switch. The zero value is auto and fail_fast after 5s,
// back after 10s of health.
type Degradation struct {
	// Switch is auto, forced (take the mode now, as if the coordinator were away) or off
	// (never take it: ticks wait for the coordinator). Default auto.
	Switch SwitchPosition `yaml:"switch"`
	// Mode for jobs that do not name their own: fail_fast, local_mutex or
	// store_only. Default fail_fast.
	Mode store.Mode `yaml:"mode"`
	// After is how long the coordinator must have been unavailable before the mode
	// is taken; ticks due in that time wait. Default 5s.
	After time.Duration `yaml:"after"`
	// RecoverAfter is how long it must have answered again before the mode is left.
	// Default 10s.
	RecoverAfter time.Duration `yaml:"recover_after"`
	// Jobs overrides the mode by job name.
	Jobs map[string]store.Mode `yaml:"jobs"`
}

// degradationJSON writes durations as people do, such as 5s.
type degradationJSON struct {
	Switch       SwitchPosition        `json:"switch"`
	Mode         store.Mode            `json:"mode"`
	After        string                `json:"after"`
	RecoverAfter string                `json:"recover_after"`
	Jobs         map[string]store.Mode `json:"jobs,omitempty"`
}

// MarshalJSON writes durations as people do, such as 5s.
func (d Degradation) MarshalJSON() ([]byte, error) {
	return json.Marshal(degradationJSON{d.Switch, d.Mode, d.After.String(), d.RecoverAfter.String(), d.Jobs})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (d *Degradation) UnmarshalJSON(data []byte) error {
	var j degradationJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	after, err := time.ParseDuration(j.After)
	if err != nil {
		return fmt.Errorf("after: %w", err)
	}
	recoverAfter, err := time.ParseDuration(j.RecoverAfter)
	if err != nil {
		return fmt.Errorf("recover_after: %w", err)
	}
	*d = Degradation{Switch: j.Switch, Mode: j.Mode, After: after, RecoverAfter: recoverAfter, Jobs: j.Jobs}
	return nil
}

// Deps are the things passed in code.
type Deps struct {
	// Store keeps the runs. Required.
	Store store.Store
	// Locker is needed by gate lock.
	Locker *locks.Locker
	// Elector or Shares is needed by gate leader. The scheduler runs it.
	Elector *leader.Elector
	// Shares, in place of Elector, shares the leadership of jobs out over the replicas.
	Shares *leader.Shares
	// Logger gets one line per event worth a person's time. Default slog.Default().
	Logger *slog.Logger
	// Middleware wraps every handler, the first one outermost. Recovery from panics
	// and the job's timeout are always inside of it.
	Middleware []Middleware
	// Listeners are told every event, in order, from the goroutine that caused it;
	// they must return at once.
	Listeners []Listener
}

const (
	minLease = time.Second
	maxLease = 10 * time.Minute
)

// Modes lists the degradation modes that can be configured.
func Modes() []store.Mode {
	return []store.Mode{store.ModeFailFast, store.ModeLocalMutex, store.ModeStoreOnly}
}

func (c Config) withDefaults() Config {
	setDefault(&c.Gate, GateLock)
	setDefault(&c.TimeZone, "UTC")
	setDefault(&c.Lease, 10*time.Second)
	setDefault(&c.DrainTimeout, 10*time.Second)
	setDefault(&c.PollInterval, 2*time.Second)
	setDefault(&c.Concurrency, 16)
	c.Retention = c.Retention.withDefaults()
	c.Degradation = c.Degradation.withDefaults()
	return c
}

func (d Degradation) withDefaults() Degradation {
	setDefault(&d.Switch, SwitchAuto)
	setDefault(&d.Mode, store.ModeFailFast)
	setDefault(&d.After, 5*time.Second)
	setDefault(&d.RecoverAfter, 10*time.Second)
	d.Jobs = maps.Clone(d.Jobs)
	return d
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every field that cannot work, and what would.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("scheduler: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if err := ValidateName(c.Namespace); err != nil {
		bad("namespace", "%v", err)
	}
	c = c.withDefaults()
	if !slices.Contains([]Gate{GateLock, GateLeader, GateNone}, c.Gate) {
		bad("gate", "%q is none of lock, leader, none", c.Gate)
	}
	if c.Partitions < 0 || c.Partitions > leader.MaxPartitions {
		bad("partitions", "%d is not in 0 to %d: leave it out for one leader", c.Partitions, leader.MaxPartitions)
	}
	// Asked of cronspec, which has the zone data that the schedules are read with.
	if _, err := cronspec.Parse("@daily", cronspec.Options{Zone: c.TimeZone}); err != nil {
		bad("timezone", "%q is not a zone of the IANA database: write a name such as UTC or Europe/Berlin", c.TimeZone)
	}
	if c.Lease < minLease || c.Lease > maxLease {
		bad("lease", "%v is outside %v to %v", c.Lease, minLease, maxLease)
	}
	if c.DrainTimeout < 0 {
		bad("drain_timeout", "%v is negative: leave it out for the default", c.DrainTimeout)
	}
	if c.PollInterval < 100*time.Millisecond {
		bad("poll_interval", "%v is below 100ms: leave it out for the default", c.PollInterval)
	}
	if c.Concurrency < 1 {
		bad("concurrency", "%d is below 1: leave it out for the default", c.Concurrency)
	}
	if err := c.Retention.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := c.Degradation.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Validate reports every field that cannot work, and what would.
func (d Degradation) Validate() error {
	var errs []error
	d = d.withDefaults()
	mode := func(field string, m store.Mode) {
		if !slices.Contains(Modes(), m) {
			errs = append(errs, fmt.Errorf("scheduler: degradation.%s: %q is none of fail_fast, local_mutex, store_only", field, m))
		}
	}
	if !slices.Contains(SwitchPositions(), d.Switch) {
		errs = append(errs, fmt.Errorf("scheduler: degradation.switch: %q is none of auto, forced, off", d.Switch))
	}
	mode("mode", d.Mode)
	for _, job := range slices.Sorted(maps.Keys(d.Jobs)) {
		mode("jobs."+job, d.Jobs[job])
	}
	if d.After < 0 {
		errs = append(errs, fmt.Errorf("scheduler: degradation.after: %v is negative: leave it out for the default", d.After))
	}
	if d.RecoverAfter < 0 {
		errs = append(errs, fmt.Errorf("scheduler: degradation.recover_after: %v is negative: leave it out for the default", d.RecoverAfter))
	}
	return errors.Join(errs...)
}

const maxName = 128

// ValidateName reports why a namespace, job name or kind cannot be used. Names
// go into lock keys, columns and file names, so they are kept to letters, digits
// and "-_.".
func ValidateName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty: give it a name")
	case len(name) > maxName:
		return fmt.Errorf("%q… is %d bytes long, the most is %d", name[:32], len(name), maxName)
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}); i >= 0 {
		return fmt.Errorf("%q has %q at byte %d: use letters, digits, '-', '_' and '.'", name, []rune(name[i:])[0], i)
	}
	return nil
}
