package httpjob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "kanarienvogel4711"

type fakeRun struct {
	tick   time.Time
	args   []byte
	result []byte
}

func (r *fakeRun) Job() string                  { return "ping" }
func (r *fakeRun) Tick() time.Time              { return r.tick }
func (r *fakeRun) Attempt() int                 { return 2 }
func (r *fakeRun) Fence() int64                 { return 77 }
func (r *fakeRun) Args() []byte                 { return r.args }
func (r *fakeRun) Ref() store.Ref               { return store.Ref{Namespace: "shop"} }
func (r *fakeRun) EffectKey(step string) string { return "key-" + step }
func (r *fakeRun) SetResult(b []byte)           { r.result = b }

// serve starts a server and returns a function that sends one request to it.
func serve(t *testing.T, h http.HandlerFunc) (base string, send func(Config, *fakeRun) error) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return srv.URL, func(cfg Config, r *fakeRun) error {
		if cfg.URL.IsZero() {
			cfg.URL = secret.New(srv.URL)
		}
		s, err := newSender(cfg, Deps{Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		return s.run(t.Context(), r)
	}
}

func isPermanent(err error) bool {
	return fmt.Sprintf("%T", err) == fmt.Sprintf("%T", scheduler.Permanent(errors.New("x")))
}

func TestRequestSaysWhatItIsFor(t *testing.T) {
	var got *http.Request
	var body string
	_, send := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		fmt.Fprint(w, "thanks for "+r.Header.Get("Authorization"))
	})
	r := &fakeRun{tick: time.Date(2026, 3, 1, 2, 30, 0, 0, time.FixedZone("x", 3600)), args: []byte(`{"n":1}`)}
	err := send(Config{Headers: map[string]secret.Value{"Authorization": secret.New("Bearer " + canary), "host": secret.New("other.example")}}, r)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": "key-http", "Solotick-Job": "ping", "Solotick-Tick": "2026-03-01T01:30:00Z", "Solotick-Attempt": "2",
		"Solotick-Fence": "77", "Content-Type": "application/json", "Authorization": "Bearer " + canary,
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Header.Get(name), want)
		}
	}
	if got.Method != "POST" || body != `{"n":1}` || got.Host != "other.example" {
		t.Errorf("%s %q %s", got.Method, body, got.Host)
	}
	if string(r.result) != "thanks for [redacted]" {
		t.Errorf("result %q", r.result)
	}
	if err := send(Config{Method: "PUT", Body: secret.New("fixed")}, &fakeRun{args: []byte("x")}); err != nil || body != "fixed" || got.Method != "PUT" || got.Header.Get("Solotick-Tick") != "" {
		t.Errorf("%v, %q, %s", err, body, got.Method)
	}
}

func TestStatus(t *testing.T) {
	status, header := 0, ""
	_, send := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set("Retry-After", header)
		}
		w.WriteHeader(status)
	})
	for _, c := range []struct {
		status        int
		expect        []int
		header        string
		ok, permanent bool
		after         time.Duration
	}{
		{status: 200, ok: true},
		{status: 204, ok: true},
		{status: 204, expect: []int{200}},
		{status: 404, expect: []int{404}, ok: true},
		{status: 301},
		{status: 400, permanent: true},
		{status: 404, permanent: true},
		{status: 422, permanent: true},
		{status: 408},
		{status: 425},
		{status: 429, header: "7", after: 7 * time.Second},
		{status: 500},
		{status: 503, header: "99999", after: time.Hour},
		{status: 503, header: "soon"},
		{status: 503, header: "-3"},
	} {
		status, header = c.status, c.header
		err := send(Config{Expect: c.expect}, &fakeRun{})
		if c.ok {
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		var s *StatusError
		if !errors.As(err, &s) || s.ErrorCode() != fmt.Sprintf("http:%d", c.status) || isPermanent(err) != c.permanent || s.RetryAfter() != c.after {
			t.Errorf("%+v: %v (%T), after %v", c, err, err, s.RetryAfter())
		}
	}
	now := time.Now()
	if d := retryAfter(now.Add(time.Minute).UTC().Format(http.TimeFormat), now); d <= 58*time.Second || d > time.Minute {
		t.Errorf("a date: %v", d)
	}
}

