package metrics_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/common/expfmt"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/metrics"
)

const (
	monitoring = "../../configs/monitoring"
	operations = "../../docs/operations.md"
)

// promtool runs Prometheus's own checker.
func promtool(t *testing.T, stdin []byte, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	switch {
	case err != nil && os.Getenv("SOLOTICK_REQUIRE_SERVICES") != "1":
		t.Skip("promtool is missing: make deps installs it")
	case err != nil:
		t.Fatal("promtool is missing: make deps installs it")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir, cmd.Stdin = monitoring, bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// family is what the registry says of a metric.
type family struct {
	kind   string
	labels []string
}

// registry lists the metrics by name, with a job and a lock backend in them.
func registry(t *testing.T) map[string]family {
	t.Helper()
	m := newMetrics(t, metrics.Config{})
	m.Locks("memory")
	m.Watch(coordinated{})
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]family{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		all[f.GetName()] = family{strings.ToLower(f.GetType().String()), labels}
	}
	return all
}

// coordinated has every gauge that a scheduler can have.
type coordinated struct{}

func (coordinated) Snapshot() scheduler.Snapshot {
	s := jobs{"j"}.Snapshot()
	s.Coordinator, s.Jobs[0].Gate = "ok", scheduler.GateLock
	return s
}

// TestExposition: Prometheus's linter has nothing to say about names and help.
func TestExposition(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	m.Locks("memory")
	m.Watch(coordinated{})
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, text.Bytes(), "check", "metrics")
}

// TestRules: the rules are valid, and raise what they are there for and nothing else.
func TestRules(t *testing.T) {
	promtool(t, nil, "check", "config", "prometheus.yaml") // with the rules that it loads
	promtool(t, nil, "test", "rules", "alerts_test.yaml")
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

var (
	selector = regexp.MustCompile(`\b(solotick_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
)

// checkSeries compares what an expression asks for with what there is. Labels that
// Prometheus adds are always there.
func checkSeries(t *testing.T, where, expr string, all map[string]family) {
	t.Helper()
	known := []string{"namespace", "instance", "le"}
	series := selector.FindAllStringSubmatch(expr, -1)
	if len(series) == 0 {
		t.Errorf("%s: %q asks for no series of ours", where, expr)
	}
	for _, s := range series {
		name := s[1]
		f, ok := all[name]
		if base, _, cut := cutSuffix(name); !ok && cut && all[base].kind == "histogram" {
			f, ok = all[base], true
		}
		if !ok {
			t.Errorf("%s: there is no %s", where, name)
		}
		if f.kind == "histogram" && !strings.HasSuffix(name, "_bucket") && !strings.HasSuffix(name, "_count") && !strings.HasSuffix(name, "_sum") {
			t.Errorf("%s: %s is a histogram: ask for its _bucket, _count or _sum", where, name)
		}
		known = append(known, f.labels...)
		for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(f.labels, l[1]) && l[1] != "exported_job" {
				t.Errorf("%s: %s has no label %s", where, name, l[1])
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			if l = strings.TrimSpace(l); !slices.Contains(known, l) {
				t.Errorf("%s: none of its series has a label %s", where, l)
			}
		}
	}
}

func cutSuffix(name string) (base, suffix string, ok bool) {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			return base, suffix, true
		}
	}
	return name, "", false
}

// TestAlerts: every rule asks for series that exist, says something, and has its place
// in the handbook and in the rules' own test.
func TestAlerts(t *testing.T) {
	all := registry(t)
	handbook, err := os.ReadFile(operations)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(monitoring, "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules := readRules(t)
	if len(rules) < 10 {
		t.Fatalf("%d rules", len(rules))
	}
	for _, r := range rules {
		checkSeries(t, r.Alert, r.Expr, all)
		if r.Annotations["summary"] == "" || !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s: summary %q, severity %q", r.Alert, r.Annotations["summary"], r.Labels["severity"])
		}
		if !bytes.Contains(handbook, []byte("| `"+r.Alert+"` | "+r.Labels["severity"]+" |")) {
			t.Errorf("%s is not in the table of docs/operations.md with severity %s", r.Alert, r.Labels["severity"])
		}
		if bytes.Count(tests, []byte(r.Alert)) < 2 {
			t.Errorf("%s: alerts_test.yaml does not show both that it fires and that it does not", r.Alert)
		}
	}
}

// TestDashboard: it is what Grafana reads, and each of its expressions is valid and asks
// for series that exist.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title, UID string
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if board.Title == "" || board.UID == "" || len(board.Panels) < 20 {
		t.Fatalf("title %q, uid %q, %d panels", board.Title, board.UID, len(board.Panels))
	}
	all := registry(t)
	for _, v := range board.Templating.List {
		if q, ok := v.Query.(map[string]any); ok {
			checkSeries(t, "variable "+v.Name, fmt.Sprint(q["query"]), all)
		}
	}
	ids := map[int]bool{}
	asked := ""
	var exprs []string
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*").Replace(target.Expr)
			if strings.Contains(strings.ReplaceAll(expr, `"$`, ""), "$") {
				t.Errorf("panel %q: a variable that Grafana does not know: %s", p.Title, target.Expr)
			}
			checkSeries(t, "panel "+p.Title, expr, all)
			exprs, asked = append(exprs, expr), asked+" "+expr
		}
	}
	// Prometheus's own parser reads the expressions as rules that record them.
	type recorded struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string     `json:"name"`
		Rules []recorded `json:"rules"`
	}
	g := group{Name: "dashboard"}
	for i, expr := range exprs {
		g.Rules = append(g.Rules, recorded{fmt.Sprint("dashboard:", i), expr})
	}
	rules, err := json.Marshal(map[string][]group{"groups": {g}}) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(path, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, nil, "check", "rules", path)
	// Whatever is counted is worth a look somewhere: here, or in an alert.
	for _, r := range readRules(t) {
		asked += " " + r.Expr
	}
	for name := range all {
		if !strings.Contains(asked, name) {
			t.Errorf("%s is on no panel and in no alert", name)
		}
	}
}

// TestHandbook: the table of docs/operations.md has every metric, with its type and
// labels, and no other.
func TestHandbook(t *testing.T) {
	text, err := os.ReadFile(operations)
	if err != nil {
		t.Fatal(err)
	}
	all := registry(t)
	row := regexp.MustCompile("(?m)^\\| `(solotick_[a-z0-9_]+)` \\| ([a-z]+) \\| ([^|]*) \\| [^|]{10,} \\|$")
	seen := map[string]bool{}
	for _, r := range row.FindAllStringSubmatch(string(text), -1) {
		name, kind := r[1], r[2]
		var labels []string
		for _, l := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(r[3], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		f, ok := all[name]
		if !ok || f.kind != kind || !slices.Equal(f.labels, labels) {
			t.Errorf("docs/operations.md: %s is a %s with labels %q; the registry has %+v", name, kind, labels, f)
		}
		if seen[name] {
			t.Errorf("docs/operations.md has %s twice", name)
		}
		seen[name] = true
	}
	for name := range all {
		if !seen[name] {
			t.Errorf("docs/operations.md lacks %s: a row `name` | type | labels | meaning", name)
		}
	}
}
