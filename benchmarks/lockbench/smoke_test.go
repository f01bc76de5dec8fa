package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every scenario runs on every backend with every contender, and what it found is
// printed in every way.
func TestSmoke(t *testing.T) {
	r, err := measureOn(t.Context(), t, smoke, chosen(""), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, row := range r.Rows {
		seen[row.Scenario+" "+row.Backend+" "+row.Contender] = true
		if row.Value.Median == 0 && row.Scenario != memory {
			t.Errorf("nothing measured: %+v", row)
		}
		if row.ours && row.Scenario == cycle && (row.Ratio == nil || row.Met == nil || row.Requests == 0) {
			t.Errorf("not compared: %+v", row)
		}
	}
	for _, b := range backends {
		for _, c := range b.contenders {
			for _, s := range []string{cycle, handOver, memory} {
				if c.takesPart(s) && !(c.bare && s == memory) && !seen[s+" "+b.name+" "+c.name] {
					t.Errorf("%s on %s: %s did not take part", s, b.name, c.name)
				}
			}
		}
	}
	for _, markdown := range []bool{false, true} {
		var text strings.Builder
		if err := r.print(&text, markdown); err != nil {
			t.Fatal(err)
		}
		for _, title := range titles {
			if !strings.Contains(text.String(), title) {
				t.Errorf("no table %q in\n%s", title, text.String())
			}
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestMarkdown(t *testing.T) {
	met := false
	rows := []row{
		{Scenario: memory, Backend: "redis", Contender: "bare", Unit: "bytes"},
		{Scenario: memory, Backend: "redis", Contender: "ours", Unit: "bytes", Value: spread{Median: 1200}, Wanted: "<= 1024", Met: &met},
	}
	var text strings.Builder
	if err := (report{Rows: rows}).print(&text, true); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(text.String(), "\n\n### ")
	want := titles[memory] + " (bytes)\n\n| backend | contender | bytes | goroutines | wanted |\n|---|---|---|---|---|\n" +
		"| redis | bare | 0.0 | 0.00 |  |\n| redis | ours | 1200 | 0.00 | <= 1024: MISSED |\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSpread(t *testing.T) {
	if got, want := spreadOf([]float64{5, 1, 4, 2, 3}), (spread{3, 2, 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestChosen(t *testing.T) {
	for only, want := range map[string][3]bool{ // cycle on redis, cycle on etcd, memory on etcd
		"":             {true, true, true},
		"etcd":         {false, true, true},
		"cycle":        {true, true, false},
		"cycle, redis": {true, false, false},
	} {
		f := chosen(only)
		if got := [3]bool{f(cycle, "redis"), f(cycle, "etcd"), f(memory, "etcd")}; got != want {
			t.Errorf("%q: %v, want %v", only, got, want)
		}
	}
}

func TestWrongFlag(t *testing.T) {
	if err := run(t.Context(), []string{"-wrong"}, io.Discard, io.Discard); err == nil {
		t.Error("a wrong flag was taken")
	}
}
