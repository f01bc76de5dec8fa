package locks_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
)

func TestConfigDefaults(t *testing.T) {
	l, err := memlock.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	got := l.Config()
	label := got.Label
	got.Label = ""
	want := locks.Config{
		TTL: 10 * time.Second, RenewInterval: 10 * time.Second / 3, Margin: 202 * time.Millisecond,
		RequestTimeout: time.Second, ReleaseTimeout: time.Second, Poll: time.Second, DrainTimeout: time.Minute,
	}
	if got.Observer != nil {
		t.Error("there is an observer")
	}
	if a, b := []any{got.TTL, got.RenewInterval, got.Margin, got.RequestTimeout, got.ReleaseTimeout, got.Poll, got.DrainTimeout},
		[]any{want.TTL, want.RenewInterval, want.Margin, want.RequestTimeout, want.ReleaseTimeout, want.Poll, want.DrainTimeout}; !equal(a, b) {
		t.Errorf("defaults = %v, want %v", a, b)
	}
	if host, pid, ok := strings.Cut(label, ":"); !ok || host == "" || pid == "" {
		t.Errorf("label = %q, want host:pid", label)
	}
	for _, ttl := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, time.Hour} {
		if err := (locks.Config{TTL: ttl}).Validate(); err != nil {
			t.Errorf("TTL %v with defaults: %v", ttl, err)
		}
	}
}

func equal(a, b []any) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestUnsafeConfigIsRefused(t *testing.T) {
	limited := func(l driver.Limits) driver.Driver { return withLimits{memlock.NewDriver(nil), l} }
	for name, c := range map[string]struct {
		d    driver.Driver
		cfg  locks.Config
		says string
	}{
		"no driver":             {nil, locks.Config{}, "driver"},
		"negative":              {limited(driver.Limits{}), locks.Config{Poll: -1}, "poll"},
		"no room for a second":  {limited(driver.Limits{}), locks.Config{TTL: 10 * time.Second, RenewInterval: 5 * time.Second}, "renew_interval"},
		"slow requests":         {limited(driver.Limits{}), locks.Config{TTL: 10 * time.Second, RequestTimeout: 3 * time.Second}, "request_timeout"},
		"wide margin":           {limited(driver.Limits{}), locks.Config{TTL: 10 * time.Second, Margin: 9 * time.Second}, "margin"},
		"tiny TTL":              {limited(driver.Limits{}), locks.Config{TTL: 5 * time.Millisecond}, "ttl"},
		"below the backend":     {limited(driver.Limits{MinTTL: time.Minute}), locks.Config{}, "raise it to 1m0s"},
		"between its steps":     {limited(driver.Limits{Granularity: time.Second}), locks.Config{TTL: 1500 * time.Millisecond}, "make it 2s"},
		"label without measure": {limited(driver.Limits{}), locks.Config{Label: strings.Repeat("x", 300)}, "label"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := locks.New(c.d, c.cfg)
			if l != nil || !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("New = %v, %v; want an error that says %q", l, err, c.says)
			}
		})
	}
}

type withLimits struct {
	driver.Driver
	limits driver.Limits
}

func (w withLimits) Limits() driver.Limits { return w.limits }

func TestBadArgumentsSendNothing(t *testing.T) {
	p := newProcess(t, nil, locks.Config{})
	for name, try := range map[string]func() error{
		"empty key": func() error { _, err := p.TryAcquire(t.Context(), ""); return err },
		"long key":  func() error { _, err := p.Acquire(t.Context(), strings.Repeat("x", 513)); return err },
		"not UTF-8": func() error { _, err := p.TryAcquire(t.Context(), "a\xff"); return err },
		"control":   func() error { _, err := p.TryAcquire(t.Context(), "a\x00b"); return err },
		"tiny TTL":  func() error { _, err := p.TryAcquire(t.Context(), "k", locks.WithTTL(time.Millisecond)); return err },
		"no TTL":    func() error { _, err := p.TryAcquire(t.Context(), "k", locks.WithTTL(-time.Second)); return err },
		"long label": func() error {
			_, err := p.TryAcquire(t.Context(), "k", locks.WithLabel(strings.Repeat("x", 201)))
			return err
		},
		"Do with one": func() error { return p.Do(t.Context(), "", nil) },
	} {
		if err := try(); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("%s: %v, want an invalid-argument error", name, err)
		}
	}
	if n := p.faults.AllCalls(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestKey(t *testing.T) {
	for want, parts := range map[string][]string{
		"lock:shop:cron:report": {"shop", "cron", "report"},
		"lock:a%3Ab:c":          {"a:b", "c"},
		"lock:a:b%3Ac":          {"a", "b:c"},
		"lock:100%25":           {"100%"},
		"lock:a:%:b":            {"a", "", "b"},
		"lock:%":                {""},
		"lock":                  {},
		"lock:a%0Ab%FF":         {"a\nb\xff"},
		"lock:作业 Ü":             {"作业 Ü"},
	} {
		if got := locks.Key(parts...); got != want {
			t.Errorf("Key(%q) = %q, want %q", parts, got, want)
		}
	}
}

// Different parts give different keys, and every key can be locked.
func FuzzKey(f *testing.F) {
	f.Add("a", "b", "c", "d")
	f.Add("a:", "b", "a", ":b")
	f.Add("", "%", "%", "")
	f.Add("%25", "", "%", "25")
	f.Add("a%3A", "b", "a:", "b")
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		one, two := locks.Key(a, b), locks.Key(c, d)
		if (one == two) != (a == c && b == d) {
			t.Errorf("Key(%q, %q) = %q and Key(%q, %q) = %q", a, b, one, c, d, two)
		}
		if one == locks.Key(a) || one == locks.Key(a, b, "") || strings.Count(one, ":") != 2 {
			t.Errorf("Key(%q, %q) = %q has not two parts", a, b, one)
		}
		if !utf8.ValidString(one) || strings.ContainsFunc(one, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("Key(%q, %q) = %q cannot be locked", a, b, one)
		}
	})
}

