package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/cmd/solotick/internal/doctor"
	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
)

func siteOf(t *testing.T, text string) *site {
	t.Helper()
	loaded, err := configs.Parse("test.yaml", []byte(text), configs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &site{file: "test.yaml", loaded: loaded}
}

func TestQueueRowsCarryTheFilesPolicies(t *testing.T) {
	s := siteOf(t, `
namespace: shop
jobs:
  - {name: mail, queue: true, exec: ["true"], timeout: 5s, retry: {attempts: 3, base: 1s, max: 1m}, on_crash: indeterminate}
`)
	row, err := newRow("mail", "{}", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.prepareRow(&row); err != nil {
		t.Fatal(err)
	}
	if row.MaxAttempts != 3+crashAttempts || row.Timeout != 5*time.Second || row.OnCrash != store.CrashIndeterminate {
		t.Errorf("%+v", row)
	}
	row.Key.Job = "defined_in_code"
	if err := s.prepareRow(&row); err != nil || row.MaxAttempts != queueAttempts+crashAttempts {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestSchedulesAreReadAsTheSchedulerReadsThem(t *testing.T) {
	s := siteOf(t, `
namespace: shop
scheduler: {timezone: Europe/Berlin}
jobs:
  - {name: a, cron: "0 2 * * *", exec: ["true"]}
  - {name: b, cron: "TZ=Asia/Tokyo 0 2 * * *", exec: ["true"]}
  - {name: c, cron: "0 2 * * *", timezone: UTC, dst: {gap: skip}, exec: ["true"]}
  - {name: d, cron: "@every 1h", spread: true, exec: ["true"]}
  - {name: e, queue: true, exec: ["true"]}
`)
	jobs, err := s.specs()
	if err != nil {
		t.Fatal(err)
	}
	for i, zone := range []string{"Europe/Berlin", "Asia/Tokyo", "UTC"} {
		if got := jobs[i].spec.Zone(); got != zone {
			t.Errorf("%s: zone %s, want %s", jobs[i].name, got, zone)
		}
	}
	spread, err := cronspec.Parse("@every 1h", cronspec.Options{Zone: "Europe/Berlin", Offset: cronspec.SpreadOffset("shop", "d", time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if jobs[3].spec.Hash() != spread.Hash() {
		t.Errorf("d: %s", jobs[3].spec.Marshal())
	}
	if jobs[4].spec != nil {
		t.Errorf("e: %s", jobs[4].spec.Marshal())
	}
}

// What a worker would refuse of its jobs is found before one is started.
func TestJobsThatAWorkerRefusesAreFoundByChecks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "solotick.yaml")
	for jobs, want := range map[string]string{
		`[{name: x, cron: "@daily", exec: ["true"], retry: {attempts: 1500}}]`:                                                                 "jobs[0].retry",
		`[{name: x, cron: "@daily", exec: ["true"], retry: {attempts: 20000000}}]`:                                                             "jobs[0].retry.attempts",
		`[{name: x, cron: "@daily", exec: ["true"], catch_up: {window: 8d}}]`:                                                                  "jobs[0].catch_up.window",
		`[{name: x, cron: "@daily", exec: ["true"], catch_up: {window: 10ms}}]`:                                                                "jobs[0].catch_up.window",
		`[{name: y, queue: true, exec: ["true"]}, {name: x, cron: "@daily", http: {url: "http://x", idempotent: true}, when_store_down: run}]`: "jobs[1].when_store_down",
	} {
		if err := os.WriteFile(file, []byte("namespace: a\nscheduler: {journal: j}\njobs: "+jobs), 0o600); err != nil {
			t.Fatal(err)
		}
		check := newRoot()
		check.SetArgs([]string{"config", "check", file, "-o", "json"})
		out := new(bytes.Buffer)
		check.SetOut(out)
		if err := check.ExecuteContext(t.Context()); err == nil || !strings.Contains(out.String(), `"path": "`+want+`"`) {
			t.Errorf("%s: config check: %v, %s", jobs, err, out)
		}
		if found := diagnose(t.Context(), file); len(found) != 1 || found[0].State != doctor.Problem || !strings.Contains(found[0].Found, want+": ") {
			t.Errorf("%s: doctor: %+v", jobs, found)
		}
	}
}
