package switchwatch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// Centre keeps the value for one namespace. Its methods are safe for concurrent use.
// An empty value is none.
type Centre interface {
	// Load returns the value, nil if there is none.
	Load(ctx context.Context) ([]byte, error)
	// Save replaces the value; nil removes it. After an error the value may have been
	// replaced. Saving the same again does no harm.
	Save(ctx context.Context, value []byte) error
	// Watch calls changed with the value as it is, nil for none, and again after every
	// change, from one goroutine at a time. It may pass over values that were replaced
	// meanwhile, and repeat one. It returns when ctx ends, or with an error when it
	// cannot go on; then it is called again. After it has returned, changed is not
	// called.
	Watch(ctx context.Context, changed func(value []byte)) error
}

// Recorder is a Centre whose value is the record of changes as well. Throw uses it in
// place of Save.
type Recorder interface {
	Throw(ctx context.Context, c store.SwitchChange) (store.SwitchChange, error)
}

// Switch is what is kept in step: *scheduler.Switch.
type Switch interface {
	SetFleet(t *scheduler.SwitchSetting) error
}

// refuser is a Switch that shows what was refused.
type refuser interface{ FleetRefused(reason string) }

// Options of a Watcher.
type Options struct {
	// Logger gets a line when the centre is lost and when it is back, and one for each
	// value that is refused. Default slog.Default().
	Logger *slog.Logger
	// Check is how often the centre is asked whether it still answers, beside the watch:
	// a connection that has fallen silent says nothing of it. Default 5s.
	Check time.Duration
	// Timeout bounds each of these questions. Default 2s.
	Timeout time.Duration
}

// Status is how the watch goes.
type Status struct {
	// Connected reports whether the centre answers.
	Connected bool `json:"connected"`
	// Since is when that began.
	Since time.Time `json:"since"`
	// Error is why the centre does not answer; empty while it does.
	Error string `json:"error,omitempty"`
	// Refused is why the value of the centre is not obeyed; empty while it is.
	Refused string `json:"refused,omitempty"`
	// Value is what the centre had at the last look, refused or not.
	Value string `json:"value,omitempty"`
}

// Watcher keeps a switch in step with a centre. It is safe for concurrent use.
type Watcher struct {
	centre Centre
	to     Switch
	o      Options

	turn sync.Mutex // one value after the other; whoever is told may ask for the status

	mu     sync.Mutex
	seen   bool // value is known
	value  []byte
	pushes int
	st     Status
}

const notAsked = "not asked yet"

// New makes a Watcher; [Watcher.Run] is what starts it. Nil options are the defaults.
func New(c Centre, to Switch, o *Options) (*Watcher, error) {
	w := &Watcher{centre: c, to: to, st: Status{Since: time.Now(), Error: notAsked}}
	if o != nil {
		w.o = *o
	}
	if w.o.Logger == nil {
		w.o.Logger = slog.Default()
	}
	for name, d := range map[string]time.Duration{"Check": w.o.Check, "Timeout": w.o.Timeout} {
		if d < 0 {
			return nil, fmt.Errorf("switchwatch: %s: %v is negative: leave it out for the default", name, d)
		}
	}
	w.o.Check = cmp.Or(w.o.Check, 5*time.Second)
	w.o.Timeout = cmp.Or(w.o.Timeout, 2*time.Second)
	return w, nil
}

// Status tells how the watch goes.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.st
}

var retry = backoff.Policy{Base: 100 * time.Millisecond, Max: 5 * time.Second}

// Run watches until ctx ends. It leaves no goroutine, and the switch as it is.
func (w *Watcher) Run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := w.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		w.lost(ctx, err)
		if time.Since(began) > retry.Max {
			failures = 0 // it was well meanwhile
		}
		if backoff.Wait(ctx, retry.Delay(failures)) != nil {
			return
		}
	}
}

var errEnded = errors.New("the watch ended")