func TestRegistry(t *testing.T) {
	boom := errors.New("boom")
	broken := locks.Plugin{Name: "broken", Open: func(context.Context, func(any) error) (driver.Driver, error) { return nil, boom }}
	r, err := locks.NewRegistry(memlock.Plugin(nil), broken)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.Names(), " "); got != "broken memory" {
		t.Errorf("Names = %q", got)
	}
	if _, err := r.Open(t.Context(), "redsi", nil); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), "broken, memory") {
		t.Errorf("Open of an unknown name = %v", err)
	}
	if _, err := r.Open(t.Context(), "broken", nil); !errors.Is(err, boom) || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Open of a broken one = %v", err)
	}
	strict := errors.New("unknown field")
	if _, err := r.Open(t.Context(), "memory", func(any) error { return strict }); !errors.Is(err, strict) {
		t.Errorf("Open with a part that does not decode = %v", err)
	}
	for name, ps := range map[string][]locks.Plugin{
		"twice":   {memlock.Plugin(nil), memlock.Plugin(nil)},
		"no name": {{Open: broken.Open}},
		"no Open": {{Name: "x"}},
	} {
		if _, err := locks.NewRegistry(ps...); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("%s: NewRegistry = %v", name, err)
		}
	}
}

func TestInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, nil, locks.Config{Label: "me"})
		lease := p.mustTry(t, locks.Key("a", "1"))
		p.mustTry(t, locks.Key("a", "2"))
		p.mustTry(t, locks.Key("b", "1"))
		h, err := p.Inspect(t.Context(), lease.Key())
		if err != nil || h.Label != "me" || h.Fence != lease.Fence() || h.Token.String() != lease.Token() || !h.Since.Equal(time.Now()) {
			t.Errorf("Inspect = %+v, %v", h, err)
		}
		if hs, err := p.List(t.Context(), "lock:a:", 0); err != nil || len(hs) != 2 {
			t.Errorf("List = %v, %v", hs, err)
		}
		if out, err := p.ForceRelease(t.Context(), lease.Key()); err != nil || out != locks.ReleasedOK {
			t.Errorf("ForceRelease = %v, %v", out, err)
		}
		<-lease.Done()
		wantLost(t, lease.Err(), lease, locks.ReasonNotOurs)
		p.faults.Cut()
		if _, err := p.Inspect(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Inspect of a silent backend = %v", err)
		}
		bare, err := locks.New(&oneByOne{d: memlock.NewDriver(nil)}, locks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bare.Inspect(t.Context(), "k"); !errors.Is(err, locks.ErrUnsupported) {
			t.Errorf("Inspect without an inspector = %v", err)
		}
		_ = bare.Close(t.Context())
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(memlock.Space)
		a, b := newProcess(t, space, locks.Config{}), newProcess(t, space, locks.Config{})
		lease := a.mustTry(t, "k")
		_, _ = a.TryAcquire(t.Context(), "k")
		_, _ = b.TryAcquire(t.Context(), "k")
		time.Sleep(ttl)
		mustRelease(t, lease)
		b.faults.Cut()
		_, _ = b.TryAcquire(t.Context(), "k")
		for name, ok := range map[string]bool{
			"acquired":    len(told[locks.EventAcquired](a)) == 1 && told[locks.EventAcquired](a)[0].Fence == lease.Fence(),
			"held here":   len(told[locks.EventHeld](a)) == 1 && told[locks.EventHeld](a)[0].Local,
			"held there":  len(told[locks.EventHeld](b)) == 1 && !told[locks.EventHeld](b)[0].Local,
			"renewed":     len(told[locks.EventRenewed](a)) >= 2 && told[locks.EventRenewed](a)[0].Leases == 1,
			"released":    len(told[locks.EventReleased](a)) == 1 && told[locks.EventReleased](a)[0].Outcome == locks.ReleasedOK,
			"unknown":     len(told[locks.EventUnknown](b)) == 2,
			"unavailable": len(told[locks.EventUnavailable](b)) == 1,
		} {
			if !ok {
				t.Errorf("events of %s are wrong: a %+v, b %+v", name, a.events, b.events)
			}
		}
	})
}

func TestAHeldLeaseIsSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the heap")
	}
	l, err := locks.New(bare{memlock.NewDriver(nil)}, locks.Config{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	const n = 10_000
	ks := keys(n)
	held := make([]*locks.Lease, n)
	size := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := size()
	for i, k := range ks {
		if held[i], err = l.TryAcquire(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	each := (size() - before) / n
	t.Logf("%d bytes a held lease", each)
	if each > 512 { // the rest of a KiB is the driver's
		t.Errorf("%d bytes a held lease, want at most 512", each)
	}
	runtime.KeepAlive(held)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// bare grants everything and remembers nothing.
type bare struct{ driver.Driver }

func (bare) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{Fence: 1}, nil
}

func (bare) Release(context.Context, driver.Hold) (driver.Released, error) {
	return driver.ReleasedOK, nil
}