func TestRedirects(t *testing.T) {
	var seen []string
	var base string
	base, send := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.Path)
		switch r.URL.Path {
		case "/same":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/other":
			http.Redirect(w, r, strings.Replace(base, "127.0.0.1", "localhost", 1)+"/end", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		}
	})
	at := func(method, path string) error {
		seen = nil
		return send(Config{Method: method, URL: secret.New(base + path)}, &fakeRun{})
	}
	if err := at("GET", "/same"); err != nil || len(seen) != 2 {
		t.Errorf("GET on one host: %v, %v", err, seen)
	}
	var s *StatusError
	if err := at("POST", "/same"); !errors.As(err, &s) || s.Status != 302 || len(seen) != 1 {
		t.Errorf("POST: %v, %v", err, seen)
	}
	if err := at("GET", "/other"); !errors.Is(err, errRedirect) || !isPermanent(err) || len(seen) != 1 {
		t.Errorf("to another host: %v, %v", err, seen)
	}
	if err := at("GET", "/round"); !errors.Is(err, errRedirect) || len(seen) != maxRedirects+1 {
		t.Errorf("round and round: %v, %v", err, seen)
	}
}

func TestEndsWithTheRunAndTheTimeout(t *testing.T) {
	asked := make(chan struct{}, 1)
	base, send := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	if err := send(Config{Timeout: 20 * time.Millisecond}, &fakeRun{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "20ms") {
		t.Errorf("timeout: %v", err)
	}
	<-asked
	s, err := newSender(Config{URL: secret.New(base)}, Deps{Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- s.run(ctx, &fakeRun{}) }()
	<-asked
	cancel(scheduler.ErrLeaseLost)
	if err := <-returned; !errors.Is(err, scheduler.ErrLeaseLost) {
		t.Errorf("the error does not name the cause: %v", err)
	}
}

func TestNoErrorShowsASecret(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	closed.Close()
	var mode atomic.Value
	mode.Store("")
	base, send := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch mode.Load() {
		case "cut":
			panic(http.ErrAbortHandler)
		case "garbage":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Header.Get("X-Token"), r.URL.Query().Get("key"))
				conn.Close()
			}
		case "redirect":
			w.Header().Set("Location", "http://%zz/"+canary)
			w.WriteHeader(302)
		default:
			w.WriteHeader(500)
			fmt.Fprint(w, r.Header, r.URL)
		}
	})
	secretURL := func(host string) secret.Value {
		return secret.New("http://user:" + canary + "@" + host + "/" + canary + "?key=" + canary)
	}
	host := strings.TrimPrefix(base, "http://")
	check := func(what string, err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cfg := Config{Method: "GET", Headers: map[string]secret.Value{"X-Token": secret.New(canary)}, Timeout: 5 * time.Second}
	for _, m := range []string{"", "cut", "garbage", "redirect"} {
		mode.Store(m)
		cfg.URL = secretURL(host)
		r := &fakeRun{}
		check(m, send(cfg, r))
		if strings.Contains(string(r.result), canary) {
			t.Errorf("%s: result %q", m, r.result)
		}
	}
	for _, host := range []string{dead, "does-not-exist.invalid"} {
		cfg.URL = secretURL(host)
		check(host, send(cfg, &fakeRun{}))
	}
	for _, bad := range []string{"", canary, "ftp://" + canary, "http://", "http://x/%zz" + canary, "http://x/#" + canary, "http://x\n" + canary, "http://[" + canary} {
		check(bad, Config{URL: secret.New(bad)}.Validate())
	}
}

