package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/admin"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

const token = "canary-0123456789abcdef"

// site is a process with a scheduler and an admin server.
type site struct {
	*testing.T
	url   string
	store *storetest.Faulty
	locks *lockstest.Faulty
	sched *scheduler.Scheduler
	logs  *bytes.Buffer
}

func start(t *testing.T, cfg admin.Config, change ...func(*scheduler.Config)) *site {
	t.Helper()
	return startOn(t, memstore.New(), cfg, change...)
}

func startOn(t *testing.T, st *memstore.Store, cfg admin.Config, change ...func(*scheduler.Config)) *site {
	t.Helper()
	s := &site{T: t, store: storetest.NewFaulty(st), locks: lockstest.NewFaulty(memlock.NewDriver(new(memlock.Space))), logs: new(bytes.Buffer)}
	locker, err := locks.New(s.locks.Driver(), locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := scheduler.Config{Namespace: "test", PollInterval: 100 * time.Millisecond, Lease: time.Second, Degradation: scheduler.Degradation{After: 50 * time.Millisecond, RecoverAfter: 50 * time.Millisecond}}
	for _, set := range change {
		set(&c)
	}
	s.sched, err = scheduler.New(c,
		scheduler.Deps{Store: s.store, Locker: locker, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	nop := func(context.Context, *scheduler.Run) error { return nil }
	if err := s.sched.Add(scheduler.Cron("j", "@every 1s", nop), scheduler.Cron("k", "@daily", nop)); err != nil {
		t.Fatal(err)
	}
	if err := s.sched.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Listen = "127.0.0.1:0"
	server, err := admin.New(cfg, admin.Deps{
		Scheduler: func() *scheduler.Scheduler { return s.sched },
		Metrics:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "solotick_up 1\n") }),
		Logger:    slog.New(slog.NewTextHandler(s.logs, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + server.Addr().String()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx := context.Background()
		if err := server.Stop(ctx); err != nil {
			t.Error(err)
		}
		s.store.Heal()
		s.locks.Heal()
		if err := s.sched.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
		if strings.Contains(s.logs.String(), token) {
			t.Error("the token is in the log")
		}
	})
	return s
}

// call sends a request as a careful operator would; change makes it careless.
func (s *site) call(method, path, body string, change func(*http.Request)) (int, http.Header, string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if method != http.MethodGet {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		_, h, _ := s.call(http.MethodGet, path, "", nil)
		r.Header.Set("If-Match", h.Get("ETag"))
	}
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	if strings.Contains(string(data), token) {
		s.Errorf("the token is in the answer %s", data)
	}
	return resp.StatusCode, resp.Header, string(data)
}

func (s *site) ready() (int, admin.Readiness) {
	s.Helper()
	status, _, body := s.call(http.MethodGet, "/readyz", "", nil)
	var r admin.Readiness
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		s.Fatalf("%v in %s", err, body)
	}
	return status, r
}

// await waits for a state of the readiness, which follows the scheduler's own looks.
func (s *site) await(what string, ok func(int, admin.Readiness) bool) {
	s.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, r := s.ready()
		if ok(status, r) {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			s.Fatalf("%s: still %d %+v", what, status, r)
		}
	}
}

func named(r admin.Readiness, name string) admin.Check {
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	return admin.Check{}
}

