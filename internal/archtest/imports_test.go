package archtest

import (
	"slices"
	"strings"
	"testing"
)

func TestImportLaws(t *testing.T) {
	g := loadGraph(t)
	for _, r := range laws {
		for _, flaw := range r.flaws(g) {
			t.Error(flaw)
		}
		for _, found := range r.check(g) {
			t.Errorf("%s\n\twhy: %s", found, r.reason)
		}
	}
	for _, name := range ungoverned(g) {
		t.Errorf("%s: no law says what it may link; add one to laws_test.go, or say in free why none is needed", name)
	}
}

// ungoverned returns the packages that a new law has to be made for.
func ungoverned(g graph) []string {
	return slices.DeleteFunc(g.ours(), func(name string) bool {
		for _, r := range laws {
			if r.may != nil && r.covers(name) {
				return true
			}
		}
		for _, f := range free {
			if matchesAny(f.packages, name) {
				return true
			}
		}
		return false
	})
}

// synthetic makes a graph of lines such as "locks -> locks/driver fmt". What has
// no dot in its first element and is not of the house is the standard library.
func synthetic(lines ...string) graph {
	g := graph{}
	for _, line := range lines {
		from, imports, _ := strings.Cut(line, " -> ")
		p := pkg{ImportPath: path(from)}
		for to := range strings.FieldsSeq(imports) {
			p.Imports = append(p.Imports, path(to))
		}
		g[p.ImportPath] = p
	}
	for _, p := range g {
		for _, to := range p.Imports {
			if _, ok := g[to]; !ok {
				_, ours := inModule(to)
				g[to] = pkg{ImportPath: to, Standard: !ours && !strings.Contains(strings.Split(to, "/")[0], ".")}
			}
		}
	}
	return g
}

func path(name string) string {
	first, _, _ := strings.Cut(name, "/")
	switch first {
	case "locks", "leader", "store", "idempotent", "scheduler", "configs", "cmd", "examples", "internal":
		return full(name)
	}
	return name
}

// Each kind of rule is seen to refuse and to allow.
func TestRules(t *testing.T) {
	may := rule{from: []string{"locks"}, may: []string{"locks/driver", "gorm.io/gorm/..."}}
	mustNot := rule{from: []string{"..."}, except: []string{"examples/..."}, mustNot: []string{"testing", "go.uber.org/fx/..."}}
	oneOf := rule{from: []string{"..."}, oneOf: map[string][]string{"redis": redisClient, "etcd": etcdClient}}
	apart := rule{from: []string{"locks/*lock"}, except: []string{"locks/redlock"}, apart: true}
	tests := []struct {
		name  string
		rule  rule
		graph graph
		want  []string // a part of each finding
	}{
		{"may: standard library", may, synthetic("locks -> fmt net/http"), nil},
		{"may: what is listed", may, synthetic("locks -> locks/driver gorm.io/gorm/clause"), nil},
		{"may: what a listed library links", may, synthetic("locks -> gorm.io/gorm", "gorm.io/gorm -> example.org/inflection"), nil},
		{"may: another library", may, synthetic("locks -> go.uber.org/fx"), []string{"locks -> go.uber.org/fx: go.uber.org/fx is not"}},
		{"may: another of ours", may, synthetic("locks -> store"), []string{"locks -> store: store is not"}},
		{"may: through one of ours", may, synthetic("locks -> locks/driver", "locks/driver -> go.uber.org/fx"), []string{"locks -> locks/driver -> go.uber.org/fx"}},
		{"may: says each cause once", may, synthetic("locks -> store", "store -> gorm.io/driver/mysql"), []string{"locks -> store"}},
		{"may: other packages", may, synthetic("leader -> go.uber.org/fx", "locks/driver -> go.uber.org/fx"), nil},
		{"may: an empty list", rule{from: []string{"store"}, may: []string{}}, synthetic("store -> fmt internal/backoff"), []string{"store -> internal/backoff"}},

		{"mustNot: directly", mustNot, synthetic("store -> testing"), []string{"store -> testing: testing must not"}},
		{"mustNot: through a library", mustNot, synthetic("store -> example.org/x", "example.org/x -> go.uber.org/fx/fxevent"), []string{"store -> example.org/x -> go.uber.org/fx/fxevent"}},
		{"mustNot: excepted", mustNot, synthetic("examples/worker -> go.uber.org/fx"), nil},
		{"mustNot: something else", mustNot, synthetic("store -> testingx go.uber.org/fxx"), nil},

		{"oneOf: one", oneOf, synthetic("locks/redislock -> github.com/redis/go-redis/v9"), nil},
		{"oneOf: two", oneOf, synthetic("locks -> github.com/redis/go-redis/v9 leader", "leader -> go.etcd.io/etcd/client/v3"), []string{"locks links 2 clients"}},

		{"apart: alone", apart, synthetic("locks/memlock -> locks", "locks/sqllock -> locks"), nil},
		{"apart: together", apart, synthetic("locks/memlock -> internal/x", "internal/x -> locks/sqllock"), []string{"locks/memlock -> internal/x -> locks/sqllock"}},
		{"apart: excepted", apart, synthetic("locks/redlock -> locks/redislock"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.rule.check(tt.graph)
			if len(got) != len(tt.want) {
				t.Fatalf("found %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("found %q, want %q", got[i], want)
				}
			}
		})
	}
}

