package switchwatchtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/store"
)

// Harness is one backend without a value.
type Harness struct {
	// Open gives one more handle on the backend, as another process would have. What it
	// opens is closed by tb.Cleanup.
	Open func(tb testing.TB) switchwatch.Centre
	// Proxied is Open over a connection that faults can be put on; nil leaves the cases
	// that need it out.
	Proxied func(tb testing.TB) (switchwatch.Centre, Faults)
	// Restart ends the server and starts it again with its data; nil leaves the case out.
	Restart func(tb testing.TB)
}

// Faults are put on a connection. *faultproxy.Proxy can do them.
type Faults struct {
	Silence func() // nothing comes through, either way
	Reset   func() // connections are reset; new ones go through
	Heal    func()
}

const (
	within = time.Second      // what a fleet has to turn
	stuck  = 30 * time.Second // what does not happen by then never does
	fleet  = 4
)

// throws is how often the fleet is turned: a few times, or as often as SOLOTICK_SOAK
// says, if that is a number.
func throws() int {
	if n, err := strconv.Atoi(os.Getenv("SOLOTICK_SOAK")); err == nil && n > 0 {
		return n
	}
	return 5
}

// figures of the long form.
type figures struct {
	Test      string `json:"test"`
	Throws    int    `json:"throws"`
	Processes int    `json:"processes"`
	Slowest   string `json:"slowest"`
}

// note appends figures to the file that SOLOTICK_SOAK_RESULT names, a line each.
func (e *env) note(f figures) {
	e.Logf("%+v", f)
	path := os.Getenv("SOLOTICK_SOAK_RESULT")
	if path == "" {
		return
	}
	line, err := json.Marshal(f)
	e.must(err)
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	e.must(err)
	_, err = file.Write(append(line, '\n'))
	e.must(errors.Join(err, file.Close()))
}

// Run runs the suite. Each case gets a backend without a value.
func Run(t *testing.T, newBackend func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*env)
	}{
		{"a value is kept", keeps},
		{"a watch tells every change", watches},
		{"a fleet turns within a second", turns},
		{"the last of many changes counts", last},
		{"a late process obeys at once", late},
		{"a broken value changes nothing", broken},
		{"silence", silence},
		{"reset", reset},
		{"restart", restart},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(&env{T: t, h: newBackend(t), ctx: t.Context()}) })
	}
}

type env struct {
	*testing.T
	h   Harness
	ctx context.Context
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// setting is one that no other is like.
func setting(n int) *scheduler.SwitchSetting {
	modes := scheduler.Modes()
	return &scheduler.SwitchSetting{Position: scheduler.SwitchForced, Mode: modes[n%len(modes)], Reason: fmt.Sprintf("change %d", n), By: "ann"}
}

// throw turns the fleet, as the command does.
func (e *env) throw(c switchwatch.Centre, t *scheduler.SwitchSetting) {
	e.Helper()
	change := store.SwitchChange{Source: "test", By: "ann", Reason: "over"}
	if t != nil {
		change.Reason = t.Reason
	}
	if _, err := switchwatch.Throw(e.ctx, c, t, change, nil); err != nil {
		e.Fatalf("throw: %v", err)
	}
}

// process is a watcher with a switch that keeps what it is told.
type process struct {
	*switchwatch.Watcher

	mu   sync.Mutex
	t    *scheduler.SwitchSetting
	told int
	next chan struct{}
}

// SetFleet implements switchwatch.Switch.
func (p *process) SetFleet(t *scheduler.SwitchSetting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.t = t
	p.told++
	close(p.next)
	p.next = make(chan struct{})
	return nil
}

// obeys waits until the switch is at the setting.
func (p *process) obeys(t *scheduler.SwitchSetting, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		p.mu.Lock()
		now, told, next := p.t, p.told, p.next
		p.mu.Unlock()
		if told > 0 && (now == nil && t == nil || now != nil && t != nil && now.Reason == t.Reason && now.Mode == t.Mode) {
			return nil
		}
		select {
		case <-next:
		case <-timer.C:
			return fmt.Errorf("not obeyed within %v: at %+v, want %+v; status %+v", limit, now, t, p.Status())
		}
	}
}

// start runs a process on a centre until the test ends.
func (e *env) start(c switchwatch.Centre) *process {
	e.Helper()
	p := &process{next: make(chan struct{})}
	var err error
	if p.Watcher, err = switchwatch.New(c, p, &switchwatch.Options{
		Logger: slog.New(slog.DiscardHandler), Check: 400 * time.Millisecond, Timeout: 800 * time.Millisecond,
	}); err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	e.Cleanup(func() {
		cancel()
		<-ended
	})
	return p
}

// await waits for a status.
func (e *env) await(p *process, what string, is func(switchwatch.Status) bool) {
	e.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(stuck); !is(p.Status()); <-poll.C {
		if time.Now().After(end) {
			e.Fatalf("status does not become %s: %+v", what, p.Status())
		}
	}
}

