package cronspec

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// GapPolicy says what becomes of a fixed-time run whose local time is skipped
// when clocks go forward. The zero value means GapNextValid.
type GapPolicy string

const (
	// GapNextValid runs once, at the first instant after the gap, for all times in it.
	GapNextValid GapPolicy = "next_valid"
	// GapShift runs as late as the gap is long: 02:30 becomes 03:30.
	GapShift GapPolicy = "shift"
	// GapSkip does not run.
	GapSkip GapPolicy = "skip"
)

// FoldPolicy says which pass of a repeated local time a fixed-time run takes
// when clocks go back. The zero value means FoldFirst.
type FoldPolicy string

const (
	// FoldFirst runs in the first pass.
	FoldFirst FoldPolicy = "first"
	// FoldLast runs in the last pass.
	FoldLast FoldPolicy = "last"
	// FoldBoth runs in both.
	FoldBoth FoldPolicy = "both"
)

// Options are what an expression does not say itself. The zero value is good.
type Options struct {
	// Zone is the IANA name of the zone whose clock the fields mean. It must be
	// empty if the expression begins with TZ= or CRON_TZ=. Default: UTC.
	Zone string
	// Gap is the rule for times that clocks skip. Default: GapNextValid.
	Gap GapPolicy
	// Fold is the rule for times that clocks repeat. Default: FoldFirst.
	Fold FoldPolicy
	// Offset moves the instants of "@every D" away from multiples of D since the
	// Unix epoch: whole seconds, at least 0, below D; see SpreadOffset. It must be
	// 0 for cron fields. Default: 0.
	Offset time.Duration
}

// Spec is a parsed schedule. It is immutable and safe for concurrent use.
type Spec struct {
	expr   string
	zone   *zone
	gap    GapPolicy
	fold   FoldPolicy
	every  int64 // seconds; 0 for cron fields
	offset int64 // seconds, below every

	cal       calendar
	fixedTime bool // no wildcard or step in second, minute and hour
	fixedHour bool // none in the hour
}

// String returns the expression in canonical form: names as numbers, shorthands
// as fields, single spaces, no second field if it is 0. It does not name the zone.
func (s *Spec) String() string { return s.expr }

// Zone returns the IANA name of the spec's zone.
func (s *Spec) Zone() string { return s.zone.name }

// SpreadOffset returns an offset for "@every" that differs from job to job but
// not from replica to replica: whole seconds, at least 0 and below every. It is 0
// if every is under two seconds. The value is a hash of namespace and job and
// part of the stored schedule's meaning, so it will not change between releases.
func SpreadOffset(namespace, job string, every time.Duration) time.Duration {
	seconds := uint64(max(every/time.Second, 1))
	sum := sha256.Sum256([]byte(namespace + "\x00" + job))
	return time.Duration(binary.BigEndian.Uint64(sum[:8])%seconds) * time.Second
}

// Every returns the distance of an "@every" schedule, and false for cron fields.
func (s *Spec) Every() (time.Duration, bool) {
	return time.Duration(s.every) * time.Second, s.every > 0
}