// watch runs one watch, and ends it when the centre no longer answers.
func (w *Watcher) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for backoff.Wait(ctx, backoff.Jitter(w.o.Check, 0.2)) == nil {
			if err := w.check(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		}
	}()
	err := w.centre.Watch(ctx, func(value []byte) { w.obey(ctx, value, true) })
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	<-checked
	return cmp.Or(err, errEnded)
}

// check asks for the value apart from the watch, and takes it where that was silent.
func (w *Watcher) check(ctx context.Context) error {
	w.mu.Lock()
	before := w.pushes
	w.mu.Unlock()
	ask, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	value, err := w.centre.Load(ask)
	if err != nil {
		return err
	}
	w.mu.Lock()
	pushed := w.pushes != before // the answer may be the older one
	w.mu.Unlock()
	if !pushed {
		w.obey(ctx, value, false)
	}
	return nil
}

// obey puts a value in force.
func (w *Watcher) obey(ctx context.Context, value []byte, pushed bool) {
	value = bytes.TrimSpace(value)
	w.turn.Lock()
	defer w.turn.Unlock()
	if !w.answered(ctx, value, pushed) {
		return
	}
	var t *scheduler.SwitchSetting
	var err error
	if len(value) > 0 {
		var parsed scheduler.SwitchSetting
		parsed, err = scheduler.ParseSwitchSetting(value)
		t = &parsed
	}
	if err == nil {
		err = w.to.SetFleet(t)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.st.Refused = ""
	if err != nil {
		w.st.Refused = err.Error()
		if r, ok := w.to.(refuser); ok {
			r.FleetRefused(err.Error())
		}
		w.o.Logger.ErrorContext(ctx, "setting in the configuration centre refused: the degradation switch stays as it is", "error", err)
	}
}

// answered notes an answer of the centre, and reports whether it is news.
func (w *Watcher) answered(ctx context.Context, value []byte, pushed bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pushed {
		w.pushes++
	}
	if !w.st.Connected {
		if w.st.Error != notAsked {
			w.o.Logger.InfoContext(ctx, "configuration centre of the degradation switch answers")
		}
		w.st.Connected, w.st.Since, w.st.Error = true, time.Now(), ""
	}
	if w.seen && bytes.Equal(value, w.value) {
		return false
	}
	w.seen, w.value, w.st.Value = true, bytes.Clone(value), string(value)
	return true
}

// lost notes that the centre does not answer; the switch stays as it is.
func (w *Watcher) lost(ctx context.Context, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.st.Connected || w.st.Error == notAsked {
		w.st.Connected, w.st.Since = false, time.Now()
		w.o.Logger.WarnContext(ctx, "configuration centre of the degradation switch does not answer: the last setting stays in force until it ends", "error", err)
	}
	w.st.Error = err.Error()
}

// Throw turns the fleet: to the setting t, or back to its configuration with nil. The
// change says who, why and how; what it becomes is filled in. Where the centre is not
// the audit itself, audit (if not nil) is told afterwards, and the error of that is
// returned apart: the switch is thrown then.
func Throw(ctx context.Context, c Centre, t *scheduler.SwitchSetting, change store.SwitchChange, audit func(context.Context, store.SwitchChange) error) (unrecorded, err error) {
	change.Fleet, change.To, change.Until = true, "", 0
	var value []byte
	if t != nil {
		if err := t.Validate(); err != nil {
			return nil, err
		}
		if value, err = t.Marshal(); err != nil {
			return nil, err
		}
		change.To = string(value)
		if !t.Until.IsZero() {
			change.Until = store.MillisOf(t.Until)
		}
	}
	if r, ok := c.(Recorder); ok {
		_, err = r.Throw(ctx, change)
		return nil, err
	}
	if err := c.Save(ctx, value); err != nil {
		return nil, fmt.Errorf("switchwatch: save: %w", err)
	}
	if audit != nil {
		unrecorded = audit(ctx, change)
	}
	return unrecorded, nil
}
