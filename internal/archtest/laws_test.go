package archtest

// house names the packages that are planned, so that a rule can speak of one
// before it exists and a slip of the pen in a rule still shows.
var house = []string{
	"adapters/cronlock",
	"locks", "locks/driver", "locks/lockstest",
	"locks/memlock", "locks/sqllock", "locks/redislock", "locks/redlock", "locks/etcdlock", "locks/zklock",
	"leader", "leader/driver", "leader/leadertest", "leader/etcdleader", "leader/zkleader",
	"store", "store/gormstore", "store/gormstore/sqlitedb", "store/memstore", "store/storetest",
	"idempotent", "idempotent/message", "idempotent/redisstream", "idempotent/httppost", "idempotent/outbox", "idempotent/inbox",
	"scheduler", "scheduler/cronspec", "scheduler/schedulerfx", "scheduler/schedulertest",
	"scheduler/metrics", "scheduler/tracing", "scheduler/admin",
	"scheduler/execjob", "scheduler/httpjob", "scheduler/sqljob", "scheduler/streamqueue",
	"scheduler/switchwatch", "scheduler/switchwatch/switchwatchtest", "scheduler/switchwatch/storeswitch",
	"scheduler/switchwatch/etcdswitch", "scheduler/switchwatch/redisswitch", "scheduler/switchwatch/zkswitch",
	"configs", "configs/secret", "configs/strictyaml", "configs/transport", "cmd/solotick", "examples",
	"internal/archtest", "internal/backoff", "internal/faultproxy", "internal/leaseclock", "internal/mutation",
	"internal/sim", "internal/sqldialect", "internal/testenv",
}

// outside names the dependencies that rules may speak of.
var outside = []string{
	"testing", "testing/synctest",
	"golang.org/x/sys/unix",
	"github.com/robfig/cron/v3",
	"gorm.io/gorm", "gorm.io/driver/mysql", "gorm.io/driver/postgres",
	"github.com/libtnb/sqlite", "modernc.org/sqlite",
	"github.com/go-sql-driver/mysql", "github.com/jackc/pgx/v5",
	"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
	"go.uber.org/fx", "go.uber.org/dig",
	"github.com/goccy/go-yaml", "github.com/fsnotify/fsnotify", "github.com/spf13/cobra",
	"github.com/prometheus/client_golang", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/sdk",
	"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid",
	"github.com/anishathalye/porcupine", "github.com/rogpeppe/go-internal/testscript",
}

var (
	redisClient = []string{"github.com/redis/go-redis/..."}
	// The transport of etcd's client is part of it: how it connects is set there.
	etcdClient  = []string{"go.etcd.io/etcd/...", "google.golang.org/grpc", "google.golang.org/grpc/backoff"}
	zkClient    = []string{"github.com/go-zookeeper/..."}
	mysqlDriver = []string{"gorm.io/driver/mysql/...", "github.com/go-sql-driver/mysql/..."}
	pgDriver    = []string{"gorm.io/driver/postgres/...", "github.com/jackc/pgx/v5/..."}
	gormLibrary = []string{"gorm.io/gorm/..."}
	sqlite      = []string{"github.com/libtnb/sqlite/...", "modernc.org/sqlite/..."}
	fxLibrary   = []string{"go.uber.org/fx/...", "go.uber.org/dig/..."}
	yamlLibrary = []string{"github.com/goccy/go-yaml/..."}
	prometheus  = []string{
		"github.com/prometheus/...", "github.com/beorn7/perks/...", "github.com/cespare/xxhash/v2", "github.com/munnerz/goautoneg", "google.golang.org/protobuf/...",
	}
	openTelemetry = []string{"go.opentelemetry.io/otel/...", "go.opentelemetry.io/auto/sdk/...", "github.com/go-logr/...", "github.com/cespare/xxhash/v2"}
	testLibrary   = []string{
		"testing", "testing/...", "github.com/stretchr/testify/...", "go.uber.org/goleak/...", "pgregory.net/rapid/...",
		"github.com/anishathalye/porcupine/...", "github.com/rogpeppe/go-internal/...",
	}

	// testSupport are the packages that only tests link.
	testSupport = []string{
		"locks/lockstest/...", "leader/leadertest/...", "store/storetest", "scheduler/schedulertest",
		"scheduler/switchwatch/switchwatchtest",
		"internal/archtest", "internal/faultproxy", "internal/sim", "internal/testenv",
		"internal/bench", "benchmarks/...",
	}
	// programs are the packages that choose implementations.
	programs = []string{"cmd/...", "examples/..."}

	// base is what any package above the seams may use. A Config holds secrets in
	// the type that does not print them, and what reaches a server asks for TLS.
	base = []string{"internal/...", "golang.org/x/sys/...", "github.com/gofrs/flock", "configs/secret", "configs/transport"}

	// switchParts are what a watcher of a configuration centre links beside its client.
	switchParts = all(base, []string{
		"scheduler/switchwatch", "scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store", "github.com/robfig/cron/v3",
	})
)

