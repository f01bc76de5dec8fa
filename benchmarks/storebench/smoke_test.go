package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every scenario runs on SQLite with every contender, and what it found is printed
// both ways. The servers' statements are those of package gormstore's tests, but for
// the ones written by hand.
func TestSmoke(t *testing.T) {
	databases := func(_, database string) bool { return database == sqlite || !testing.Short() }
	r, err := measure(t.Context(), t, smoke, databases, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, row := range r.Rows {
		if row.Value.Median <= 0 {
			t.Errorf("nothing measured: %+v", row)
		}
		if row.Ratio != nil && row.Met != nil {
			compared++
		}
	}
	each := 1 + len(calls) + 1
	if want := each * map[bool]int{true: 1, false: len(databaseNames)}[testing.Short()]; compared != want {
		t.Errorf("%d compared, want %d", compared, want)
	}
	var text strings.Builder
	if err := r.print(&text); err != nil {
		t.Fatal(err)
	}
	for _, title := range titles {
		if !strings.Contains(text.String(), title) {
			t.Errorf("no table %q in\n%s", title, text.String())
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestChosen(t *testing.T) {
	for only, want := range map[string][3]bool{ // cycle on sqlite, cycle on mariadb, grown on mariadb
		"":              {true, true, true},
		"mariadb":       {false, true, true},
		"cycle":         {true, true, false},
		"cycle, sqlite": {true, false, false},
	} {
		f := chosen(only)
		if got := [3]bool{f(cycle, sqlite), f(cycle, mariadb), f(grown, mariadb)}; got != want {
			t.Errorf("%q: %v, want %v", only, got, want)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"-wrong"}, {"-rows", "5"}, {"-burst", "5"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}