// Each place of a request has a canary of its own, so that none is hidden only because
// another one is.
func TestWhatWasSentComesBackHidden(t *testing.T) {
	canaries := map[string]string{
		"user": "canary-user", "password": "canary-password", "segment": "canary-segment", "escaped": "canary-slash/canary&escaped", "query": "canary query", "key": "canary-flag",
		"header": "canary-header", "token": "canary-token", "host": "canary-host.example",
	}
	bodies := map[string]string{
		"text": "canary-text", "json": `{"a":[{"secret":"canary-\"json\""}],"n":1}`, "form": "a=canary+%26form&b=1",
	}
	var answer func(r *http.Request, body string) string
	base, send := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(404)
		fmt.Fprint(w, answer(r, string(body)))
	})
	ways := map[string]func(*http.Request, string) string{
		"all": func(r *http.Request, body string) string {
			user, password, _ := r.BasicAuth()
			return fmt.Sprint(user, " ", password, " ", r.URL, " ", r.URL.Path, " ", r.URL.Query(), " ", r.Header, " ", r.Host, " ", body)
		},
		"the parts": func(r *http.Request, body string) string {
			user, password, _ := r.BasicAuth()
			_, token, _ := strings.Cut(r.Header.Get("X-Bearer"), " ")
			var doc struct{ A []struct{ Secret string } }
			_ = json.Unmarshal([]byte(body), &doc)
			form, _ := url.ParseQuery(body)
			return fmt.Sprint(user, ",", password, ",", strings.Split(r.URL.Path, "/")[2:], ",", r.URL.Query().Get("key"), ",", r.URL.RawQuery, ",", token, ",", doc.A, ",", form.Get("a"))
		},
		"JSON": func(r *http.Request, body string) string {
			text, _ := json.Marshal([]any{r.Header, r.URL.Path, r.URL.Query(), body})
			return string(text)
		},
		"a page": func(r *http.Request, body string) string {
			return html.EscapeString("Cannot POST " + r.URL.Path + " " + r.URL.RawQuery + " " + r.Header.Get("X-Header") + " " + body)
		},
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(canaries["user"], canaries["password"])
	for what, body := range bodies {
		for way, echo := range ways {
			answer = echo
			cfg := Config{
				URL: secret.New(fmt.Sprintf("http://%s@%s/hooks/%s/%s?key=%s&%s", u.User, u.Host, canaries["segment"], url.PathEscape(canaries["escaped"]), url.QueryEscape(canaries["query"]), canaries["key"])),
				Headers: map[string]secret.Value{
					"X-Header": secret.New(canaries["header"]), "X-Bearer": secret.New("Bearer " + canaries["token"]), "Host": secret.New(canaries["host"]),
				},
				Body: secret.New(body),
			}
			args := []byte(nil)
			if what == "json" { // as the arguments of a queue job
				cfg.Body, args = secret.Value{}, []byte(body)
			}
			r := &fakeRun{args: args}
			if err := send(cfg, r); err == nil || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s, %s: %v", what, way, err)
			}
			if text := string(r.result); !strings.Contains(text, secret.Redacted) || strings.Contains(text, "canary") {
				t.Errorf("%s, %s: the result shows what was sent: %s", what, way, text)
			}
		}
	}
}

func TestNoResultShowsPartOfASecret(t *testing.T) {
	const long = "canary-of-forty-letters-that-may-be-cut-in-two"
	for _, c := range []struct{ name, before string }{
		{"at the end", strings.Repeat(".", maxResult-len(long)/2)},
		{"after one that makes the text shorter", long + strings.Repeat(".", maxResult-len(long)/2)},
		{"behind the end", strings.Repeat(".", maxResult)},
	} {
		_, send := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.before, long, long, long) })
		r := &fakeRun{}
		if err := send(Config{Headers: map[string]secret.Value{"X-Token": secret.New(long)}}, r); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(r.result), "can") || len(r.result) > maxResult || len(r.result) < maxResult-2*len(long) {
			t.Errorf("%s: %d bytes, ending in %q", c.name, len(r.result), r.result[len(r.result)-80:])
		}
	}
	overlapping := secrets{"abcdef", "defghi", "xyxy"}
	for text, want := range map[string]string{
		"1abcdefghi2": "1[redacted]2", "abcdef": "[redacted]", "xyxyxy.": "[redacted].", "abcdefabcdef-": "[redacted]-", "abcde": "abcde", "": "",
	} {
		if got := overlapping.hide(text, 100); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	err := Config{
		URL: secret.New("x"), Method: "get it", Timeout: -1, Expect: []int{99},
		Headers: map[string]secret.Value{"a b": {}, "idempotency-key": secret.New("x"), "X": secret.New("a\nb: " + canary)},
	}.Validate()
	for _, want := range []string{"httpjob: url: ", "httpjob: method: ", `headers: "a b"`, "headers: idempotency-key", "headers: the value of X", "timeout: ", "expect: 99"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("shows a value: %v", err)
	}
	if _, err := New(Config{}, Deps{}); err == nil {
		t.Error("New takes what Validate refuses")
	}
	if h, err := New(Config{URL: secret.New("https://example.org")}, Deps{}); err != nil || h == nil {
		t.Error(err)
	}
}
