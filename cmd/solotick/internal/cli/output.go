package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/store"
)

// choice is a flag with a closed set of values.
type choice struct {
	value   string
	allowed []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.allowed, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("%q is none of %s", s, strings.Join(c.allowed, ", "))
	}
	c.value = s
	return nil
}

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command) *choice {
	c := &choice{value: "table", allowed: []string{"table", "json"}}
	cmd.Flags().VarP(c, "output", "o", "how to print")
	complete(cmd, "output", c.allowed...)
	return c
}

// complete offers the values to the shell.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist: a mistake in this package
	}
}

// printJSON writes v for programs: indented, without HTML escapes.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printTable writes rows under a heading. An empty cell shows as a dash, so that
// columns stay countable.
func printTable(w io.Writer, heading []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heading, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = printable(cell); cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// printable quotes what a terminal would obey instead of showing: escapes, line ends
// and what is not UTF-8. Keys and error texts come from anybody.
func printable(s string) string {
	hidden := func(r rune) bool { return !strconv.IsPrint(r) }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
		return strconv.Quote(s)
	}
	return s
}

// rfc3339 shows an instant in UTC, with milliseconds only where there are any.
func rfc3339(t time.Time) string {
	t = t.UTC()
	if t.Nanosecond() == 0 {
		return t.Format(time.RFC3339)
	}
	return t.Format("2006-01-02T15:04:05.000Z07:00")
}

// instant shows a stored instant; the zero one is empty.
func instant(m store.Millis) string {
	if m == 0 {
		return ""
	}
	return rfc3339(m.Time())
}

// parseInstant reads a point in time: RFC 3339, a date, a date with a time of
// day, "now", or a duration relative to now such as -2h or +15m. What has no
// offset of its own is read in loc.
func parseInstant(flag, s string, now time.Time, loc *time.Location) (time.Time, error) {
	if s == "now" {
		return now, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, loc); err == nil {
			return t, nil
		}
	}
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		if d, err := time.ParseDuration(s); err == nil {
			return now.Add(d), nil
		}
	}
	return time.Time{}, usagef("%s: %q is not a time: write it like 2026-03-29T01:30:00Z, 2026-03-29, now, or relative to now like -2h or +15m", flag, s)
}
