package admin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// Check is one part of the readiness.
type Check struct {
	Name   string `json:"name"`   // scheduler, store, coordinator, clock, mode
	OK     bool   `json:"ok"`     // false keeps the process from being ready
	Detail string `json:"detail"` // for people
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready    bool                     `json:"ready"`
	Degraded bool                     `json:"degraded"`
	Mode     store.Mode               `json:"mode,omitempty"`
	Switch   scheduler.SwitchPosition `json:"switch,omitempty"`
	Checks   []Check                  `json:"checks"`
}

// maxSkew is how far the clock may be from the store's before that is a problem worth
// a look. It does not keep a process from being ready: its clock is corrected.
const maxSkew = time.Second

func (a *api) healthz(w http.ResponseWriter, _ *http.Request) {
	s := a.deps.Scheduler()
	switch {
	case s == nil:
		answer(w, http.StatusOK, map[string]any{"ok": true, "detail": "starting: waiting for store and lock backend"})
	case s.Err() != nil:
		answer(w, http.StatusServiceUnavailable, map[string]any{"ok": false, "detail": s.Err().Error()})
	default:
		answer(w, http.StatusOK, map[string]any{"ok": true})
	}
}

func (a *api) readyz(w http.ResponseWriter, _ *http.Request) {
	r := ready(a.deps.Scheduler())
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, r)
}

// ready judges whether ticks can run in the process.
func ready(s *scheduler.Scheduler) Readiness {
	if s == nil {
		return Readiness{Checks: []Check{{"scheduler", false, "starting: waiting for store and lock backend"}}}
	}
	h := s.Health()
	r := Readiness{Ready: true, Degraded: h.Degraded, Mode: h.Mode, Switch: h.Switch}
	check := func(name string, ok bool, format string, args ...any) {
		r.Checks = append(r.Checks, Check{name, ok, fmt.Sprintf(format, args...)})
		r.Ready = r.Ready && ok
	}
	switch err := s.Err(); {
	case err != nil:
		check("scheduler", false, "%v", err)
	case !h.Running:
		check("scheduler", false, "stopped, or not started")
	default:
		check("scheduler", true, "%d runs in progress", h.InProgress)
	}
	detail := h.Store
	if h.Journal > 0 {
		detail += fmt.Sprintf("; %d runs wait in the journal", h.Journal)
	}
	check("store", h.Store == "ok", "%s", detail)
	// A mode that runs on makes up for the coordinator.
	runs := h.Degraded && h.Mode != store.ModeFailFast
	check("coordinator", h.Coordinator == "ok" || h.Coordinator == "none" || runs, "%s", h.Coordinator)
	detail = fmt.Sprintf("%v %s the store's, corrected", h.ClockOffset.Abs().Round(time.Millisecond), aheadOrBehind(h.ClockOffset))
	if h.ClockOffset.Abs() > maxSkew {
		detail += ": set this host's clock right"
	}
	check("clock", true, "%s", detail)
	refused := ""
	if why := s.Switch().Status().Refused; why != "" {
		refused = "; what the configuration centre has is not obeyed: " + why
	}
	switch {
	case !h.Degraded && h.Switch == scheduler.SwitchOff:
		check("mode", true, "not degraded, and never: the switch is off, ticks wait for the coordinator%s", refused)
	case !h.Degraded:
		check("mode", true, "not degraded (%s; it would be %s)%s", h.Switch, h.Mode, refused)
	default:
		check("mode", runs, "degraded: %s (%s)%s", h.Mode, h.Switch, refused)
	}
	return r
}

func aheadOrBehind(offset time.Duration) string {
	if offset < 0 {
		return "behind"
	}
	return "ahead of"
}