func TestReadiness(t *testing.T) {
	s := start(t, admin.Config{})
	s.await("healthy", func(status int, r admin.Readiness) bool {
		return status == 200 && r.Ready && !r.Degraded && len(r.Checks) == 5
	})
	s.locks.Cut()
	s.await("lock backend away, fail_fast", func(status int, r admin.Readiness) bool {
		return status == 503 && r.Degraded && !named(r, "coordinator").OK && !named(r, "mode").OK && named(r, "store").OK
	})
	set := func(sw scheduler.SwitchPosition) {
		t.Helper()
		if err := s.sched.SetDegradation(scheduler.Degradation{Switch: sw, Mode: store.ModeStoreOnly, After: 50 * time.Millisecond, RecoverAfter: 50 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	set(scheduler.SwitchOff)
	s.await("lock backend away, switch off", func(status int, r admin.Readiness) bool {
		return status == 503 && !r.Degraded && strings.Contains(named(r, "mode").Detail, "the switch is off")
	})
	set(scheduler.SwitchAuto)
	s.await("lock backend away, store_only", func(status int, r admin.Readiness) bool {
		return status == 200 && r.Degraded && named(r, "coordinator").OK && named(r, "coordinator").Detail != "ok"
	})
	s.locks.Heal()
	s.await("lock backend back", func(status int, r admin.Readiness) bool { return status == 200 && !r.Degraded })
	s.store.Arm(storetest.Fault{Err: store.ErrUnavailable, Times: 1 << 30})
	s.await("store away", func(status int, r admin.Readiness) bool { return status == 503 && !named(r, "store").OK })
	s.store.Heal()
	s.await("store back", func(status int, r admin.Readiness) bool { return status == 200 })
	if status, _, body := s.call("GET", "/healthz", "", nil); status != 200 || !strings.Contains(body, `"ok": true`) {
		t.Errorf("healthz: %d %s", status, body)
	}
	if status, _, body := s.call("GET", "/metrics", "", nil); status != 200 || body != "solotick_up 1\n" {
		t.Errorf("metrics: %d %s", status, body)
	}
}

func TestSwitchIsThrown(t *testing.T) {
	s := start(t, admin.Config{Token: secret.New(token)})
	const set = `{"position":"forced","mode":"store_only","jobs":{"k":"fail_fast"},"reason":"drill","by":"somebody","for":"30m"}`
	status, h, body := s.call("PUT", "/api/v1/switch", set, nil)
	if status != 200 || h.Get("ETag") == "" {
		t.Fatalf("%d %s", status, body)
	}
	st := s.sched.Switch().Status()
	if p := st.Process; p == nil || p.Mode != store.ModeStoreOnly || p.By != "somebody" || time.Until(p.Until) > 30*time.Minute || time.Until(p.Until) < 29*time.Minute {
		t.Errorf("set: %+v", p)
	}
	var got scheduler.SwitchStatus
	if err := json.Unmarshal([]byte(body), &got); err != nil || !got.Degraded || got.Jobs["j"] != store.ModeStoreOnly || got.Jobs["k"] != store.ModeFailFast {
		t.Errorf("answer: %v, %s", err, body)
	}
	if status, _, body = s.call("DELETE", "/api/v1/switch", `{"reason":"over","by":"somebody"}`, nil); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if st := s.sched.Switch().Status(); st.Process != nil || st.Degraded {
		t.Errorf("not cleared: %+v", st)
	}
	for _, match := range []func(seen string) string{
		func(string) string { return "*" },
		func(seen string) string { return `"0", ` + seen },
	} {
		status, _, body := s.call("PUT", "/api/v1/switch", set, func(r *http.Request) {
			r.Header.Set("If-Match", match(r.Header.Get("If-Match")))
		})
		if status != 200 {
			t.Errorf("If-Match: %s: %d %s", match("<the tag>"), status, body)
		}
	}
}

// TestRefusedSettingIsShown: what the configuration centre has and nobody obeys stands
// where operators look.
func TestRefusedSettingIsShown(t *testing.T) {
	s := start(t, admin.Config{})
	bad := &scheduler.SwitchSetting{Mode: "guess", Reason: "drill", By: "somebody"}
	if s.sched.Switch().SetFleet(bad) == nil {
		t.Fatal("a broken setting was taken")
	}
	_, _, body := s.call("GET", "/api/v1/switch", "", nil)
	_, r := s.ready()
	if detail := named(r, "mode").Detail; !strings.Contains(body, `"fleet_refused": "`) || !strings.Contains(detail, "guess") {
		t.Errorf("%s\n%s", detail, body)
	}
	if err := s.sched.Switch().SetFleet(nil); err != nil {
		t.Fatal(err)
	}
	if _, _, body := s.call("GET", "/api/v1/switch", "", nil); strings.Contains(body, "refused") {
		t.Error(body)
	}
}

// TestChangesAreRefused goes through everything that is wrong with a request; none of
// them changes anything.
func TestChangesAreRefused(t *testing.T) {
	s := start(t, admin.Config{Token: secret.New(token)})
	const good = `{"mode":"store_only","reason":"drill","by":"somebody","for":"30m"}`
	for _, c := range []struct {
		name   string
		body   string
		status int
		says   string
		change func(*http.Request)
	}{
		{"no token", good, 401, "Bearer", func(r *http.Request) { r.Header.Del("Authorization") }},
		{"wrong token", good, 401, "Bearer", func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }},
		{"not seen", good, 428, "If-Match", func(r *http.Request) { r.Header.Del("If-Match") }},
		{"seen long ago", good, 412, "read it again", func(r *http.Request) { r.Header.Set("If-Match", `"0"`) }},
		{"a form", good, 415, "application/json", func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }},
		{"another site", good, 403, "another site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		{"no JSON", "mode=store_only", 400, "the body", nil},
		{"no body", "", 400, "is empty: write one JSON object such as", nil},
		{"no time", `{"mode":"store_only","reason":"r","by":"b","until":"tomorrow"}`, 400, "write one JSON object such as", nil},
		{"two objects", good + good, 400, "more behind", nil},
		{"unknown key", `{"modus":"store_only"}`, 400, "modus", nil},
		{"too large", `{"reason":"` + strings.Repeat("x", 70<<10) + `"}`, 413, "larger", nil},
		{"unknown mode", `{"mode":"guess","reason":"r","by":"b","for":"1m"}`, 422, "none of fail_fast", nil},
		{"unknown job", `{"jobs":{"x":"store_only"},"reason":"r","by":"b","for":"1m"}`, 422, "no job of that name", nil},
		{"no reason", `{"mode":"store_only","by":"b","for":"1m"}`, 422, "reason", nil},
		{"no expiry", `{"mode":"store_only","reason":"r","by":"b"}`, 422, "no_expiry", nil},
		{"two expiries", `{"mode":"store_only","reason":"r","by":"b","for":"1m","until":"2100-01-01T00:00:00Z"}`, 422, "beside until", nil},
		{"past", `{"mode":"store_only","reason":"r","by":"b","until":"2000-01-01T00:00:00Z"}`, 422, "is over", nil},
		{"days", `{"mode":"store_only","reason":"r","by":"b","for":"2d"}`, 422, "is no duration: write it as 30m or 48h", nil},
		{"backwards", `{"mode":"store_only","reason":"r","by":"b","for":"-1m"}`, 422, "for:", nil},
	} {
		status, h, body := s.call("PUT", "/api/v1/switch", c.body, c.change)
		if status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s, want %d and something about %q", c.name, status, body, c.status, c.says)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: headers %v", c.name, h)
		}
	}
	if st := s.sched.Switch().Status(); st.Process != nil {
		t.Errorf("the switch was changed: %+v", st.Process)
	}
	open := start(t, admin.Config{})
	if status, _, body := open.call("PUT", "/api/v1/switch", good, nil); status != 403 || !strings.Contains(body, "admin.token") {
		t.Errorf("without a token: %d %s", status, body)
	}
}

