//go:build unix

package configs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

// TestJobsOfAFileRun follows queue jobs of a file from YAML to their records.
func TestJobsOfAFileRun(t *testing.T) {
	var asked atomic.Int32
	keys := make(chan string, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Idempotency-Key")
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "thanks")
	}))
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer srv.Close()

	l := parse(t, strings.ReplaceAll(`namespace: test
scheduler: {poll_interval: 100ms}
jobs:
- {name: echo, queue: true, exec: [cat]}
- {name: perm, queue: true, retry: {attempts: 5, base: 10ms}, exec: {command: [sh, -c, exit 64], permanent_codes: [64]}}
- {name: temp, queue: true, retry: {attempts: 5, base: 10ms}, exec: [sh, -c, 'test $SOLOTICK_ATTEMPT = 2 || exit 75; echo $SOLOTICK_NAMESPACE/$SOLOTICK_JOB']}
- {name: hook, queue: true, retry: {attempts: 5, base: 10ms}, http: URL}
- {name: slow, queue: true, retry: {attempts: 1}, timeout: 50ms, exec: [sleep, "60"]}
`, "URL", srv.URL))
	jobs, err := l.BuildJobs(configs.Kinds{})
	if err != nil {
		t.Fatal(err)
	}
	st := memstore.New()
	ended := make(chan store.ID, len(jobs))
	s, err := scheduler.New(l.SchedulerConfig(), scheduler.Deps{Store: st, Listeners: []scheduler.Listener{scheduler.ListenerFunc(func(e scheduler.Event) {
		if f, ok := e.(scheduler.RunFinished); ok && f.State != store.StatePending {
			ended <- f.Execution.ID
		}
	})}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(jobs...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, j := range l.Jobs {
		if _, err := st.Enqueue(t.Context(), "test", []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: j.Name, Name: "k"}, Args: []byte(`{"n":1}`)}}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for range jobs {
		e, err := st.Get(t.Context(), "test", <-ended)
		if err != nil {
			t.Fatal(err)
		}
		got[e.Key.Job] = fmt.Sprintf("%v after %d: %s%s", e.State, e.Attempt, strings.TrimSpace(string(e.Result)), e.ErrorCode)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for job, want := range map[string]string{
		"echo": `succeeded after 1: {"n":1}`,
		"perm": "failed after 1: exit:64",
		"temp": "succeeded after 2: test/temp",
		"hook": "succeeded after 2: thanks",
		"slow": "failed after 1: timeout",
	} {
		if got[job] != want {
			t.Errorf("%s: got %q, want %q", job, got[job], want)
		}
	}
	if first, second := <-keys, <-keys; first != second || len(first) != 32 {
		t.Errorf("idempotency keys %q and %q", first, second)
	}
}
