package httppost_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent/httppost"
	"github.com/solotick/solotick/idempotent/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a server, and a publisher to it.
func receiver(t *testing.T, handle http.HandlerFunc, set func(c *httppost.Config)) (*httptest.Server, *httppost.Publisher) {
	t.Helper()
	server := httptest.NewServer(handle)
	wire := &http.Transport{}
	t.Cleanup(func() {
		wire.CloseIdleConnections()
		server.Close()
	})
	cfg := httppost.Config{URL: secret.New(server.URL + "/hook/" + canary)}
	if set != nil {
		set(&cfg)
	}
	p, err := httppost.New(cfg, httppost.Deps{Transport: wire})
	if err != nil {
		t.Fatal(err)
	}
	return server, p
}

const canary = "kanarienvogel-4711"

func TestMessageBecomesAPost(t *testing.T) {
	type request struct {
		path, body string
		header     http.Header
	}
	var mu sync.Mutex
	got := map[string]request{}
	server, p := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost {
			t.Error(r.Method, err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[r.Header.Get("Idempotency-Key")] = request{r.URL.Path, string(body), r.Header}
		w.WriteHeader(http.StatusAccepted)
	}, nil)
	p2, err := httppost.New(httppost.Config{
		URL: secret.New(server.URL + "/a"), Topics: map[string]secret.Value{"mails": secret.New(server.URL + "/b")},
		Headers: map[string]secret.Value{"Authorization": secret.New("Bearer " + canary)}, ContentType: "application/json",
	}, httppost.Deps{Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	errs := p2.Publish(t.Context(), []message.Message{
		{ID: "1", Topic: "orders", Key: "a/ü", Payload: []byte(`{"a":1}`), Headers: map[string]string{"Trace-Id": "x", "Authorization": "of the message"}},
		{ID: "2", Topic: "mails", Headers: map[string]string{"Content-Type": "text/plain"}},
		{ID: "3", Topic: "mails", Headers: map[string]string{"Idempotency-Key": "another"}},
	})
	if errs[0] != nil || errs[1] != nil || errs[2] == nil || errors.Is(errs[2], message.ErrUnavailable) {
		t.Errorf("%v", errs)
	}
	if err := errors.Join(p.Publish(t.Context(), []message.Message{{ID: "4", Topic: "x"}})...); err != nil {
		t.Error(err)
	}
	if len(got) != 3 {
		t.Errorf("%d requests", len(got))
	}
	for id, want := range map[string]map[string]string{
		"1": {"": "/a", "Solotick-Topic": "orders", "Solotick-Key": "a%2F%C3%BC", "Trace-Id": "x", "Authorization": "Bearer " + canary, "Content-Type": "application/json"},
		"2": {"": "/b", "Solotick-Topic": "mails", "Solotick-Key": "", "Content-Type": "text/plain"},
		"4": {"": "/hook/" + canary, "Content-Type": "application/octet-stream"},
	} {
		for name, value := range want {
			has := got[id].path
			if name != "" {
				has = got[id].header.Get(name)
			}
			if has != value {
				t.Errorf("message %s: %q is %q, want %q", id, name, has, value)
			}
		}
	}
	if got["1"].body != `{"a":1}` || got["2"].body != "" {
		t.Errorf("bodies %q, %q", got["1"].body, got["2"].body)
	}
}

func TestAnswersTellWhoseFaultItIs(t *testing.T) {
	var calls atomic.Int64
	server, p := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		var status int
		if _, err := fmt.Sscan(r.Header.Get("Status"), &status); err != nil {
			t.Error(err)
		}
		if r.Header.Get("Retry") != "" {
			w.Header().Set("Retry-After", "1")
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, canary)
	}, nil)
	for _, c := range []struct {
		status           int
		retry            string
		sent, notAnswers bool
	}{
		{200, "", true, false},
		{204, "", true, false},
		{302, "", false, false},
		{307, "", false, false},
		{400, "", false, false},
		{404, "", false, false},
		{409, "", false, false},
		{409, "1", false, true},
		{422, "", false, false},
		{429, "", false, true},
		{500, "", false, false},
		{502, "", false, true},
		{503, "", false, true},
		{504, "", false, true},
	} {
		calls.Store(0)
		err := p.Publish(t.Context(), []message.Message{{ID: "1", Topic: "t", Headers: map[string]string{"Status": fmt.Sprint(c.status), "Retry": c.retry}}})[0]
		if (err == nil) != c.sent || errors.Is(err, message.ErrUnavailable) != c.notAnswers || calls.Load() != 1 {
			t.Errorf("%d (retry %q): %v after %d requests", c.status, c.retry, err, calls.Load())
		}
		var status *httppost.StatusError
		if err != nil && (!errors.As(err, &status) || status.Status != c.status || !strings.Contains(err.Error(), server.URL) || strings.Contains(err.Error(), canary)) {
			t.Errorf("%d: %v", c.status, err)
		}
	}
}