// The table itself refuses what it is there to refuse.
func TestLawsRefuse(t *testing.T) {
	tests := []struct {
		graph   graph
		refused bool
	}{
		{synthetic("store -> internal/mutation"), true},
		{synthetic("locks/driver -> github.com/google/uuid"), true},
		{synthetic("leader/driver -> locks/driver"), false},
		{synthetic("leader/driver -> locks"), true},
		{synthetic("locks -> locks/driver internal/mutation log/slog"), false},
		{synthetic("locks -> store"), true},
		{synthetic("leader -> store"), true},
		{synthetic("scheduler -> locks leader store scheduler/cronspec internal/backoff"), false},
		{synthetic("scheduler -> internal/sqldialect", "internal/sqldialect -> gorm.io/gorm"), true},
		{synthetic("scheduler -> go.uber.org/fx"), true},
		{synthetic("scheduler -> github.com/goccy/go-yaml"), true},
		{synthetic("scheduler -> store/gormstore"), true},
		{synthetic("scheduler -> github.com/redis/go-redis/v9"), true},
		{synthetic("scheduler -> testing/synctest"), true},
		{synthetic("locks/sqllock -> locks/driver internal/sqldialect", "internal/sqldialect -> gorm.io/gorm github.com/libtnb/sqlite"), false},
		{synthetic("locks/sqllock -> gorm.io/driver/mysql"), true},
		{synthetic("locks/sqllock -> locks/memlock"), true},
		{synthetic("locks/sqllock -> store/gormstore"), true},
		{synthetic("locks/redislock -> scheduler"), true},
		{synthetic("locks/redislock -> go.etcd.io/etcd/client/v3"), true},
		{synthetic("store/gormstore -> store gorm.io/gorm internal/sqldialect"), false},
		{synthetic("store/gormstore -> github.com/jackc/pgx/v5/pgconn"), true},
		{synthetic("store/gormstore -> idempotent"), true},
		{synthetic("idempotent -> store store/gormstore gorm.io/gorm"), false},
		{synthetic("idempotent -> scheduler"), true},
		{synthetic("idempotent/rediscache -> idempotent github.com/redis/go-redis/v9"), false},
		{synthetic("idempotent/rediscache -> scheduler"), true},
		{synthetic("scheduler/schedulerfx -> scheduler go.uber.org/fx"), false},
		{synthetic("scheduler/schedulerfx -> store/gormstore"), true},
		{synthetic("scheduler/admin -> go.uber.org/fx"), true},
		{synthetic("scheduler/metrics -> scheduler locks github.com/prometheus/client_golang/prometheus"), false},
		{synthetic("scheduler/metrics -> go.opentelemetry.io/otel"), true},
		{synthetic("scheduler/tracing -> scheduler store go.opentelemetry.io/otel/trace"), false},
		{synthetic("scheduler/tracing -> go.opentelemetry.io/otel/sdk/trace"), true},
		{synthetic("scheduler/switchwatch/etcdswitch -> scheduler go.etcd.io/etcd/client/v3"), false},
		{synthetic("scheduler/switchwatch/etcdswitch -> go.etcd.io/etcd/client/v3 github.com/go-zookeeper/zk"), true},
		{synthetic("configs -> scheduler github.com/goccy/go-yaml"), false},
		{synthetic("configs -> locks/sqllock"), true},
		{synthetic("cmd/solotick -> go.uber.org/fx github.com/spf13/cobra locks/sqllock locks/memlock gorm.io/driver/mysql"), false},
		{synthetic("cmd/solotick -> scheduler/schedulertest"), true},
		{synthetic("cmd/solotick -> flagx.org/x", "flagx.org/x -> testing"), true},
		{synthetic("examples/quickstart -> store/storetest"), true},
		{synthetic("internal/backoff -> locks"), true},
		{synthetic("locks/lockstest -> testing locks locks/driver"), false},
		{synthetic("locks/lockstest -> github.com/redis/go-redis/v9"), true},
		{synthetic("scheduler/schedulertest -> testing locks/memlock store/memstore scheduler"), false},
		{synthetic("scheduler/admin -> cmd/solotick"), true},
		{synthetic("locks/natslock -> locks/driver"), true}, // no law for it yet
		{synthetic("queue -> fmt", "scheduler -> queue/x"), false},
	}
	for _, tt := range tests {
		var found []string
		for _, r := range laws {
			found = append(found, r.check(tt.graph)...)
		}
		for _, name := range tt.graph.ours() {
			// Only what the graph describes; what is merely imported has no law to break.
			if len(tt.graph[full(name)].Imports) > 0 && slices.Contains(ungoverned(tt.graph), name) {
				found = append(found, name+" is ungoverned")
			}
		}
		if (len(found) > 0) != tt.refused {
			t.Errorf("%v: found %q, want refused = %v", imports(tt.graph), found, tt.refused)
		}
	}
}

