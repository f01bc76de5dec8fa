package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/solotick/solotick/internal/bench"
)

// row is one line of a table.
type row struct {
	Scenario  string        `json:"scenario"`
	Database  string        `json:"database"`
	Callers   int           `json:"callers,omitempty"`
	Rows      int           `json:"rows,omitempty"` // in the table
	What      string        `json:"what,omitempty"` // is measured beside them
	Contender string        `json:"contender,omitempty"`
	Unit      string        `json:"unit"`
	Value     bench.Spread  `json:"value"`
	Ratio     *bench.Spread `json:"ratio,omitempty"` // to the line that it is compared with
	Wanted    string        `json:"wanted,omitempty"`
	Met       *bool         `json:"met,omitempty"`
}

func (r *row) judge(wanted string, met bool) { r.Wanted, r.Met = wanted, &met }

// report is everything that was measured.
type report struct {
	Command    string        `json:"command"`
	Began      time.Time     `json:"began"`
	Took       string        `json:"took"`
	Machine    bench.Machine `json:"machine"`
	LoadBefore string        `json:"load_before"` // of one, five and fifteen minutes
	LoadAfter  string        `json:"load_after"`
	Rows       []row         `json:"figures"`
}

var titles = map[string]string{
	cycle: "Claim, effect and guarded finish",
	grown: "Beside finished rows",
	burst: "A batch of a burst into a table that was empty",
}

func (r report) print(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s, %d CPUs, %s; load %s before, %s after; %s\n", r.Machine.CPU, r.Machine.CPUs, r.Machine.Go, r.LoadBefore, r.LoadAfter, r.Took)
	for _, name := range scenarioNames {
		var rows []row
		for _, one := range r.Rows {
			if one.Scenario == name {
				rows = append(rows, one)
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n\n", titles[name])
		t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
		fmt.Fprintln(t, "| database\t| what\t| median\t| quartiles\t| ratio\t| quartiles\t| wanted\t|")
		fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
		for _, one := range rows {
			fmt.Fprintln(t, "| "+strings.Join(one.cells(), "\t| ")+"\t|")
		}
		_ = t.Flush() // into a buffer, whose own flush tells
	}
	return w.Flush()
}

func (r row) cells() []string {
	what := r.What
	if r.Callers > 0 {
		what = fmt.Sprintf("%s, %d callers", r.Contender, r.Callers)
	}
	if r.Rows > 0 {
		what = fmt.Sprintf("%s, %d rows", what, r.Rows)
	}
	cells := []string{r.Database, what, number(r.Value.Median) + " " + r.Unit, number(r.Value.Low) + " to " + number(r.Value.High), "1", "", ""}
	if r.Ratio != nil {
		cells[4] = fmt.Sprintf("%.2f", r.Ratio.Median)
		cells[5] = fmt.Sprintf("%.2f to %.2f", r.Ratio.Low, r.Ratio.High)
	}
	if r.Met != nil {
		cells[6] = r.Wanted + ": " + map[bool]string{true: "met", false: "**missed**"}[*r.Met]
	}
	return cells
}

func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}
