package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/store"
)

// Screen is where the demo shows what happens: a table that is drawn in place on a
// terminal, and plain lines elsewhere.
type Screen struct {
	Out   io.Writer
	Live  bool                        // redraw in place
	Color bool                        // Live only
	Size  func() (columns, lines int) // of the terminal; Live only

	events []string
	drawn  int // lines of the last frame
	told   store.Millis
	closed bool
}

const (
	keptEvents  = 8
	statusEvery = 5 * time.Second
)

// event tells what happened.
func (s *Screen) event(at store.Millis, format string, args ...any) {
	line := at.Time().Format(time.TimeOnly) + "  " + fmt.Sprintf(format, args...)
	if !s.Live {
		fmt.Fprintln(s.Out, line)
		return
	}
	s.events = append(s.events, line)
	if len(s.events) > keptEvents {
		s.events = s.events[1:]
	}
}

// draw shows the state of things.
func (s *Screen) draw(d *show, now store.Millis) error {
	if !s.Live {
		return s.status(d.board, now)
	}
	var b strings.Builder
	if s.drawn == 0 {
		b.WriteString("\x1b[?25l") // hide the cursor
	} else {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	columns, rows := s.Size()
	lines := s.frame(d, now, columns)
	if rows > 1 {
		lines = lines[:min(len(lines), rows-1)] // what has scrolled away cannot be drawn over
	}
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n") // and clear what is left of the line before
	}
	b.WriteString("\x1b[J")
	s.drawn = len(lines)
	_, err := io.WriteString(s.Out, b.String())
	return err
}

// Close leaves the last frame where it is and gives the cursor back. It can be
// called again.
func (s *Screen) Close() {
	if s.Live && s.drawn > 0 && !s.closed {
		fmt.Fprint(s.Out, "\x1b[?25h\n")
	}
	s.closed = true
}

// status is one line now and then.
func (s *Screen) status(b *board, now store.Millis) error {
	if s.told == 0 {
		s.told = b.from
	}
	if now.Sub(s.told) < statusEvery {
		return nil
	}
	s.told = s.told.Add(statusEvery)
	var ran, due int
	for _, j := range cronJobs {
		ran += b.ranOf(j.name)
		due += b.dueBy(j.name, min(now, b.end))
	}
	_, err := fmt.Fprintf(s.Out, "%s  %d of %d ticks ran, %d of %d queue jobs\n",
		now.Time().Format(time.TimeOnly), ran, due, b.ranOf(queueKind), len(b.put))
	return err
}

// paint colours text if colours are wanted.
func (s *Screen) paint(code, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	bold = "1"
	dim  = "2"
	red  = "31"
)

// shade is a replica's colour.
func (s *Screen) shade(replica int, text string) string {
	palette := []string{"36", "33", "35", "32", "34"}
	return s.paint(palette[(replica-1)%len(palette)], text)
}

// frame is the table, line by line.
func (s *Screen) frame(d *show, now store.Millis, width int) []string {
	b := d.board
	clock := min(now, b.end).Sub(b.from)
	title := fmt.Sprintf("%d replicas share one SQLite file, lease %v", d.o.Replicas, lease)
	left := fmt.Sprintf("%.1fs of %v", clock.Seconds(), d.o.For)
	if now > b.end {
		left = "last runs"
	}
	lines := []string{s.paint(bold, "solotick demo") + "  " + title + "  " + s.paint(bold, left), ""}
	lines = append(lines, s.paint(dim, fmt.Sprintf("  %-8s %-8s %-9s %6s  %s", "replica", "pid", "state", "ran", "doing")))
	for _, r := range d.fleet.all {
		state, doing := "starting", ""
		switch {
		case r.gone():
			state = "dead"
		case r.ready.Load():
			state = "idle"
		}
		for _, e := range d.running {
			if ownerPid(e) == r.pid && !r.gone() {
				state = "working"
				doing = tickKey{job: e.Key.Job, tick: e.Key.Tick, name: e.Key.Name}.String()
			}
		}
		lines = append(lines, fmt.Sprintf("  %s %-8d %-9s %6d  %s", s.shade(r.number, fmt.Sprintf("%-8d", r.number)), r.pid, state, b.byReplica[r.number], doing))
	}
	lines = append(lines, "", s.paint(dim, fmt.Sprintf("  %-8s %-6s %11s  %s", "job", "gate", "ran of due", "last ticks")))
	room := max(width-34, 12)
	for _, j := range cronJobs {
		share := fmt.Sprintf("%d of %d", b.ranOf(j.name), b.dueBy(j.name, min(now, b.end)))
		lines = append(lines, fmt.Sprintf("  %-8s %-6s %11s  %s", j.name, j.gate, share, s.strip(b, b.keys(j.name, now), room)))
	}
	share := fmt.Sprintf("%d of %d", b.ranOf(queueKind), len(b.put))
	lines = append(lines, fmt.Sprintf("  %-8s %-6s %11s  %s", queueKind, "queue", share, s.strip(b, b.put, room)))
	lines = append(lines, s.paint(dim, "  a digit is the replica that ran it, [2] was taken over, · is waited for, ! ran twice"), "")
	for _, e := range s.events {
		lines = append(lines, "  "+clip(e, width-3))
	}
	return lines
}

// keys are the job's ticks until now.
func (b *board) keys(job string, now store.Millis) []tickKey {
	var keys []tickKey
	for _, tick := range b.due[job] {
		if tick <= now {
			keys = append(keys, tickKey{job: job, tick: tick})
		}
	}
	return keys
}

// strip shows the last runs, one character each.
func (s *Screen) strip(b *board, keys []tickKey, room int) string {
	var cells []string
	for i := len(keys) - 1; i >= 0 && room > 0; i-- {
		rows := b.effects[keys[i]]
		cell, width := s.paint(dim, "·"), 1
		switch {
		case len(rows) > 1:
			cell = s.paint(red, "!")
		case len(rows) == 1 && rows[0].Attempt > 1:
			digit := fmt.Sprint(rows[0].Replica)
			cell, width = s.paint(bold, "[")+s.shade(rows[0].Replica, digit)+s.paint(bold, "]"), len(digit)+2
		case len(rows) == 1:
			digit := fmt.Sprint(rows[0].Replica % 10)
			cell = s.shade(rows[0].Replica, digit)
		}
		if room -= width; room >= 0 {
			cells = append(cells, cell)
		}
	}
	var out strings.Builder
	for _, cell := range slices.Backward(cells) {
		out.WriteString(cell)
	}
	return out.String()
}

// clip cuts a line so that it does not wrap.
func clip(line string, width int) string {
	if r := []rune(line); width > 1 && len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return line
}
