package main

import (
	"bufio"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one line of a table.
type row struct {
	Scenario    string  `json:"scenario"`
	Backend     string  `json:"backend"`
	Waiters     int     `json:"waiters,omitempty"`
	Contender   string  `json:"contender"`
	Unit        string  `json:"unit"`
	Value       spread  `json:"value"`
	Ratio       *spread `json:"ratio,omitempty"`           // to the bare one, round by round
	Requests    float64 `json:"requests,omitempty"`        // a cycle or hand-over, as the client sends them
	LongestWait float64 `json:"longest_wait_ms,omitempty"` // of any waiter
	Turns       *[2]int `json:"turns,omitempty"`           // fewest and most of any process, over all rounds
	Goroutines  float64 `json:"goroutines,omitempty"`      // a held lock
	ClientCPU   float64 `json:"client_cpu_us,omitempty"`   // of this process, a cycle
	ServerCPU   float64 `json:"server_cpu_us,omitempty"`
	Wanted      string  `json:"wanted,omitempty"`
	Met         *bool   `json:"met,omitempty"`

	ours, bare bool
}

const (
	atMost  = "<="
	atLeast = ">="
)

func (r *row) judge(wanted string, met bool) {
	if r.Met != nil {
		wanted = r.Wanted + ", " + wanted
		met = met && *r.Met
	}
	r.Wanted, r.Met = wanted, &met
}

// want judges the ratio.
func (r *row) want(sign string, x float64) {
	if r.Ratio == nil {
		return
	}
	met := r.Ratio.Median <= x
	if sign == atLeast {
		met = r.Ratio.Median >= x
	}
	r.judge(fmt.Sprintf("%s %.4g x", sign, x), met)
}

// wantValue judges the figure itself.
func (r *row) wantValue(most float64) {
	r.judge(fmt.Sprintf("<= %.4g", most), r.Value.Median <= most)
}

// ahead demands that the figure is better than a peer's.
func (r *row) ahead(rows []row, peer string, more bool) {
	for _, other := range rows {
		if other.Contender == peer {
			r.judge("ahead of "+peer, (r.Value.Median > other.Value.Median) == more)
		}
	}
}

// report is everything that was measured.
type report struct {
	Started    time.Time `json:"started"`
	Took       string    `json:"took"`
	CPU        string    `json:"cpu"`
	CPUs       int       `json:"cpus"`
	LoadBefore string    `json:"load_before"` // of one, five and fifteen minutes
	LoadAfter  string    `json:"load_after"`
	Rows       []row     `json:"rows"`
}

// print writes tables for a terminal, or for a Markdown page.
func (r report) print(out io.Writer, markdown bool) error {
	w := bufio.NewWriter(out)
	heading, write := "", aligned
	if markdown {
		heading, write = "### ", piped
	}
	fmt.Fprintf(w, "%s, %d CPUs, %s; load %s before, %s after; %s\n", r.CPU, r.CPUs, runtime.Version(), r.LoadBefore, r.LoadAfter, r.Took)
	for start := 0; start < len(r.Rows); {
		end := start
		for end < len(r.Rows) && r.Rows[end].Scenario == r.Rows[start].Scenario {
			end++
		}
		fmt.Fprintf(w, "\n%s%s (%s)\n\n", heading, titles[r.Rows[start].Scenario], r.Rows[start].Unit)
		write(w, table(r.Rows[start:end]))
		start = end
	}
	return w.Flush()
}

func aligned(out io.Writer, lines [][]string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = w.Flush() // into a buffer, whose own flush tells
}

func piped(out io.Writer, lines [][]string) {
	for i, cells := range lines {
		cells = append(cells, make([]string, len(lines[0])-len(cells))...)
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintln(out, strings.Repeat("|---", len(cells))+"|")
		}
	}
}

var titles = map[string]string{
	cycle:    "Acquire and release of a free key",
	parallel: "32 goroutines on 32 keys",
	handOver: "Hand-over: from the release called to the next holder, 1 ms holds",
	memory:   "Memory of a held lock in its process",
}

// table is the cells of the lines, the heads first.
func table(rows []row) (lines [][]string) {
	line := func(cells ...string) { lines = append(lines, cells) }
	scenario := rows[0].Scenario
	head := []string{"backend", "contender", "median", "quartiles"}
	switch scenario {
	case cycle:
		head = append(head, "ratio", "quartiles", "requests", "wanted")
	case parallel:
		head = append(head, "ratio", "quartiles", "CPU client", "CPU server", "wanted")
	case handOver:
		head = append(head, "ratio", "quartiles", "requests", "longest wait", "turns", "wanted")
		head[0] = "backend, waiters"
	case memory:
		head = []string{"backend", "contender", "bytes", "goroutines", "wanted"}
	}
	line(head...)
	for _, r := range rows {
		cells := []string{r.Backend, r.Contender, number(r.Value.Median)}
		if scenario == handOver {
			cells[0] = fmt.Sprintf("%s, %d", r.Backend, r.Waiters)
		}
		if scenario == memory {
			line(append(cells, fmt.Sprintf("%.2f", r.Goroutines), r.verdict())...)
			continue
		}
		cells = append(cells, number(r.Value.Low)+"-"+number(r.Value.High))
		if r.Ratio != nil {
			cells = append(cells, fmt.Sprintf("%.2f", r.Ratio.Median), fmt.Sprintf("%.2f-%.2f", r.Ratio.Low, r.Ratio.High))
		} else {
			cells = append(cells, "1", "")
		}
		switch scenario {
		case cycle:
			cells = append(cells, fmt.Sprintf("%.1f", r.Requests))
		case parallel:
			cells = append(cells, fmt.Sprintf("%.1f µs", r.ClientCPU), fmt.Sprintf("%.1f µs", r.ServerCPU))
		case handOver:
			cells = append(cells, fmt.Sprintf("%.1f", r.Requests), fmt.Sprintf("%.0f ms", r.LongestWait), fmt.Sprintf("%d-%d", r.Turns[0], r.Turns[1]))
		}
		line(append(cells, r.verdict())...)
	}
	return lines
}

func (r row) verdict() string {
	switch {
	case r.Met == nil:
		return ""
	case *r.Met:
		return r.Wanted + ": met"
	}
	return r.Wanted + ": MISSED"
}

func number(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}
