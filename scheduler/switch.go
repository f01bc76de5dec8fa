package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/store"
)

// Switch is the degradation switch of a scheduler. It learns from every question
// put to a coordinator, and asks on its own while one is in doubt. Held is an
// answer; only unavailable counts against a coordinator.
//
// What is in force is laid together from three layers, the upper over the lower:
// what was set for this process (Set), what was set for the fleet (SetFleet), and
// the configuration (SetDegradation). For a job's mode, what names the job comes
// first, in that order; then what its code says; then the general mode, in that
// order. Its methods are safe for concurrent use; what they set is in force for every
// tick that comes after it. Runs in progress are left alone.
type Switch struct {
	s *Scheduler

	mu      sync.Mutex
	cfg     Degradation
	process *SwitchSetting
	fleet   *SwitchSetting
	refused string   // why a setting for the fleet is not obeyed
	now     position // the layers laid together
	coords  map[Gate]*coordinator
	notify  chan struct{}        // closed and replaced at every change
	toAudit []store.SwitchChange // not yet taken by the store
	audits  chan struct{}        // capacity 1
	looping bool                 // the loop has begun

	settling sync.Mutex // modes are taken and told by one at a time
}

func newSwitch(s *Scheduler) *Switch {
	w := &Switch{
		s: s, cfg: s.cfg.Degradation, notify: make(chan struct{}), audits: make(chan struct{}, 1),
		coords: map[Gate]*coordinator{GateLock: {}, GateLeader: {}},
	}
	w.layLocked()
	return w
}

// Switch is the scheduler's degradation switch.
func (s *Scheduler) Switch() *Switch { return s.switcher }

// layLocked lays the layers together again.
func (w *Switch) layLocked() {
	base := position{at: w.cfg.Switch, mode: w.cfg.Mode, jobs: w.cfg.Jobs}
	w.now = base.over(w.fleet).over(w.process)
}

// changes is closed at the next change of anything here.
func (w *Switch) changes() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notify
}

// changedLocked wakes everybody who waits for a change.
func (w *Switch) changedLocked() {
	close(w.notify)
	w.notify = make(chan struct{})
}

func (w *Switch) modeOf(j *job) store.Mode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.modeLocked(j)
}

// modeLocked: what names the job, then what its code says, then the general mode.
func (w *Switch) modeLocked(j *job) store.Mode {
	if m, ok := w.now.jobs[j.name]; ok {
		return m
	}
	if j.o.mode != "" {
		return j.o.mode
	}
	return w.now.mode
}

// degraded reports whether the job's coordinator is given up for now, and the
// mode that takes its place.
func (w *Switch) degraded(j *job) (store.Mode, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[j.o.gate]
	if c == nil || !c.degraded {
		return store.ModeNone, false
	}
	return w.modeLocked(j), true
}

// failsFast reports whether the job must not start now.
func (w *Switch) failsFast(j *job) bool {
	mode, degraded := w.degraded(j)
	return degraded && mode == store.ModeFailFast
}

// outlives is the mode under which a run goes on that has lost its gate because the
// coordinator cannot answer; false when it must end.
func (w *Switch) outlives(j *job) (store.Mode, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	mode := w.modeLocked(j)
	return mode, mode != store.ModeFailFast && w.now.at != SwitchOff
}

// doubtful reports whether the job's coordinator cannot answer and no mode is
// taken: its ticks wait unrecorded.
func (w *Switch) doubtful(j *job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.coords[j.o.gate]
	return c != nil && !c.failing.IsZero() && !c.degraded
}

func (w *Switch) after() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cfg.After
}

// Ways in which a change is made, as the audit names them.
const (
	sourceFile   = "file"
	sourceCode   = "code"
	sourceCentre = "centre"
	sourceExpiry = "expiry"
)

// configure replaces the lowest layer.
func (w *Switch) configure(d Degradation) {
	w.mu.Lock()
	from := w.cfg
	w.cfg = d
	w.layLocked()
	w.auditLocked(store.SwitchChange{Source: sourceFile, By: w.s.cfg.Label, Reason: "configuration", From: asJSON(from), To: asJSON(d)})
	w.thrownLocked()
	w.mu.Unlock()
	w.s.log.Info("degradation switch configured", "switch", d.Switch, "mode", d.Mode, "after", d.After, "recover_after", d.RecoverAfter, "jobs", d.Jobs)
	w.s.emit(DegradationChanged{From: from, To: d})
	w.settleNow()
}

