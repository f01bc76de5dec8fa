package gormstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/storetest"
)

// server is a database of the package's server of one kind.
type server struct {
	name  string
	addr  string
	dsnAt func(addr string) string
}

// servers are the kinds of database servers.
var servers = map[string]func(tb testing.TB) server{
	"postgres": func(tb testing.TB) server {
		s := testenv.SharedPostgres(tb)
		return server{"postgres", s.Addr, s.DSNAt}
	},
	"mariadb": func(tb testing.TB) server {
		s := testenv.SharedMySQL(tb)
		return server{"mariadb", s.Addr, s.DSNAt}
	},
}

// onServers runs a test on every kind of server, with a database of its own.
func onServers(t *testing.T, run func(t *testing.T, s server)) {
	t.Helper()
	for name, open := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open(t))
		})
	}
}

// oneByOne is onServers for what is measured.
func oneByOne(t *testing.T, run func(t *testing.T, s server)) {
	t.Helper()
	for name, open := range servers {
		t.Run(name, func(t *testing.T) { run(t, open(t)) })
	}
}

// open opens the database, as another process would.
func (s server) open(tb testing.TB, dsn string, conns int) *gorm.DB {
	tb.Helper()
	open := postgresdb.Open
	if s.name == "mariadb" {
		open = mysqldb.Open
	}
	db, closer, err := open(sqldialect.ServerConfig{DSN: secret.New(dsn), MaxConns: conns})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := closer(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func (s server) db(tb testing.TB, conns int) *gorm.DB {
	tb.Helper()
	return s.open(tb, s.dsnAt(s.addr), conns)
}

var prefixes atomic.Int64

// tables is a prefix that no other test has.
func tables() gormstore.Option { return gormstore.WithPrefix(fmt.Sprintf("t%d_", prefixes.Add(1))) }

func TestServerConformance(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			prefix := tables()
			return storetest.Harness{Open: func(tb testing.TB) store.Store { return newStore(tb, s.db(tb, 4), prefix) }}
		})
	})
}
