//go:build linux

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// redisSpaces is the number of Redis databases, one a test.
const redisSpaces = 4096

// Space is what one test has in a server that it shares with others.
type Space struct {
	Addr string // host:port of the server
	// Name is not used by any other test of the process: a prefix for keys, nodes and
	// topics, of letters and digits. It is the name of the SQL database.
	Name string
	DB   int // number of the Redis database; its channels are shared with all
	dsn  func(addr string) string
}

// DSN returns what an administrator connects to the space's database with, as
// [Database.DSN] does. Other servers have none.
func (s Space) DSN() string { return s.dsn(s.Addr) }

// DSNAt is DSN through another address, such as a proxy's.
func (s Space) DSNAt(addr string) string { return s.dsn(addr) }

// pool holds the shared servers of the process.
var pool struct {
	mu      sync.Mutex
	open    bool
	servers map[string]*shared
	spaces  atomic.Int64
}

// shared is a server that was started once, or the reason why it was not.
type shared struct {
	server *Server
	err    error
}

// Runner is what goleak.VerifyTestMain runs.
type Runner struct{ m *testing.M }

// Main makes of m what runs the tests and then ends the servers that they shared,
// so that goleak finds them gone.
func Main(m *testing.M) Runner { return Runner{m} }

// Run runs the tests.
func (r Runner) Run() int {
	pool.mu.Lock()
	pool.open, pool.servers = true, map[string]*shared{}
	pool.mu.Unlock()
	code := r.m.Run()
	pool.mu.Lock()
	defer pool.mu.Unlock()
	pool.open = false
	for name, s := range pool.servers {
		if s.server == nil {
			continue
		}
		if err := s.server.close(); err != nil {
			fmt.Fprintf(os.Stderr, "testenv: end the shared %s: %v\n", name, err)
			code = max(code, 1)
		}
	}
	return code
}

// share returns the shared server of the recipe, and a name for the test.
func share(tb testing.TB, r recipe) (*Server, Space) {
	tb.Helper()
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if !pool.open {
		tb.Fatal("testenv: sharing servers needs TestMain to call goleak.VerifyTestMain(testenv.Main(m))")
	}
	s := pool.servers[r.name]
	if s == nil {
		s = &shared{}
		s.server, s.err = newServer(r)
		if s.err == nil {
			if s.err = start(s.server); s.err != nil {
				s.err = errors.Join(s.err, s.server.close())
				s.server = nil
			}
		}
		pool.servers[r.name] = s
	}
	if s.err != nil {
		skipOrFail(tb, s.err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the log of the shared %s at %s ends with:\n%s", r.name, s.server.Addr(), s.server.logTail())
		}
	})
	return s.server, Space{Addr: s.server.Addr(), Name: spaceName()}
}

func spaceName() string { return fmt.Sprintf("t%d", pool.spaces.Add(1)) }

// cleanup runs something at the test's end, within a bound.
func cleanup(tb testing.TB, what string, do func(context.Context) error) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := do(ctx); err != nil {
			tb.Errorf("testenv: %s: %v", what, err)
		}
	})
}

// SharedRedis returns an empty database of the package's Redis. The test must not
// run FLUSHALL, change the configuration or harm the server in any way.
func SharedRedis(tb testing.TB) Space {
	tb.Helper()
	_, space := share(tb, redisRecipe())
	var number int
	if _, err := fmt.Sscanf(space.Name, "t%d", &number); err != nil {
		tb.Fatal(err)
	}
	space.DB = number % redisSpaces
	flush := func(ctx context.Context) error {
		_, err := redisDo(ctx, space.Addr, fmt.Sprintf("SELECT %d", space.DB), "FLUSHDB")
		return err
	}
	cleanup(tb, "flush the test's Redis database", flush)
	return space
}

// SharedEtcd returns the package's etcd, of one member.
func SharedEtcd(tb testing.TB) Space {
	tb.Helper()
	_, space := share(tb, etcdRecipe())
	return space
}

// SharedZooKeeper returns the package's ZooKeeper; [ZooKeeper] says how it is set.
func SharedZooKeeper(tb testing.TB) Space {
	tb.Helper()
	_, space := share(tb, zookeeperRecipe())
	return space
}

// SharedPostgres returns an empty database of the package's PostgreSQL.
func SharedPostgres(tb testing.TB) Space {
	tb.Helper()
	server, space := share(tb, postgresRecipe())
	space.dsn = func(addr string) string { return postgresDSN(addr, space.Name) }
	admin := postgresDSN(server.Addr(), "postgres")
	own(tb, "pgx", admin, space.Name, " WITH (FORCE)")
	return space
}

// SharedMySQL returns an empty database of the package's MariaDB or, where the
// environment has SOLOTICK_TEST_MYSQL_DSN, of the MySQL that its DSN names, in the
// form of go-sql-driver and as a user who may create databases. There is no MySQL
// on Debian, so that is how claims about it are tested elsewhere.
func SharedMySQL(tb testing.TB) Space {
	tb.Helper()
	var space Space
	config := &mysql.Config{}
	if given := os.Getenv("SOLOTICK_TEST_MYSQL_DSN"); given != "" {
		var err error
		if config, err = mysql.ParseDSN(given); err != nil {
			tb.Fatalf("testenv: SOLOTICK_TEST_MYSQL_DSN: %v", err)
		}
		config.ParseTime = true
		// Other processes may use the server at the same time.
		space = Space{Addr: config.Addr, Name: fmt.Sprintf("solotick%d%s", os.Getpid(), spaceName())}
	} else {
		_, space = share(tb, mariadbRecipe())
		config = mysqlConfig(space.Addr, "")
	}
	dsn := func(addr, database string) string {
		c := config.Clone()
		c.Addr, c.DBName = addr, database
		return c.FormatDSN()
	}
	space.dsn = func(addr string) string { return dsn(addr, space.Name) }
	own(tb, "mysql", dsn(space.Addr, ""), space.Name, "")
	return space
}

// own creates a database for the test and drops it at the end.
func own(tb testing.TB, driver, admin, name, drop string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := execute(ctx, driver, admin, "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("testenv: create the test's database: %v", err)
	}
	cleanup(tb, "drop the test's database", func(ctx context.Context) error {
		return execute(ctx, driver, admin, strings.TrimSpace("DROP DATABASE "+name+drop))
	})
}