// thrownLocked makes everybody look at the switch again.
func (w *Switch) thrownLocked() {
	w.changedLocked()
	nudge(w.s.sweepNow)
	nudge(w.s.fetchNow)
}

// Now is the time by which settings end: the store's, as far as this process knows it.
func (w *Switch) Now() time.Time { return w.s.clock.now() }

// Set sets the switch for this process, over the fleet's setting and the
// configuration, until it is cleared, its time is over, or the process ends. A
// setting that does not validate, names a job that does not exist, or has ended
// already changes nothing.
func (w *Switch) Set(t SwitchSetting) error { return w.SetFrom(sourceCode, t) }

// SetFrom is Set for those who set the switch on behalf of others: source is the way
// that the audit names, such as admin.
func (w *Switch) SetFrom(source string, t SwitchSetting) error {
	now := w.s.clock.now()
	if t.At.IsZero() {
		t.At = now.UTC()
	}
	t.Jobs = maps.Clone(t.Jobs)
	if err := errors.Join(t.Validate(), w.s.checkOverrides(Degradation{Jobs: t.Jobs})); err != nil {
		return err
	}
	if t.ended(now) {
		return fmt.Errorf("scheduler: switch until: %s is over: give a later time", t.Until.UTC().Format(time.RFC3339))
	}
	w.throw(&w.process, &t, source, t.By, t.Reason, false)
	return nil
}

// Clear takes back what was set for this process. Where nothing was set, it does
// nothing.
func (w *Switch) Clear(by, reason string) error { return w.ClearFrom(sourceCode, by, reason) }

// ClearFrom is Clear for those who clear on behalf of others, see SetFrom.
func (w *Switch) ClearFrom(source, by, reason string) error {
	if err := (SwitchSetting{Position: SwitchAuto, By: by, Reason: reason}).Validate(); err != nil {
		return err
	}
	w.throw(&w.process, nil, source, by, reason, false)
	return nil
}

// SetFleet says what a configuration centre has for all processes: a setting, or
// nil for none. Jobs that this process does not have are left to those that do. A
// setting that does not validate changes nothing. Whoever changed the centre keeps
// the audit of it.
func (w *Switch) SetFleet(t *SwitchSetting) error {
	if t == nil {
		w.FleetRefused("")
		w.throw(&w.fleet, nil, sourceCentre, "", "", true)
		return nil
	}
	if err := t.Validate(); err != nil {
		w.FleetRefused(err.Error())
		return err
	}
	w.FleetRefused("")
	c := *t
	c.Jobs = maps.Clone(t.Jobs)
	if c.ended(w.s.clock.now()) {
		w.throw(&w.fleet, nil, sourceCentre, c.By, c.Reason, true)
		return nil
	}
	w.throw(&w.fleet, &c, sourceCentre, c.By, c.Reason, true)
	return nil
}

// FleetRefused says why what the configuration centre has is no setting; Status shows it
// until SetFleet takes one. Empty: it is one.
func (w *Switch) FleetRefused(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = reason
}

// throw replaces a layer, unless it stays the same.
func (w *Switch) throw(layer **SwitchSetting, to *SwitchSetting, source, by, reason string, fleet bool) {
	w.mu.Lock()
	from := *layer
	same := from == nil && to == nil || from != nil && to != nil && asJSON(from) == asJSON(to)
	// Somebody may have set it anew since it was found to have ended.
	renewed := source == sourceExpiry && from != nil && !from.ended(w.s.clock.now())
	if same || renewed {
		w.mu.Unlock()
		return
	}
	*layer = to
	w.layLocked()
	if !fleet {
		c := store.SwitchChange{Source: source, By: by, Reason: reason, From: settingJSON(from), To: settingJSON(to)}
		if to != nil && !to.Until.IsZero() {
			c.Until = store.MillisOf(to.Until)
		}
		w.auditLocked(c)
	}
	w.thrownLocked()
	w.mu.Unlock()
	attrs := []any{"source", source}
	if by != "" || reason != "" { // who cleared a centre stands in the audit alone
		attrs = append(attrs, "by", by, "reason", reason)
	}
	attrs = append(attrs, "fleet", fleet, "from", describeSetting(from), "to", describeSetting(to))
	if to != nil && !to.Until.IsZero() {
		attrs = append(attrs, "until", to.Until.UTC().Format(time.RFC3339))
	}
	w.s.log.Info("degradation switch thrown", attrs...)
	w.s.emit(SwitchThrown{Fleet: fleet, Source: source, From: from, To: to})
	w.settleNow()
}