func TestNoAnswerIsUnavailable(t *testing.T) {
	stop := make(chan struct{})
	server, p := receiver(t, func(http.ResponseWriter, *http.Request) { <-stop }, func(c *httppost.Config) { c.Timeout = 50 * time.Millisecond })
	both := []message.Message{{ID: "1", Topic: "t"}, {ID: "2", Topic: "t"}}
	check := func(what string, errs []error) {
		t.Helper()
		for _, err := range errs {
			if !errors.Is(err, message.ErrUnavailable) || strings.Contains(err.Error(), canary) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	check("no answer", p.Publish(t.Context(), both))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check("ctx ended", p.Publish(ctx, both))
	close(stop)
	server.CloseClientConnections()
	server.Listener.Close()
	check("no server", p.Publish(t.Context(), both))
}

// A connection that is lost under a request is not a second request.
func TestLostConnectionIsNotRepeated(t *testing.T) {
	var calls atomic.Int64
	_, p := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) > 1 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close()
		}
	}, nil)
	if err := p.Publish(t.Context(), []message.Message{{ID: "1", Topic: "t"}})[0]; err != nil {
		t.Fatal(err)
	}
	err := p.Publish(t.Context(), []message.Message{{ID: "2", Topic: "t", Payload: []byte("x")}})[0]
	if !errors.Is(err, message.ErrUnavailable) || calls.Load() != 2 {
		t.Errorf("%v after %d requests", err, calls.Load())
	}
}

func TestConfigIsChecked(t *testing.T) {
	url := secret.New("https://example.org/" + canary)
	for want, cfg := range map[string]httppost.Config{
		"URL is empty":            {},
		"URL is no URL":           {URL: secret.New("ftp://" + canary)},
		"fragment":                {URL: secret.New("https://example.org/#" + canary)},
		"that of \"a\" is no URL": {Topics: map[string]secret.Value{"a": secret.New(canary)}},
		"Headers: \"a b\"":        {URL: url, Headers: map[string]secret.Value{"a b": secret.New(canary)}},
		"set by the publisher":    {URL: url, Headers: map[string]secret.Value{"idempotency-key": secret.New(canary)}},
		"line break":              {URL: url, Headers: map[string]secret.Value{"a": secret.New(canary + "\n")}},
		"Timeout":                 {URL: url, Timeout: -1},
		"in plain text":           {URL: secret.New("http://example.org/" + canary)},
	} {
		_, err := httppost.New(cfg, httppost.Deps{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprintf("%v %+v", err, cfg), canary) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p, err := httppost.New(httppost.Config{Topics: map[string]secret.Value{"a": url}}, httppost.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), []message.Message{{ID: "1", Topic: "b"}})[0]; err == nil || errors.Is(err, message.ErrUnavailable) {
		t.Errorf("a topic without a URL: %v", err)
	}
}