// The name of the scheme has no case: RFC 9110, 11.1.
func TestBearerMayBeWrittenSmall(t *testing.T) {
	s := start(t, admin.Config{Token: secret.New(token)})
	status, _, body := s.call("PUT", "/api/v1/switch", `{"mode":"store_only","reason":"drill","by":"somebody","for":"30m"}`,
		func(r *http.Request) { r.Header.Set("Authorization", "bearer "+token) })
	if status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// TestSlowClientKeepsNobodyWaiting: whose request has not arrived is not before others.
func TestSlowClientKeepsNobodyWaiting(t *testing.T) {
	s := start(t, admin.Config{Token: secret.New(token)})
	const change = `{"mode":"store_only","reason":"drill","by":"somebody","for":"30m"}`
	slow, begun := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/api/v1/switch", slow)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer " + token, "If-Match": "*", "Expect": "100-continue",
	} {
		r.Header.Set(name, value)
	}
	answered := make(chan int, 1)
	go func() {
		resp, err := (&http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		defer resp.Body.Close()
		answered <- resp.StatusCode
	}()
	// The server asks for the body when the handler does, and only then is this read.
	if _, err := io.WriteString(begun, change[:5]); err != nil {
		t.Fatal(err)
	}
	fast, cancel := context.WithTimeout(t.Context(), 5*time.Second) // less than the server gives a request
	defer cancel()
	if status, _, body := s.call("PUT", "/api/v1/switch", change, func(r *http.Request) { *r = *r.WithContext(fast) }); status != 200 {
		t.Errorf("beside a slow one: %d %s", status, body)
	}
	if _, err := io.WriteString(begun, change[5:]); err != nil {
		t.Fatal(err)
	}
	_ = begun.Close()
	if status := <-answered; status != 200 {
		t.Errorf("the slow one: %d", status)
	}
}

func TestConfigIsRefused(t *testing.T) {
	dir := t.TempDir()
	for want, cfg := range map[string]admin.Config{
		"write it as host:port":                   {Listen: "9464"},
		"127.0.0.1:9464":                          {Listen: "127.0.0.1:port"},
		`"0.0.0.0:9464" can be reached`:           {Listen: "0.0.0.0:9464"},
		`":9464" can be reached`:                  {Listen: ":9464", Token: secret.New(token)},
		"shorter than 16 bytes":                   {Listen: "127.0.0.1:9464", Token: secret.New("short")},
		"goes together with":                      {Listen: "127.0.0.1:9464", CertFile: "c"},
		"admin: cert_file, key_file: open " + dir: {Listen: "127.0.0.1:9464", CertFile: filepath.Join(dir, "c"), KeyFile: filepath.Join(dir, "k")},
		"is empty":                                {},
	} {
		_, err := admin.New(cfg, admin.Deps{Scheduler: func() *scheduler.Scheduler { return nil }})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something about %q", err, want)
		}
	}
	for _, cfg := range []admin.Config{{Listen: "127.0.0.1:0"}, {Listen: "[::1]:0"}, {Listen: "localhost:0"}, {Listen: "0.0.0.0:0", Insecure: true}} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestHandlerIgnoresListen: on somebody else's server the address says nothing of who can
// reach the handler.
func TestHandlerIgnoresListen(t *testing.T) {
	for _, listen := range []string{"", "127.0.0.1:9464", "no address"} {
		h, err := admin.Handler(admin.Config{Listen: listen, Token: secret.New(token)}, admin.Deps{Scheduler: func() *scheduler.Scheduler { return nil }})
		if err != nil {
			t.Errorf("%q: %v", listen, err)
			continue
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/switch", nil))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%q: %d %s", listen, w.Code, w.Body)
		}
	}
}

