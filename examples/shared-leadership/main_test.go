package main

import (
	"bytes"
	"regexp"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJobsAreShared(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^(replica [012] leads \d+ of 30 jobs\n){3}replica 0 stops\n(replica [12] leads \d+ of 30 jobs\n){2}$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("it printed:\n%s", &out)
	}
}
