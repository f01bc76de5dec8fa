package sqllock_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/sqllock"
	sqlmysql "github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
)

// place is a database of a server, with a user that has the grants of the package
// comment and no more.
type place struct {
	tb    testing.TB
	name  string
	addr  string
	dsnAt func(addr string) string // the administrator's
	admin *gorm.DB
}

// places are the kinds of servers. The server of a test of its own may be
// restarted, a shared one may not.
var places = []struct {
	name   string
	shared func(tb testing.TB) *place
	own    func(tb testing.TB) (*place, *testenv.Server)
}{
	{
		"postgres",
		func(tb testing.TB) *place {
			s := testenv.SharedPostgres(tb)
			return newPlace(tb, "postgres", s.Addr, s.DSNAt)
		},
		func(tb testing.TB) (*place, *testenv.Server) {
			s := testenv.Postgres(tb)
			return newPlace(tb, "postgres", s.Addr(), s.DSNAt), s.Server
		},
	},
	{
		"mariadb",
		func(tb testing.TB) *place {
			s := testenv.SharedMySQL(tb)
			return newPlace(tb, "mariadb", s.Addr, s.DSNAt)
		},
		func(tb testing.TB) (*place, *testenv.Server) {
			s := testenv.MariaDB(tb)
			return newPlace(tb, "mariadb", s.Addr(), s.DSNAt), s.Server
		},
	},
}

func newPlace(tb testing.TB, name, addr string, dsnAt func(string) string) *place {
	tb.Helper()
	p := &place{tb: tb, name: name, addr: addr, dsnAt: dsnAt}
	var closer func() error
	p.admin, closer = p.open(dsnAt(addr), 4)
	tb.Cleanup(func() {
		if err := closer(); err != nil {
			tb.Error(err)
		}
	})
	pool, err := p.admin.DB()
	if err != nil {
		tb.Fatal(err)
	}
	pool.SetMaxIdleConns(1) // the suite counts goroutines, and a connection may have one
	d, err := sqllock.NewDriver(p.admin)
	if err != nil {
		tb.Fatal(err)
	}
	if err := d.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	for _, grant := range p.grants() {
		if err := p.admin.Exec(grant).Error; err != nil && !strings.Contains(err.Error(), "already exists") {
			tb.Fatalf("%s: %v", grant, err)
		}
	}
	return p
}

// grants are the lines of the package comment.
func (p *place) grants() []string {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		p.tb.Fatal(err)
	}
	mark := map[string]string{"postgres": "-- PostgreSQL", "mariadb": "-- MariaDB"}[p.name]
	_, text, found := strings.Cut(string(doc), mark)
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "//"))
		if strings.HasPrefix(line, "--") || line == "" && lines != nil {
			break
		}
		if line = strings.TrimSuffix(line, ";"); line != "" && strings.ToUpper(line[:5]) == line[:5] {
			lines = append(lines, line)
		}
	}
	if !found || len(lines) < 2 {
		p.tb.Fatalf("no grants for %s in doc.go: %q", p.name, lines)
	}
	return lines
}

// userDSN is how the user with few rights connects.
func (p *place) userDSN(addr string) string {
	if p.name == "mariadb" {
		c, err := mysql.ParseDSN(p.dsnAt(addr))
		if err != nil {
			p.tb.Fatal(err)
		}
		c.User, c.Passwd = "locker", "secret"
		return c.FormatDSN()
	}
	u, err := url.Parse(p.dsnAt(addr))
	if err != nil {
		p.tb.Fatal(err)
	}
	u.User = url.UserPassword("locker", "secret")
	return u.String()
}

func (p *place) config(dsn string, conns int) sqldialect.ServerConfig {
	return sqldialect.ServerConfig{DSN: secret.New(dsn), MaxConns: conns}
}

func (p *place) open(dsn string, conns int) (*gorm.DB, func() error) {
	p.tb.Helper()
	open := postgresdb.Open
	if p.name == "mariadb" {
		open = mysqldb.Open
	}
	db, closer, err := open(p.config(dsn, conns))
	if err != nil {
		p.tb.Fatal(err)
	}
	return db, closer
}

