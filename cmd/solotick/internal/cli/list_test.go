package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
)

func mustParse(t *testing.T, expr string) *cronspec.Spec {
	t.Helper()
	spec, err := cronspec.Parse(expr, cronspec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestJobsShowTheScheduleInForce(t *testing.T) {
	st := memstore.New()
	stored, newer := mustParse(t, "0 2 * * *"), mustParse(t, "0 3 * * *")
	_, err := st.Register(t.Context(), "test", []store.JobSpec{
		{Job: "report", Spec: stored.Marshal(), Hash: stored.Hash()},
		{Job: "old", Spec: stored.Marshal(), Hash: stored.Hash()},
		{Job: "email"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.SetPause(t.Context(), store.Pause{Namespace: "test", Job: "old", By: "me", Reason: "moving"}); err != nil {
		t.Fatal(err)
	}
	known, err := st.Survey(t.Context(), "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := mergeJobs([]fileJob{{name: "report", spec: newer}, {name: "new", spec: newer}, {name: "email"}}, known)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range rows {
		got[r.Name] = r.Kind + " " + r.Schedule + " " + r.status()
	}
	for name, want := range map[string]string{
		"report": "cron 0 2 * * * another schedule is in force",
		"new":    "cron 0 3 * * * never started",
		"old":    "cron 0 2 * * * paused: moving",
		"email":  "queue  ok",
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if rows[0].Name != "email" || rows[3].Name != "report" || rows[3].Next == "" {
		t.Errorf("%+v", rows)
	}
}

func TestRunsJoinRowsAndStretches(t *testing.T) {
	st := memstore.New()
	spec := mustParse(t, "@every 1s")
	reg, err := st.Register(t.Context(), "test", []store.JobSpec{{Job: "pulse", Spec: spec.Marshal(), Hash: spec.Hash()}})
	if err != nil {
		t.Fatal(err)
	}
	from := reg.Jobs[0].Settled
	put, err := st.Enqueue(t.Context(), "test", []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: "email", Name: "k"}}})
	if err != nil || put[0].Outcome != store.OutcomeEnqueued {
		t.Fatal(put, err)
	}
	f := store.Filter{Namespace: "test", Limit: 10}
	rows, _, err := listRuns(t.Context(), st, f)
	if err != nil || len(rows) != 1 || rows[0].Key != "k" || rows[0].State != "pending" || rows[0].Count != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	// A stretch as the sweep would have recorded it.
	r := rowOfRange(store.TickRange{Job: "pulse", From: from, To: from.Add(time.Minute), Count: 61, State: store.StateMissed, Reason: store.ReasonWindow})
	if cells := r.cells(); !strings.HasSuffix(cells[1], "(61 ticks)") || cells[2] != "missed (window)" {
		t.Errorf("%q", cells)
	}
}

func TestRunFilterRefusesNonsense(t *testing.T) {
	for _, bad := range []struct {
		states       []string
		since, until string
		limit        int
		want         string
	}{
		{[]string{"done"}, "", "", 1, `--state: "done" is none of`},
		{nil, "yesterday", "", 1, "--since"},
		{nil, "2026-01-02", "2026-01-01", 1, "--until lies before --since"},
		{nil, "", "", 0, "--limit"},
	} {
		_, err := runFilter(nil, bad.states, bad.since, bad.until, bad.limit)
		if codeOf(err) != exitUsage || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestQueueRowIsChecked(t *testing.T) {
	for _, bad := range []struct{ kind, args, key, want string }{
		{"a b", "{}", "", "KIND"},
		{"email", "{order: 1}", "", "is not JSON at byte 2"},
		{"email", "{}", strings.Repeat("k", 300), "--key has 300 bytes"},
	} {
		if _, err := newRow(bad.kind, bad.args, bad.key); codeOf(err) != exitUsage || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	row, err := newRow("email", "{ \"order\" : 1 }", "")
	if err != nil || string(row.Args) != `{"order":1}` || row.Key.Name != row.ID.String() {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestInstants(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]string{
		"now":                       "2026-03-01T12:00:00Z",
		"-2h":                       "2026-03-01T10:00:00Z",
		"+90s":                      "2026-03-01T12:01:30Z",
		"2026-03-29":                "2026-03-29T00:00:00Z",
		"2026-03-29 01:30":          "2026-03-29T01:30:00Z",
		"2026-03-29T01:30:00+02:00": "2026-03-28T23:30:00Z",
	} {
		got, err := parseInstant("--from", in, now, time.UTC)
		if err != nil || rfc3339(got) != want {
			t.Errorf("%s: %v, %v, want %s", in, got, err, want)
		}
	}
	if got := rfc3339(now.Add(1500 * time.Millisecond)); got != "2026-03-01T12:00:01.500Z" {
		t.Error(got)
	}
}

func TestTableShowsEmptyCells(t *testing.T) {
	var b bytes.Buffer
	if err := printTable(&b, []string{"A", "B"}, [][]string{{"", "x"}}); err != nil || b.String() != "A  B\n-  x\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if got := oneLine("a\nb" + strings.Repeat("c", 100)); len([]rune(got)) != 80 || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
}

func TestTablesShowNothingThatATerminalObeys(t *testing.T) {
	var out bytes.Buffer
	row := []string{"a\x1b[2Jb", "two\nlines", "\xff", "Größe 10 %", ""}
	if err := printTable(&out, []string{"A", "B", "C", "D", "E"}, [][]string{row}); err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(out.String(), "\n")
	if want := `"a\x1b[2Jb"  "two\nlines"  "\xff"  Größe 10 %  -` + "\n"; line != want {
		t.Errorf("got %q, want %q", line, want)
	}
}
