package lockfaults

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// skewEnv is how far the wall clock of a process is ahead, as a [time.Duration]. Only
// the program of skewedProgram heeds it.
const skewEnv = "LOCKFAULTS_SKEW"

// skews are those of a crew's processes, in turn. Some are longer than any lease.
var skews = []time.Duration{0, 3 * time.Minute, -3 * time.Minute, 26 * time.Hour, -700 * time.Millisecond, 700 * time.Millisecond, -26 * time.Hour}

// TestSkewedClocks puts every backend through the plan of TestBackends with processes
// whose wall clocks differ. It is of the long form, because nearly everything is
// compiled once more for it; TestLocksAskNoWallClock of internal/archtest shows in
// every run that no driver reads that clock.
func TestSkewedClocks(t *testing.T) {
	if os.Getenv("SOLOTICK_SOAK") == "" {
		t.Skip("the long form: make soak AREA=clocks")
	}
	program := skewedProgram(t)
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, s.open(t))
			c.program = program
			c.plan()
			for i, m := range c.all {
				ready := c.await(m, "ready", "")
				want := skews[i%len(skews)]
				if off := ready.Wall - want; off < -300*time.Millisecond || off > 300*time.Millisecond {
					t.Errorf("the wall clock of %s is %v ahead, want %v", m.name, ready.Wall, want)
				}
			}
		})
	}
}

// skewedProgram builds these tests with a [time.Now] that is off by what the environment
// says. The monotonic part is left as it is, as when an operator sets a host's clock.
func skewedProgram(t *testing.T) string {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	standard := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	source, err := os.ReadFile(filepath.Join(standard, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reading = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), reading) != 1 {
		t.Fatalf("%s reads the clock in another way than this test knows; skewedProgram has to follow %s", standard, runtime.Version())
	}
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// nsec may leave its second on the way.
	adjusted := reading + "\tahead := int64(nsec) + skewed()\n\tsec, nsec = sec+ahead/1e9, int32(ahead%1e9)\n\tif nsec < 0 {\n\t\tsec, nsec = sec-1, nsec+1e9\n\t}\n"
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(standard, "time.go"): write("time.go", strings.Replace(string(source), reading, adjusted, 1)),
		filepath.Join(standard, "skewed.go"): write("skewed.go", `package time

import (
	"sync"
	"syscall"
)

var skewed = sync.OnceValue(func() int64 {
	text, _ := syscall.Getenv("`+skewEnv+`")
	d, _ := ParseDuration(text)
	return int64(d)
})
`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "lockfaults.test")
	build := exec.Command("go", "test", "-c", "-o", program, "-overlay", write("overlay.json", string(overlay)), ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
