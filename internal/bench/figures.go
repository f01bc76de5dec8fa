package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Spread is the median of a figure, and its quartiles.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// SpreadOf is the spread of xs; zero if there are none.
func SpreadOf(xs []float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(xs))
	at := func(q float64) float64 { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	return Spread{at(0.5), at(0.25), at(0.75)}
}

// Ratios are the quotients of xs and ys, pair by pair.
func Ratios(xs, ys []float64) []float64 {
	out := make([]float64, min(len(xs), len(ys)))
	for i := range out {
		out[i] = xs[i] / ys[i]
	}
	return out
}

// Alternate lets n contenders take turns, round by round, each time another one
// first. Round 0 comes before those that count.
func Alternate(n, rounds int, one func(round, contender int) error) error {
	for round := range rounds + 1 {
		for i := range n {
			if err := one(round, (i+round)%n); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
	}
	return nil
}

// Machine is what something was measured on.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory"`
	OS     string `json:"os"`
	Go     string `json:"go"`
}

// Entry is an entry of docs/track-record with figures of a kind by name. The commit is
// filled in by whoever keeps it.
type Entry[F any] struct {
	Command string       `json:"command"`
	Commit  string       `json:"commit"`
	Seed    uint64       `json:"seed,omitempty"` // of random choices, where there are any
	Machine Machine      `json:"machine"`
	Load    string       `json:"load_before"`
	Began   time.Time    `json:"began"`
	Took    string       `json:"took"`
	Figures map[string]F `json:"figures"`
	Verdict string       `json:"verdict"`
}

// ThisMachine reads what Linux says of itself; elsewhere some fields are empty.
func ThisMachine() Machine {
	return Machine{
		CPU: field("/proc/cpuinfo", "model name", ":"), CPUs: runtime.NumCPU(), Memory: field("/proc/meminfo", "MemTotal", ":"),
		OS: strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`), Go: runtime.Version(),
	}
}

// field is what stands behind a name in a file of names and values.
func field(path, name, mark string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, mark); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Load is the load average of one, five and fifteen minutes: whether the machine was
// busy with other things.
func Load() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return ""
	}
	return strings.Join(fields[:3], " ")
}
