package switchwatch_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
	"github.com/solotick/solotick/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet keeps what it is told.
type fleet struct {
	mu      sync.Mutex
	told    []*scheduler.SwitchSetting
	refused string
}

func (f *fleet) FleetRefused(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = reason
}

func (f *fleet) SetFleet(t *scheduler.SwitchSetting) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, t)
	return nil
}

func (f *fleet) last() (*scheduler.SwitchSetting, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.told) == 0 {
		return nil, 0
	}
	return f.told[len(f.told)-1], len(f.told)
}

// centre is one in memory that can be away, or forget to tell.
type centre struct {
	*switchwatchtest.Memory

	mu    sync.Mutex
	away  error
	mute  bool
	loads int
}

func (c *centre) set(away error, mute bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away, c.mute = away, mute
}

func (c *centre) state() (mute bool, away error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute, c.away
}

func (c *centre) Load(ctx context.Context) ([]byte, error) {
	c.mu.Lock()
	c.loads++
	c.mu.Unlock()
	if _, away := c.state(); away != nil {
		return nil, away
	}
	return c.Memory.Load(ctx)
}

func (c *centre) Watch(ctx context.Context, changed func([]byte)) error {
	if _, away := c.state(); away != nil {
		return away
	}
	first := true
	return c.Memory.Watch(ctx, func(value []byte) {
		if mute, _ := c.state(); first || !mute {
			changed(value)
		}
		first = false
	})
}

// A negative pause would be none at all.
func TestNegativeOptionsAreRefused(t *testing.T) {
	for want, o := range map[string]switchwatch.Options{"Check: -1s is negative": {Check: -time.Second}, "Timeout: -1s is negative": {Timeout: -time.Second}} {
		if _, err := switchwatch.New(nil, nil, &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func start(t *testing.T, c switchwatch.Centre, to switchwatch.Switch, log *bytes.Buffer) *switchwatch.Watcher {
	t.Helper()
	w, err := switchwatch.New(c, to, &switchwatch.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return w
}

func value(t *testing.T, mode store.Mode) []byte {
	t.Helper()
	data, err := scheduler.SwitchSetting{Mode: mode, Reason: "r", By: "ann"}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A centre that is away for an hour leaves the setting as it is, is asked at least
// every 5 s and at most some times, and is told of in two lines.
func TestAwayCentre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, f := &centre{Memory: switchwatchtest.NewMemory()}, &fleet{}
		if err := c.Save(t.Context(), value(t, store.ModeStoreOnly)); err != nil {
			t.Fatal(err)
		}
		w := start(t, c, f, &log)
		synctest.Wait()
		if s, n := f.last(); n != 1 || s.Mode != store.ModeStoreOnly || !w.Status().Connected {
			t.Fatalf("%+v after %d, %+v", s, n, w.Status())
		}
		c.set(errors.New("no route"), false)
		time.Sleep(time.Hour)
		if _, n := f.last(); n != 1 {
			t.Errorf("told %d times while the centre was away", n)
		}
		if s := w.Status(); s.Connected || s.Error != "no route" || time.Since(s.Since) < 59*time.Minute {
			t.Errorf("status %+v", s)
		}
		if err := c.Save(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c.set(nil, false)
		time.Sleep(6 * time.Second)
		if s, n := f.last(); n != 2 || s != nil {
			t.Errorf("%+v after %d", s, n)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			t.Errorf("%d lines, want 2:\n%s", lines, log.String())
		}
	})
}

// A watch that forgets to tell is found out by the question beside it.
func TestSilentWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, f := &centre{Memory: switchwatchtest.NewMemory()}, &fleet{}
		start(t, c, f, &log)
		synctest.Wait()
		c.set(nil, true)
		if err := c.Save(t.Context(), value(t, store.ModeLocalMutex)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		if s, _ := f.last(); s == nil || s.Mode != store.ModeLocalMutex {
			t.Errorf("at %+v", s)
		}
	})
}

// A broken value is told once, however often it is read.
func TestBrokenValueIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, f := &centre{Memory: switchwatchtest.NewMemory()}, &fleet{}
		w := start(t, c, f, &log)
		synctest.Wait()
		for range 3 {
			if err := c.Save(t.Context(), []byte(`{"mode":"store-only"}`)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if s := w.Status(); !strings.Contains(s.Refused, "store-only") || !s.Connected {
			t.Errorf("status %+v", s)
		}
		f.mu.Lock()
		if f.refused != w.Status().Refused {
			t.Errorf("the switch shows %q as refused, the watch %q", f.refused, w.Status().Refused)
		}
		f.mu.Unlock()
		if lines := strings.Count(log.String(), "refused"); lines != 1 {
			t.Errorf("told %d times:\n%s", lines, log.String())
		}
		if s, n := f.last(); n != 1 || s != nil {
			t.Errorf("switch at %+v after %d", s, n)
		}
	})
}

// Throw refuses before it touches anything, and tells the audit of what it did.
func TestThrow(t *testing.T) {
	c := switchwatchtest.NewMemory()
	var told []store.SwitchChange
	away := errors.New("store is away")
	audit := func(_ context.Context, change store.SwitchChange) error {
		told = append(told, change)
		return away
	}
	_, err := switchwatch.Throw(t.Context(), c, &scheduler.SwitchSetting{Mode: "store-only", Reason: "r", By: "ann"}, store.SwitchChange{}, audit)
	if got, _ := c.Load(t.Context()); err == nil || got != nil || len(told) > 0 {
		t.Errorf("a broken setting: %v, value %q, audit %+v", err, got, told)
	}
	until := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	setting := scheduler.SwitchSetting{Mode: store.ModeStoreOnly, Reason: "r", By: "ann", Until: until}
	unrecorded, err := switchwatch.Throw(t.Context(), c, &setting, store.SwitchChange{By: "ann", From: "before"}, audit)
	got, _ := c.Load(t.Context())
	if err != nil || !errors.Is(unrecorded, away) || len(told) != 1 {
		t.Fatalf("%v, %v, audit %+v", unrecorded, err, told)
	}
	if d := told[0]; !d.Fleet || d.To != string(got) || d.From != "before" || d.Until.Time() != until {
		t.Errorf("audit %+v of %q", d, got)
	}
	if _, err := switchwatch.Throw(t.Context(), c, nil, store.SwitchChange{By: "ann"}, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := c.Load(t.Context()); got != nil {
		t.Errorf("cleared, and still %q", got)
	}
}