func imports(g graph) []string {
	var lines []string
	for _, name := range g.ours() {
		if p := g[full(name)]; len(p.Imports) > 0 {
			lines = append(lines, name+" -> "+strings.Join(p.Imports, " "))
		}
	}
	return lines
}

func TestFlawsOfRules(t *testing.T) {
	g := synthetic("locks -> fmt example.org/lib")
	tests := []struct {
		name string
		rule rule
		want string
	}{
		{"sound", rule{from: []string{"locks/*lock"}, mustNot: []string{"gorm.io/gorm/...", "example.org/lib"}, reason: "r"}, ""},
		{"misspelt package", rule{from: []string{"lock/driver"}, may: []string{}, reason: "r"}, `"lock/driver"`},
		{"misspelt exception", rule{from: []string{"locks"}, except: []string{"example/..."}, may: []string{}, reason: "r"}, `"example/..."`},
		{"misspelt dependency", rule{from: []string{"locks"}, mustNot: []string{"go.uber.org/fxx"}, reason: "r"}, `"go.uber.org/fxx"`},
		{"misspelt family", rule{from: []string{"locks"}, oneOf: map[string][]string{"redis": {"github.com/go-redis/..."}}, reason: "r"}, `"github.com/go-redis/..."`},
		{"no reason", rule{from: []string{"locks"}, may: []string{}}, "no reason"},
		{"no law", rule{from: []string{"locks"}, reason: "r"}, "0 kinds of law"},
		{"two laws", rule{from: []string{"locks"}, may: []string{}, apart: true, reason: "r"}, "2 kinds of law"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.rule.flaws(g)
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("found %q in a sound rule", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("found %q, want one with %s", got, tt.want)
			}
		})
	}
}
