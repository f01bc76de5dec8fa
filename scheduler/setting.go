package scheduler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

// SwitchPosition says when the degradation mode takes the place of the gates.
type SwitchPosition string

// The positions.
const (
	// SwitchAuto takes the mode while a gate's coordinator cannot answer, after
	// Degradation.After, and leaves it after Degradation.RecoverAfter of health.
	SwitchAuto SwitchPosition = "auto"
	// SwitchForced takes the mode at once and keeps it, as if the coordinator were away.
	SwitchForced SwitchPosition = "forced"
	// SwitchOff never takes the mode: while the coordinator cannot answer, ticks wait
	// unrecorded, and what has waited is caught up by the misfire policy.
	SwitchOff SwitchPosition = "off"
)

// SwitchPositions lists the positions.
func SwitchPositions() []SwitchPosition {
	return []SwitchPosition{SwitchAuto, SwitchForced, SwitchOff}
}

const (
	maxReason = 500
	maxBy     = 200
)

// SwitchSetting is what somebody sets the degradation switch to, over what the
// configuration says. What is empty stays as the layer below has it.
type SwitchSetting struct {
	// Position of the switch.
	Position SwitchPosition `json:"position,omitempty"`
	// Mode of the jobs that have none of their own.
	Mode store.Mode `json:"mode,omitempty"`
	// Jobs are modes by job name; they win over a job's own.
	Jobs map[string]store.Mode `json:"jobs,omitempty"`
	// Reason and By tell why and who. Required; at most 500 and 200 bytes.
	Reason string `json:"reason"`
	By     string `json:"by"`
	// At is when it was set, for people.
	At time.Time `json:"at,omitzero"`
	// Until is when it ends by itself, by the store's clock. Zero: when it is cleared.
	Until time.Time `json:"until,omitzero"`
}

// Validate reports every field that cannot work, and what would. It says nothing
// of Until: a setting that has ended is a setting, too.
func (t SwitchSetting) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("scheduler: switch %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if t.Position == "" && t.Mode == "" && len(t.Jobs) == 0 {
		bad("setting", "says neither position, mode nor jobs: to go back to the configuration, clear it")
	}
	if t.Position != "" && !slices.Contains(SwitchPositions(), t.Position) {
		bad("position", "%q is none of auto, forced, off", t.Position)
	}
	mode := func(field string, m store.Mode) {
		if !slices.Contains(Modes(), m) {
			bad(field, "%q is none of fail_fast, local_mutex, store_only", m)
		}
	}
	if t.Mode != "" {
		mode("mode", t.Mode)
	}
	for _, job := range slices.Sorted(maps.Keys(t.Jobs)) {
		if err := ValidateName(job); err != nil {
			bad("jobs", "%v", err)
			continue
		}
		mode("jobs."+job, t.Jobs[job])
	}
	text := func(field, value string, most int) {
		switch {
		case strings.TrimSpace(value) == "":
			bad(field, "is empty: it is kept for whoever asks later")
		case len(value) > most:
			bad(field, "is %d bytes long, the most is %d", len(value), most)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			bad(field, "has a control character: write one line of text")
		}
	}
	text("reason", t.Reason, maxReason)
	text("by", t.By, maxBy)
	return errors.Join(errs...)
}

// ended reports whether the setting's time is over.
func (t SwitchSetting) ended(now time.Time) bool { return !t.Until.IsZero() && !now.Before(t.Until) }

// String is the setting in a few words, for lines that people read.
func (t SwitchSetting) String() string {
	var parts []string
	if t.Position != "" {
		parts = append(parts, string(t.Position))
	}
	if t.Mode != "" {
		parts = append(parts, string(t.Mode))
	}
	for _, job := range slices.Sorted(maps.Keys(t.Jobs)) {
		parts = append(parts, job+"="+string(t.Jobs[job]))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " ")
}

// maxSetting bounds what a configuration centre may hand out.
const maxSetting = 64 << 10

// ParseSwitchSetting reads a setting as a configuration centre keeps it: one JSON
// object. It refuses keys that it does not know, since a mode with a misspelt name
// would otherwise be no mode at all.
func ParseSwitchSetting(data []byte) (SwitchSetting, error) {
	if len(data) > maxSetting {
		return SwitchSetting{}, fmt.Errorf("scheduler: switch setting: %d bytes, the most is %d", len(data), maxSetting)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var t SwitchSetting
	if err := d.Decode(&t); err != nil {
		return SwitchSetting{}, fmt.Errorf("scheduler: switch setting: %w: write one JSON object such as {\"position\":\"forced\",\"mode\":\"store_only\",\"reason\":\"…\",\"by\":\"…\"}", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return SwitchSetting{}, errors.New("scheduler: switch setting: there is more behind the JSON object: write one object")
	}
	if err := t.Validate(); err != nil {
		return SwitchSetting{}, err
	}
	return t, nil
}

// Marshal is the form that ParseSwitchSetting reads.
func (t SwitchSetting) Marshal() ([]byte, error) { return json.Marshal(t) }

// position is what applies when all layers are laid over each other.
type position struct {
	at   SwitchPosition
	mode store.Mode
	jobs map[string]store.Mode
}

// over lays a setting over what is below.
func (p position) over(t *SwitchSetting) position {
	if t == nil {
		return p
	}
	if t.Position != "" {
		p.at = t.Position
	}
	if t.Mode != "" {
		p.mode = t.Mode
	}
	if len(t.Jobs) > 0 {
		p.jobs = maps.Clone(p.jobs)
		if p.jobs == nil {
			p.jobs = map[string]store.Mode{}
		}
		maps.Copy(p.jobs, t.Jobs)
	}
	return p
}
