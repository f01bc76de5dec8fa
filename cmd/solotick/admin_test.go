//go:build linux

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// adminCanary is in every place of the file that may hold a secret.
const adminCanary = "canary-4711-canary-4711"

// get is a request to a worker, as curl would send it.
func get(t *testing.T, method, url, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true // no connection is kept beyond the test
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// TestWorkerShowsItself starts a worker with an admin listener, reads everything there
// is to read, throws its switch, and looks for its secrets in all of that.
func TestWorkerShowsItself(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != adminCanary {
			t.Error("the job's secret did not arrive")
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer target.Close()
	dir := t.TempDir()
	writeFile(t, dir, "token", adminCanary)
	config := writeFile(t, dir, "solotick.yaml", strings.ReplaceAll(`namespace: test
scheduler: {lease: 1s, poll_interval: 100ms}
log: {level: debug}
admin: {listen: "127.0.0.1:0", token_file: token}
jobs:
  - {name: tick, cron: "@every 1s", exec: {command: ["sh", "-c", "echo $TOKEN | cut -c1-6; echo ran $SOLOTICK_MODE >>ticks"], env: {TOKEN: CANARY}}}
  - {name: call, cron: "@every 1s", http: {url: "`+target.URL+`/?key=CANARY", headers: {Authorization: CANARY}, body: CANARY}}
`, "CANARY", adminCanary))
	w := start(t, dir, "run", "-c", config)
	line := w.stderr.await(t, "admin server listens")
	_, addr, _ := strings.Cut(line, "address=")
	url := "http://" + strings.TrimSpace(addr)
	awaitFile(t, filepath.Join(dir, "ticks"), 2)

	seen := ""
	for path, want := range map[string]string{
		"/healthz":       `"ok": true`,
		"/readyz":        `"ready": true`,
		"/metrics":       `solotick_runs_total{job="tick",result="success"}`,
		"/api/v1/switch": `"position": "auto"`,
	} {
		status, _, body := get(t, http.MethodGet, url+path, "", nil)
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
		seen += body
	}
	_, h, _ := get(t, http.MethodGet, url+"/api/v1/switch", "", nil)
	header := map[string]string{"Content-Type": "application/json", "If-Match": h.Get("ETag"), "Authorization": "Bearer wrong-" + adminCanary}
	const set = `{"position":"forced","mode":"store_only","reason":"drill","by":"somebody","for":"1m"}`
	if status, _, body := get(t, http.MethodPut, url+"/api/v1/switch", set, header); status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d %s", status, body)
	}
	header["Authorization"] = "Bearer " + adminCanary
	status, _, body := get(t, http.MethodPut, url+"/api/v1/switch", set, header)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	seen += body
	w.stderr.await(t, "degradation switch thrown")
	for range waiting(t) {
		if data, err := os.ReadFile(filepath.Join(dir, "ticks")); err == nil && strings.Contains(string(data), "store_only") {
			break
		}
	}
	status, _, body = get(t, http.MethodGet, url+"/readyz", "", nil)
	var ready struct{ Ready, Degraded bool }
	if err := json.Unmarshal([]byte(body), &ready); err != nil || status != http.StatusOK || !ready.Degraded || !ready.Ready {
		t.Errorf("readyz while degraded: %d %s", status, body)
	}
	seen += body + solotick(t, dir, "runs", "-c", config, "-o", "json") + solotick(t, dir, "jobs", "-c", config) + w.stderr.all() + w.stdout.all()
	w.stderr.await(t, "job=call")
	if i := strings.Index(seen, adminCanary); i >= 0 {
		t.Errorf("a secret is shown: …%s…", seen[max(0, i-200):min(len(seen), i+100)])
	}
}
