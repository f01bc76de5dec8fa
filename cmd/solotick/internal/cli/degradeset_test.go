package cli

import (
	"strings"
	"testing"
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