// TestForIsCountedByTheStoresClock: that is the clock which ends a setting.
func TestForIsCountedByTheStoresClock(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, -time.Hour} {
		clock := func() time.Time { return time.Now().Add(ahead) }
		s := startOn(t, memstore.New(memstore.WithClock(clock)), admin.Config{Token: secret.New(token)})
		s.await("the store's clock", func(_ int, r admin.Readiness) bool { return strings.Contains(named(r, "clock").Detail, "m0s") })
		status, _, body := s.call("PUT", "/api/v1/switch", `{"mode":"store_only","reason":"drill","by":"somebody","for":"5m"}`, nil)
		if status != 200 {
			t.Errorf("the store is %v ahead: %d %s", ahead, status, body)
			continue
		}
		if left := s.sched.Switch().Status().Process.Until.Sub(clock()); left > 5*time.Minute+time.Second || left < 4*time.Minute {
			t.Errorf("the store is %v ahead: 5m end %v from now", ahead, left)
		}
	}
}

// TestBeforeThereIsAScheduler: a process that waits for its servers says so.
func TestBeforeThereIsAScheduler(t *testing.T) {
	h, err := admin.Handler(admin.Config{}, admin.Deps{Scheduler: func() *scheduler.Scheduler { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/api/v1/switch": 503, "/metrics": 404} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}

func TestClockIsToldAsPeopleSayIt(t *testing.T) {
	s := start(t, admin.Config{}, func(cfg *scheduler.Config) { cfg.ClockOffset = -3 * time.Second })
	s.await("clock behind", func(_ int, r admin.Readiness) bool {
		said := named(r, "clock")
		return said.OK && strings.Contains(said.Detail, "s behind the store's, corrected: set this host's clock right") && !strings.HasPrefix(said.Detail, "-")
	})
}
