package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs"
)

// TestSettingsThatContradictThemselves are refused in words that tell what to write.
func TestSettingsThatContradictThemselves(t *testing.T) {
	s := siteOf(t, "namespace: n\njobs:\n  - {name: beat, cron: \"@daily\", exec: [/bin/true]}\n")
	for _, c := range []struct {
		order order
		want  string
	}{
		{order{jobs: []string{"beat=store_only", "beat=fail_fast"}}, "--job beat: is said twice, store_only and fail_fast: give one"},
		{order{jobs: []string{"beat=store_only", "beat=store_only"}}, ""},
		{order{word: "off", position: "forced"}, "--switch: off and forced are two positions"},
		{order{word: "off", lasts: "3"}, "write it as 30m"},
		{order{word: "off", noExpiry: true}, "exclude each other"},
	} {
		c.order.reason, c.order.by = "r", "b"
		if c.order.lasts == "" {
			c.order.lasts = "1m"
		}
		_, _, err := c.order.setting(s)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.order, err, c.want)
		}
	}
}

// A value that is refused leaves the workers that run with what they had, which is not
// what the file says.
func TestRefusedValueIsNotSaidToLeaveTheFileInForce(t *testing.T) {
	d := degradation{value: []byte(`{"position":"forced","mode":"guess","reason":"r","by":"b"}`)}
	d.lay(&configs.Loaded{}, time.Now())
	var text bytes.Buffer
	if err := d.print(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "in workers that start; the others keep what they had") || !strings.Contains(text.String(), "guess") {
		t.Error(text.String())
	}
}