func all(lists ...[]string) []string {
	joined := []string{}
	for _, l := range lists {
		joined = append(joined, l...)
	}
	return joined
}

var laws = []rule{
	{
		from:   []string{"locks/driver", "store"},
		may:    []string{},
		reason: "whoever writes a plugin depends on a seam and must get nothing else with it",
	},
	{
		from:   []string{"leader/driver"},
		may:    []string{"locks/driver"},
		reason: "a seam brings no library; a term is fenced with the lock seam's token",
	},
	{
		from:   []string{"locks"},
		may:    all(base, []string{"locks/driver"}),
		reason: "the portable lock knows every backend by the seam alone",
	},
	{
		from:   []string{"leader"},
		may:    all(base, []string{"leader/driver", "locks", "locks/driver"}),
		reason: "the portable elector knows every backend by the seam alone, and makes one of any lock",
	},
	{
		from:   []string{"scheduler/cronspec"},
		may:    all(base, []string{"github.com/robfig/cron/v3"}),
		reason: "when a job is due is pure calculation on the parser's result",
	},
	{
		from:   []string{"scheduler"},
		may:    all(base, []string{"locks", "locks/driver", "leader", "leader/driver", "store", "scheduler/cronspec", "github.com/robfig/cron/v3"}),
		reason: "the core works without fx, gorm, YAML and every client, so that an embedder links only what it chose",
	},
	{
		from: []string{"scheduler"},
		mustNot: all(fxLibrary, gormLibrary, sqlite, yamlLibrary, redisClient, etcdClient, zkClient, mysqlDriver, pgDriver,
			[]string{"github.com/spf13/cobra", "github.com/prometheus/client_golang/...", "go.opentelemetry.io/otel/..."}),
		reason: "said by name as well, so that widening the core's list cannot let these in",
	},
	{
		from:   []string{"locks/memlock"},
		may:    all(base, []string{"locks", "locks/driver"}),
		reason: "a backend links its seam and its one client",
	},
	{
		from:   []string{"locks/sqllock"},
		may:    all(base, gormLibrary, sqlite, []string{"locks", "locks/driver", "github.com/fsnotify/fsnotify/..."}),
		reason: "a backend links its seam and its one client; the program chooses the database driver; SQLite tells of commits by its file alone",
	},
	{
		from:   []string{"locks/sqllock/postgres"},
		may:    all(base, gormLibrary, sqlite, pgDriver, []string{"github.com/jackc/...", "locks", "locks/driver", "locks/sqllock", "github.com/fsnotify/fsnotify/..."}),
		reason: "it is sqllock with the one client that the program chose",
	},
	{
		from:   []string{"locks/sqllock/mysql"},
		may:    all(base, gormLibrary, sqlite, mysqlDriver, []string{"filippo.io/edwards25519/...", "locks", "locks/driver", "locks/sqllock", "github.com/fsnotify/fsnotify/..."}),
		reason: "it is sqllock with the one client that the program chose",
	},
	{
		from:   []string{"locks/redislock", "locks/redlock"},
		may:    all(base, redisClient, []string{"locks", "locks/driver"}),
		reason: "a backend links its seam and its one client",
	},
	{
		from:   []string{"locks/etcdlock"},
		may:    all(base, etcdClient, []string{"locks", "locks/driver"}),
		reason: "a backend links its seam and its one client",
	},
	{
		from:   []string{"locks/zklock"},
		may:    all(base, zkClient, []string{"locks", "locks/driver"}),
		reason: "a backend links its seam and its one client",
	},
	{
		from:   []string{"leader/etcdleader"},
		may:    all(base, etcdClient, []string{"leader", "leader/driver", "locks", "locks/driver", "locks/etcdlock"}),
		reason: "an election links its seam, and the locks that it shares a session with",
	},
	{
		from:   []string{"leader/zkleader"},
		may:    all(base, zkClient, []string{"leader", "leader/driver", "locks", "locks/driver", "locks/zklock"}),
		reason: "an election links its seam, and the locks that it shares a session with",
	},
	{
		from:   []string{"store/memstore"},
		may:    all(base, []string{"store"}),
		reason: "users' tests link it, so it is light",
	},
	{
		from:   []string{"store/gormstore"},
		may:    all(base, gormLibrary, sqlite, []string{"store"}),
		reason: "a worker on one database does not link the drivers of the others; the program chooses",
	},
	{
		from:   []string{"store/gormstore/sqlitedb"},
		may:    all(base, gormLibrary, sqlite),
		reason: "it opens a database for whoever wants one and knows no store",
	},
	{
		from: []string{
			"locks/*lock", "store/gormstore", "store/memstore",
			"scheduler/streamqueue", "scheduler/switchwatch/*switch",
		},
		except: []string{"locks/redlock"},
		apart:  true,
		reason: "who chooses one backend does not link another",
	},
	{
		from:    []string{"locks/...", "leader/...", "store/..."},
		except:  testSupport,
		mustNot: []string{"scheduler/...", "idempotent/...", "configs", "cmd/...", "examples/..."},
		reason:  "dependencies point downwards only",
	},
	{
		from:   []string{"idempotent"},
		may:    all(base, gormLibrary, sqlite, []string{"store", "store/gormstore"}),
		reason: "exactly-once effects rest on the store alone and serve requests that no scheduler knows of",
	},
	{
		from:   []string{"idempotent/message"},
		may:    []string{},
		reason: "whoever writes a publisher depends on the seam and gets no database with it",
	},
	{
		from:   []string{"idempotent/redisstream", "idempotent/httppost"},
		may:    all(base, redisClient, []string{"idempotent/message"}),
		reason: "what carries messages links its one client, and no database",
	},
	{
		from:   []string{"idempotent/outbox", "idempotent/inbox"},
		may:    all(base, gormLibrary, sqlite, []string{"store", "store/gormstore", "idempotent/message"}),
		reason: "a program whose database holds no runs can send messages from it, to any broker",
	},
	{
		from:    []string{"idempotent/..."},
		mustNot: []string{"scheduler/...", "locks/...", "leader/...", "configs"},
		reason:  "*scheduler.Run satisfies idempotent's interface by shape",
	},
	{
		from:   []string{"scheduler/execjob", "scheduler/httpjob"},
		may:    all(base, []string{"scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store", "github.com/robfig/cron/v3"}),
		reason: "a job kind links the core and what it runs",
	},
	{
		from: []string{"scheduler/sqljob"},
		may: all(base, gormLibrary, sqlite, []string{
			"scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store", "store/gormstore", "idempotent", "github.com/robfig/cron/v3",
		}),
		reason: "a job kind links the core and what it runs: SQL under the guard",
	},
	{
		from: []string{"scheduler/metrics"},
		may: all(base, prometheus, []string{
			"scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store", "github.com/robfig/cron/v3",
		}),
		reason: "who counts links Prometheus and the core, and no tracing",
	},
	{
		from: []string{"scheduler/tracing"},
		may: all(base, openTelemetry, []string{
			"scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store", "github.com/robfig/cron/v3",
		}),
		reason: "who traces links OpenTelemetry's API and the core; the SDK and exporters are the program's choice",
	},
	{
		from:    []string{"scheduler/tracing"},
		mustNot: []string{"go.opentelemetry.io/otel/sdk/..."},
		reason:  "said by name as well: the API is enough",
	},
	{
		from: []string{"scheduler/schedulerfx"},
		may: all(base, fxLibrary, []string{
			"scheduler", "scheduler/cronspec", "scheduler/switchwatch", "locks", "locks/driver", "leader", "leader/driver", "store", "github.com/robfig/cron/v3",
		}),
		reason: "fx is a thin layer on the core: no client and no backend come with it",
	},
	{
		from:   []string{"scheduler/switchwatch", "scheduler/switchwatch/storeswitch"},
		may:    switchParts,
		reason: "keeping a switch in step with a centre links the core and no client",
	},
	{
		from:   []string{"scheduler/switchwatch/etcdswitch"},
		may:    all(switchParts, etcdClient),
		reason: "a configuration centre links its seam and its one client",
	},
	{
		from:   []string{"scheduler/switchwatch/redisswitch"},
		may:    all(switchParts, redisClient),
		reason: "a configuration centre links its seam and its one client",
	},
	{
		from:   []string{"scheduler/switchwatch/zkswitch"},
		may:    all(switchParts, zkClient),
		reason: "a configuration centre links its seam and its one client",
	},
	{
		from:   []string{"adapters/cronlock"},
		may:    all(base, []string{"locks", "locks/driver", "github.com/robfig/cron/v3"}),
		reason: "who keeps another scheduler links the lock and that scheduler, not ours",
	},
	{
		from:   []string{"configs/secret", "configs/transport"},
		may:    []string{},
		reason: "every plugin's Config may hold one of each",
	},
	{
		from:   []string{"configs/strictyaml"},
		may:    all(base, yamlLibrary),
		reason: "reading YAML strictly knows nothing of what is read",
	},
	{
		from: []string{"configs"},
		may: all(base, yamlLibrary, []string{
			"configs/strictyaml", "scheduler/execjob", "scheduler/httpjob", "scheduler/admin", // their Configs are parts of the file
			"scheduler", "scheduler/cronspec", "locks", "locks/driver", "leader", "leader/driver", "store",
			"github.com/robfig/cron/v3", "github.com/fsnotify/fsnotify",
		}),
		reason: "reading the file links no client: a plugin decodes its own part",
	},
	{
		from:   []string{"internal/sqldialect"},
		may:    all(base, gormLibrary, sqlite),
		reason: "it serves sqllock and gormstore, so it knows neither, and drivers of other databases are chosen by the program",
	},
	{
		from:    []string{"internal/..."},
		except:  testSupport,
		mustNot: all([]string{"locks/...", "leader/...", "store/...", "idempotent/...", "scheduler/...", "configs", "cmd/...", "examples/..."}),
		reason:  "dependencies point downwards only, and internal is the ground",
	},
	{
		from:    []string{"..."},
		except:  all(programs, []string{"scheduler/schedulerfx"}),
		mustNot: fxLibrary,
		reason:  "everything works without fx; only schedulerfx and programs wire with it",
	},
	{
		from:    []string{"..."},
		except:  testSupport,
		mustNot: all(testSupport, testLibrary),
		reason:  "test code and its flags once leaked into users' binaries elsewhere; shipped packages and programs link none",
	},
	{
		from:    []string{"locks/lockstest", "leader/leadertest", "store/storetest", "scheduler/schedulertest", "scheduler/switchwatch/switchwatchtest"},
		mustNot: all(fxLibrary, redisClient, etcdClient, zkClient, mysqlDriver, pgDriver, []string{"internal/testenv"}),
		reason:  "strangers run these suites on their own backends and get no client of ours with them",
	},
	{
		from:    []string{"..."},
		except:  programs,
		mustNot: []string{"cmd/...", "examples/...", "github.com/spf13/cobra"},
		reason:  "nothing stands above the programs",
	},
	{
		from:    []string{"..."},
		except:  all(programs, []string{"scheduler/sqljob", "locks/sqllock/*", "internal/sqldialect/*"}, testSupport),
		mustNot: all(mysqlDriver, pgDriver),
		reason:  "a worker on SQLite or Redis does not link MySQL and PostgreSQL",
	},
	{
		from:   []string{"..."},
		except: all(programs, testSupport),
		oneOf: map[string][]string{
			"redis": redisClient, "etcd": etcdClient, "zookeeper": zkClient, "sql": gormLibrary,
		},
		reason: "a worker that uses Redis does not link etcd, ZooKeeper or SQL through it",
	},
}

// free names the packages that no list of what they may link governs, and why
// not. Every other package must be in a law with such a list.
var free = []struct {
	packages []string
	reason   string
}{
	{programs, "programs choose among everything"},
	{testSupport, "only tests link them"},
	{[]string{"internal/..."}, "judged with each package that links them"},
	{[]string{"idempotent/*"}, "leaves of one client each, held by the rule of families"},
	{[]string{"scheduler/admin"}, "attached by the program as server"},
	{[]string{"scheduler/streamqueue"}, "leaves of one client each, held by the rule of families"},
}