func keeps(e *env) {
	a, b := e.h.Open(e), e.h.Open(e)
	is := func(want string) {
		e.Helper()
		got, err := b.Load(e.ctx)
		e.must(err)
		if string(got) != want || want == "" && got != nil {
			e.Fatalf("loaded %q, want %q", got, want)
		}
	}
	is("")
	e.must(a.Save(e.ctx, nil)) // clearing nothing is no error
	is("")
	for _, value := range []string{`{"reason":"it's \"odd\" ? 100 %"}`, "not even JSON", "größer"} {
		e.must(a.Save(e.ctx, []byte(value)))
		is(value)
		e.must(a.Save(e.ctx, []byte(value)))
		is(value)
	}
	e.must(b.Save(e.ctx, nil))
	is("")
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := a.Load(gone); err == nil {
		e.Error("a caller that is gone is answered")
	}
	if err := a.Save(gone, []byte("x")); err == nil {
		e.Error("a caller that is gone can save")
	}
}

func watches(e *env) {
	a, b := e.h.Open(e), e.h.Open(e)
	e.must(a.Save(e.ctx, []byte("first")))
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	seen := make(chan string, 1000)
	ended := make(chan error, 1)
	go func() { ended <- b.Watch(ctx, func(value []byte) { seen <- string(value) }) }()
	until := func(want string) {
		e.Helper()
		timer := time.NewTimer(stuck)
		defer timer.Stop()
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case err := <-ended:
				e.Fatalf("the watch ended: %v", err)
			case <-timer.C:
				e.Fatalf("the watch does not tell %q", want)
			}
		}
	}
	until("first")
	for _, want := range []string{"second", "", "third", "fourth", ""} {
		e.must(a.Save(e.ctx, []byte(want)))
		until(want)
	}
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			e.Error("a watch whose context ended says that it was well")
		}
	case <-time.After(stuck):
		e.Fatal("a watch does not end with its context")
	}
}

func turns(e *env) {
	thrower := e.h.Open(e)
	all := make([]*process, fleet)
	for i := range all {
		all[i] = e.start(e.h.Open(e))
	}
	for _, p := range all {
		e.must(p.obeys(nil, stuck)) // they have looked
	}
	slowest := time.Duration(0)
	for n := range throws() {
		want := setting(n)
		if n%5 == 4 {
			want = nil
		}
		began := time.Now()
		e.throw(thrower, want)
		for i, p := range all {
			if err := p.obeys(want, stuck); err != nil {
				e.Fatalf("throw %d, process %d: %v", n, i, err)
			}
		}
		took := time.Since(began)
		if slowest = max(slowest, took); took > within {
			e.Errorf("throw %d: the fleet took %v to turn", n, took)
		}
	}
	e.note(figures{e.Name(), throws(), fleet, slowest.Round(100 * time.Microsecond).String()})
}

func last(e *env) {
	thrower, p := e.h.Open(e), e.start(e.h.Open(e))
	e.must(p.obeys(nil, stuck))
	for n := range 20 {
		e.throw(thrower, setting(n))
	}
	e.must(p.obeys(setting(19), within))
}

func late(e *env) {
	e.throw(e.h.Open(e), setting(1))
	c := e.h.Open(e)
	_, err := c.Load(e.ctx) // it is connected
	e.must(err)
	e.must(e.start(c).obeys(setting(1), within))
}

func broken(e *env) {
	thrower, p := e.h.Open(e), e.start(e.h.Open(e))
	e.throw(thrower, setting(1))
	e.must(p.obeys(setting(1), stuck))
	for _, value := range []string{`{"mode":"store-only","reason":"x","by":"y"}`, "{", `{"mod":"store_only","reason":"x","by":"y"}`} {
		e.must(thrower.Save(e.ctx, []byte(value)))
		e.await(p, "refused", func(s switchwatch.Status) bool { return s.Refused != "" && s.Value == value })
		e.must(p.obeys(setting(1), 0))
	}
	e.throw(thrower, setting(2))
	e.must(p.obeys(setting(2), stuck))
	e.await(p, "obeying", func(s switchwatch.Status) bool { return s.Refused == "" })
}

// faulty starts a process behind faults, at a setting.
func faulty(e *env) (thrower switchwatch.Centre, p *process, f Faults) {
	if e.h.Proxied == nil {
		e.Skip("this backend has no connection to put faults on")
	}
	thrower = e.h.Open(e)
	e.throw(thrower, setting(1))
	c, f := e.h.Proxied(e)
	p = e.start(c)
	e.must(p.obeys(setting(1), stuck))
	return thrower, p, f
}

func silence(e *env) {
	thrower, p, f := faulty(e)
	for n := range 2 {
		f.Silence()
		e.await(p, "disconnected", func(s switchwatch.Status) bool { return !s.Connected && s.Error != "" })
		e.throw(thrower, setting(n+2))
		e.must(p.obeys(setting(n+1), 0)) // the last one stays
		f.Heal()
		e.must(p.obeys(setting(n+2), stuck))
		e.await(p, "connected", func(s switchwatch.Status) bool { return s.Connected })
	}
}

func reset(e *env) {
	thrower, p, f := faulty(e)
	for n := range 5 {
		f.Reset()
		e.throw(thrower, setting(n+2))
		e.must(p.obeys(setting(n+2), stuck))
	}
}

func restart(e *env) {
	if e.h.Restart == nil {
		e.Skip("this backend cannot be restarted")
	}
	p := e.start(e.h.Open(e))
	e.throw(e.h.Open(e), setting(1))
	e.must(p.obeys(setting(1), stuck))
	e.h.Restart(e)
	e.must(p.obeys(setting(1), 0))
	e.throw(e.h.Open(e), setting(2))
	e.must(p.obeys(setting(2), stuck))
}