// expire ends the settings whose time is over, and returns how long until the next
// one ends, or until it is looked at again; 0 when none does.
func (w *Switch) expire() (left time.Duration) {
	now := w.s.clock.now()
	for _, fleet := range []bool{false, true} {
		w.mu.Lock()
		layer := &w.process
		if fleet {
			layer = &w.fleet
		}
		t := *layer
		w.mu.Unlock()
		switch {
		case t == nil || t.Until.IsZero():
		case t.ended(now):
			w.throw(layer, nil, sourceExpiry, t.By, t.Reason, fleet)
		default:
			// Clocks are set and corrected meanwhile.
			if d := min(t.Until.Sub(now), 30*time.Second); left == 0 || d < left {
				left = d
			}
		}
	}
	return left
}

// SwitchStatus is what the switch says, and why.
type SwitchStatus struct {
	Position SwitchPosition `json:"position"`
	Mode     store.Mode     `json:"mode"` // the general one
	// Jobs are the modes of the jobs with a coordinator, by name.
	Jobs map[string]store.Mode `json:"jobs"`
	// Degraded reports whether the mode of some gate is taken.
	Degraded bool `json:"degraded"`
	// Coordinators tells of each gate in use, lock and leader: ok or the last error.
	Coordinators map[string]string `json:"coordinators"`
	// The layers: configuration, fleet and process, the last one uppermost.
	Configured Degradation    `json:"configured"`
	Fleet      *SwitchSetting `json:"fleet,omitempty"`
	Process    *SwitchSetting `json:"process,omitempty"`
	// Refused is why what the configuration centre has is not obeyed; empty where it is.
	Refused string `json:"fleet_refused,omitempty"`
}

// Status tells what is in force.
func (w *Switch) Status() SwitchStatus {
	jobs := w.s.sorted()
	w.mu.Lock()
	defer w.mu.Unlock()
	st := SwitchStatus{
		Position: w.now.at, Mode: w.now.mode, Configured: w.cfg, Fleet: w.fleet, Process: w.process, Refused: w.refused,
		Jobs: map[string]store.Mode{}, Coordinators: map[string]string{},
	}
	for _, j := range jobs {
		c := w.coords[j.o.gate]
		if c == nil || j.kind != kindCron {
			continue
		}
		st.Jobs[j.name] = w.modeLocked(j)
		st.Degraded = st.Degraded || c.degraded
		st.Coordinators[string(j.o.gate)] = "ok"
		if c.err != nil {
			st.Coordinators[string(j.o.gate)] = c.err.Error()
		}
	}
	return st
}

// maxAudit bounds what waits for a store that is away.
const maxAudit = 1000

// auditLocked keeps a change for the store.
func (w *Switch) auditLocked(c store.SwitchChange) {
	if _, ok := w.s.deps.Store.(store.Switchboard); !ok || len(w.toAudit) >= maxAudit {
		return // the log has it
	}
	c.Process = w.s.cfg.Label
	c.Token = store.NewID(store.MillisOf(time.Now())) // the loop may have to repeat it
	w.toAudit = append(w.toAudit, c)
	nudge(w.audits)
}

// auditLoop gives the store what it has not taken yet. What is left when the
// process ends is in its log.
func (w *Switch) auditLoop() {
	board, ok := w.s.deps.Store.(store.Switchboard)
	if !ok {
		return
	}
	for {
		select {
		case <-w.s.alive.Done():
			return
		case <-w.audits:
		}
		for try := 0; ; {
			w.mu.Lock()
			if len(w.toAudit) == 0 {
				w.mu.Unlock()
				break
			}
			next := w.toAudit[0]
			w.mu.Unlock()
			ctx, cancel := context.WithTimeout(w.s.alive, w.s.storeTimeout())
			_, err := board.ThrowSwitch(ctx, w.s.cfg.Namespace, next)
			cancel()
			if err == nil || !errors.Is(err, store.ErrUnavailable) {
				if err != nil {
					w.s.log.Warn("change of the degradation switch not recorded in the store", "error", err)
				}
				w.mu.Lock()
				w.toAudit = w.toAudit[1:]
				w.mu.Unlock()
				try = 0
				continue
			}
			if backoff.Wait(w.s.alive, backoff.Policy{Base: time.Second, Max: 30 * time.Second}.Delay(try)) != nil {
				return
			}
			try++
		}
	}
}

func describeSetting(t *SwitchSetting) string {
	if t == nil {
		return "configuration"
	}
	return t.String()
}

func settingJSON(t *SwitchSetting) string {
	if t == nil {
		return ""
	}
	return asJSON(t)
}

// asJSON is for values of this package, none of which can fail.
func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}
