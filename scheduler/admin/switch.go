package admin

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/solotick/solotick/scheduler"
)

// source is how the audit names what was changed here.
const source = "admin"

// Change is the body of PUT /api/v1/switch: a setting, and how long it is in force.
type Change struct {
	scheduler.SwitchSetting
	// For is how long the setting is in force, such as 30m; it takes the place of until.
	// One of them is required, or no_expiry.
	For      string `json:"for,omitempty"`
	NoExpiry bool   `json:"no_expiry,omitempty"`
}

// Clearance is the body of DELETE /api/v1/switch.
type Clearance struct {
	Reason string `json:"reason"`
	By     string `json:"by"`
}

func (a *api) switchGet(w http.ResponseWriter, _ *http.Request) {
	s := a.deps.Scheduler()
	if s == nil {
		starting(w)
		return
	}
	a.status(w, s)
}

// status answers with what is in force, and its tag.
func (a *api) status(w http.ResponseWriter, s *scheduler.Scheduler) {
	st := s.Switch().Status()
	w.Header().Set("ETag", tag(st))
	answer(w, http.StatusOK, st)
}

// tag changes with what somebody set, not with what the coordinators say.
func tag(st scheduler.SwitchStatus) string {
	data, err := json.Marshal([]any{st.Configured, st.Fleet, st.Process})
	if err != nil {
		panic(err) // none of them can fail
	}
	sum := sha256.Sum256(data)
	return `"` + hex.EncodeToString(sum[:8]) + `"`
}

func (a *api) switchPut(w http.ResponseWriter, r *http.Request, body []byte) {
	var c Change
	s, ok := a.change(w, r, body, &c, `{"position": "forced", "mode": "store_only", "reason": "…", "by": "…", "for": "30m"}`)
	if !ok {
		return
	}
	if c.For != "" {
		d, err := time.ParseDuration(c.For)
		switch {
		case err != nil:
			problem(w, http.StatusUnprocessableEntity, fmt.Sprintf("for: %q is no duration: write it as 30m or 48h", c.For))
			return
		case d <= 0:
			problem(w, http.StatusUnprocessableEntity, fmt.Sprintf("for: %s does not lie ahead: write it as 30m or 48h", c.For))
			return
		case !c.Until.IsZero():
			problem(w, http.StatusUnprocessableEntity, "for: stands beside until: keep one of them")
			return
		}
		c.Until = s.Switch().Now().Add(d).UTC()
	}
	if c.Until.IsZero() != c.NoExpiry {
		problem(w, http.StatusUnprocessableEntity, `for: say how long, such as "for": "30m", or "no_expiry": true`)
		return
	}
	if err := s.Switch().SetFrom(source, c.SwitchSetting); err != nil {
		problem(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	a.status(w, s)
}

func (a *api) switchDelete(w http.ResponseWriter, r *http.Request, body []byte) {
	var c Clearance
	s, ok := a.change(w, r, body, &c, `{"reason": "…", "by": "…"}`)
	if !ok {
		return
	}
	if err := s.Switch().ClearFrom(source, c.By, c.Reason); err != nil {
		problem(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	a.status(w, s)
}

// change decodes the body of a change, which looks like the example, and demands that
// its sender has seen what it changes.
func (a *api) change(w http.ResponseWriter, r *http.Request, body []byte, into any, example string) (*scheduler.Scheduler, bool) {
	s := a.deps.Scheduler()
	if s == nil {
		starting(w)
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is more behind the JSON object")
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty")
	}
	if err != nil {
		problem(w, http.StatusBadRequest, "the body: "+err.Error()+": write one JSON object such as "+example)
		return nil, false
	}
	switch want := r.Header.Get("If-Match"); {
	case want == "":
		problem(w, http.StatusPreconditionRequired, "read the switch first, and send its ETag as If-Match")
		return nil, false
	case !matches(want, tag(s.Switch().Status())):
		problem(w, http.StatusPreconditionFailed, "the switch was changed since you read it: read it again")
		return nil, false
	}
	return s, true
}

// matches reports whether the tag is among those of an If-Match: RFC 9110, 13.1.1.
func matches(header, tag string) bool {
	for want := range strings.SplitSeq(header, ",") {
		if want = strings.TrimSpace(want); want == "*" || want == tag {
			return true
		}
	}
	return false
}

func starting(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	problem(w, http.StatusServiceUnavailable, "the process is starting: it waits for its store and lock backend")
}
