package sqllock_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
	sqlmysql "github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
)

// opened is the backend of a configuration, in every mode.
func opened(t *testing.T, kind string, server sqldialect.ServerConfig, mode sqllock.Mode) driver.Driver {
	t.Helper()
	var d driver.Driver
	var err error
	if kind == "mariadb" {
		d, err = sqlmysql.Open(sqlmysql.Config{Server: server, Mode: mode})
	} else {
		d, err = postgres.Open(postgres.Config{Server: server, Mode: mode})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

var allModes = []sqllock.Mode{sqllock.ModeLease, sqllock.ModeAdvisory, sqllock.ModeRow}

// A wrong password is told as what it is, and never shown.
func TestWrongPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, p *place) {
		server := p.config(p.userDSN(p.addr), 2)
		server.Password = secret.New("canary")
		for _, mode := range allModes {
			ctx, cancel := contextWithin(t, 20*time.Second)
			_, err := opened(t, p.name, server, mode).Acquire(ctx, request("k"))
			cancel()
			if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "locker") || !driver.IsNotApplied(err) {
				t.Errorf("%s: %v, want one that names the user, not the password, and says that nothing was done", mode, err)
			}
		}
	})
}

// A server that accepts and says nothing, as one behind a firewall, is waited for as
// long as the request says, and closing waits no longer than connect_timeout.
func TestUnreachableServerIsWaitedForWithinABound(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	addr := silent.Addr().String()
	for kind, dsn := range map[string]string{
		"postgres": "postgres://u:canary@" + addr + "/d?sslmode=disable",
		"mariadb":  "u:canary@tcp(" + addr + ")/d",
	} {
		t.Run(kind, func(t *testing.T) {
			for _, mode := range allModes {
				start := time.Now()
				d := opened(t, kind, sqldialect.ServerConfig{DSN: secret.New(dsn), ConnectTimeout: 300 * time.Millisecond}, mode)
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				_, err := d.Acquire(ctx, request("k"))
				cancel()
				if err == nil || strings.Contains(err.Error(), "canary") || !driver.IsNotApplied(err) {
					t.Errorf("%s: %v", mode, err)
				}
				if took := time.Since(start); took > time.Minute/2 {
					t.Errorf("%s: waited for %v", mode, took)
				}
			}
		})
	}
}

// What cannot work is refused before anything is sent, with the reason.
func TestBadConfigurationIsRefused(t *testing.T) {
	pg := sqldialect.ServerConfig{DSN: secret.New("postgres://u@127.0.0.1/d?sslmode=disable")}
	my := sqldialect.ServerConfig{DSN: secret.New("u@tcp(127.0.0.1:1)/d")}
	for want, open := range map[string]func() (driver.Driver, error){
		"mode":         func() (driver.Driver, error) { return postgres.Open(postgres.Config{Server: pg, Mode: "rows"}) },
		"table_prefix": func() (driver.Driver, error) { return sqlmysql.Open(sqlmysql.Config{Server: my, TablePrefix: "A-"}) },
		"dsn":          func() (driver.Driver, error) { return sqlmysql.Open(sqlmysql.Config{}) },
		"max_conns": func() (driver.Driver, error) {
			one := pg
			one.MaxConns = 1
			return postgres.Open(postgres.Config{Server: one, Mode: sqllock.ModeAdvisory})
		},
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	d := opened(t, "mariadb", my, sqllock.ModeRow)
	for _, ttl := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
		if _, err := locks.New(d, locks.Config{TTL: ttl}); err == nil || !strings.Contains(err.Error(), "ttl") {
			t.Errorf("TTL %v in mode row on MariaDB: %v", ttl, err)
		}
	}
}