// user opens the database as the user with few rights.
func (p *place) user(tb testing.TB, conns int) *gorm.DB {
	tb.Helper()
	db, closer := p.open(p.userDSN(p.addr), conns)
	tb.Cleanup(func() {
		if err := closer(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// driver opens the backend as the plugin does.
func (p *place) driver(tb testing.TB, addr string, mode sqllock.Mode) driver.Driver {
	tb.Helper()
	var d driver.Driver
	var err error
	if p.name == "mariadb" {
		d, err = sqlmysql.Open(sqlmysql.Config{Server: p.config(p.userDSN(addr), 0), Mode: mode})
	} else {
		d, err = postgres.Open(postgres.Config{Server: p.config(p.userDSN(addr), 0), Mode: mode})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// testTTL gives a request a fifth of it, on a machine that is busy with other things.
const testTTL = 2 * time.Second

// warm opens the connections, which on a busy machine takes longer than a request has.
func warm(tb testing.TB, d driver.Driver) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	r := request("warm" + driver.NewToken().String())
	r.TTL = testTTL
	g, err := d.Acquire(ctx, r)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := d.Release(ctx, driver.Hold{Request: r, Fence: g.Fence}); err != nil {
		tb.Fatal(err)
	}
}

func (p *place) harness(mode sqllock.Mode, server *testenv.Server) lockstest.Harness {
	h := lockstest.Harness{
		TTL: testTTL, SideBySide: 12,
		New: func(tb testing.TB) driver.Driver {
			tb.Helper()
			d := p.driver(tb, p.addr, mode)
			warm(tb, d)
			return d
		},
		Delete: func(tb testing.TB, key string) {
			tb.Helper()
			p.deleteRow(tb, key)
			if mode == sqllock.ModeAdvisory {
				p.endSessionLock(tb, key)
			}
		},
		Proxied: func(tb testing.TB) (driver.Driver, func(), func()) {
			tb.Helper()
			proxy := faultproxy.Start(tb, p.addr)
			d := p.driver(tb, proxy.Addr(), mode)
			warm(tb, d)
			return d, func() { proxy.BlackHole(faultproxy.Both) }, proxy.Pass
		},
	}
	if server != nil {
		h.Restart = func(tb testing.TB) {
			tb.Helper()
			server.Kill()
			server.Restart()
			p.forgetConnections(tb)
		}
	}
	return h
}

// row is a key as the table has it.
func (p *place) row(key string) any {
	if p.name == "mariadb" {
		return []byte(key)
	}
	return key
}

func (p *place) deleteRow(tb testing.TB, key string) {
	tb.Helper()
	if err := p.admin.Exec("DELETE FROM solotick_locks WHERE name = ?", p.row(key)).Error; err != nil {
		tb.Fatal(err)
	}
}

// endSessionLock ends the connection with a key's session lock, as an operator would.
func (p *place) endSessionLock(tb testing.TB, key string) {
	tb.Helper()
	a, err := sqllock.NewAdvisory(p.admin)
	if err != nil {
		tb.Fatal(err)
	}
	// The row is gone; what is left is the connection's.
	if _, err := a.ForceRelease(tb.Context(), key); err != nil {
		tb.Fatal(err)
	}
	if err := a.Close(); err != nil {
		tb.Fatal(err)
	}
}

func TestRowConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			p, server := kind.own(t)
			h := p.harness(sqllock.ModeRow, server)
			h.Delete, h.Transactions = nil, true // a row that is locked cannot be deleted
			lockstest.Run(t, h)
		})
	}
}

// All traffic through a proxy that is as slow as a network and cuts every connection
// where the suite asks for a restart.
func TestConformanceThroughAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			p, _ := kind.own(t)
			proxy := faultproxy.Start(t, p.addr)
			proxy.Delay(faultproxy.Both, time.Millisecond)
			h := p.harness(sqllock.ModeLease, nil)
			h.New = func(tb testing.TB) driver.Driver {
				tb.Helper()
				d := p.driver(tb, proxy.Addr(), sqllock.ModeLease)
				warm(tb, d)
				return d
			}
			h.Restart = func(testing.TB) { proxy.Reset() }
			lockstest.Run(t, h)
		})
	}
}

var modes = []sqllock.Mode{sqllock.ModeLease, sqllock.ModeAdvisory}

func TestServerConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	for _, kind := range places {
		t.Run(kind.name, func(t *testing.T) {
			p, server := kind.own(t)
			for _, mode := range modes {
				t.Run(string(mode), func(t *testing.T) {
					h := p.harness(mode, server)
					// What is above the driver, the same one shows on PostgreSQL.
					h.Short = kind.name == "mariadb" && mode == sqllock.ModeAdvisory
					lockstest.Run(t, h)
				})
			}
		})
	}
}

func BenchmarkServers(b *testing.B) {
	for _, kind := range places {
		for _, mode := range modes {
			b.Run(kind.name+"/"+string(mode), func(b *testing.B) {
				lockstest.Bench(b, kind.shared(b).harness(mode, nil))
			})
		}
	}
}

func contextWithin(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}
