//go:build linux

package testenv

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"golang.org/x/sys/unix"
)

// Database is an SQL server of one test.
type Database struct {
	*Server
	dsn func(addr string) string
}

// DSN returns what an administrator connects with, in the form of the server's
// driver: a postgres:// address for pgx, the form of go-sql-driver for MariaDB.
func (d *Database) DSN() string { return d.dsn(d.Addr()) }

// DSNAt is DSN through another address, such as a proxy's.
func (d *Database) DSNAt(addr string) string { return d.dsn(addr) }

const (
	sqlUser     = "solotick"
	sqlPassword = "solotick"
	sqlDatabase = "solotick"
)

func postgresDSN(addr, database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(sqlUser, sqlPassword), Host: addr, Path: database, RawQuery: "sslmode=disable"}
	return u.String()
}

func mysqlConfig(addr, database string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.Net, c.Addr, c.DBName, c.ParseTime = sqlUser, sqlPassword, "tcp", addr, database, true
	return c
}

// Postgres starts a PostgreSQL whose connections need a password. It does not wait
// for the disk: what is committed survives a kill, not a crash of the machine. The
// arguments are further ones of the server, such as "-c", "fsync=on"; they win.
func Postgres(tb testing.TB, args ...string) *Database {
	tb.Helper()
	return &Database{
		Server: create(tb, postgresRecipe(args...)),
		dsn:    func(addr string) string { return postgresDSN(addr, sqlDatabase) },
	}
}

// MariaDB starts a MariaDB whose connections need a password. The arguments are
// further ones of the server, such as "--max-connections=5"; they win.
func MariaDB(tb testing.TB, args ...string) *Database {
	tb.Helper()
	return &Database{
		Server: create(tb, mariadbRecipe(args...)),
		dsn:    func(addr string) string { return mysqlConfig(addr, sqlDatabase).FormatDSN() },
	}
}

func postgresRecipe(args ...string) recipe {
	return recipe{
		name: "postgres", program: []string{"/usr/lib/postgresql/*/bin/postgres", "postgres"}, ports: 1,
		user: "postgres", // it refuses root
		// Quitting it ends its backends and frees its shared memory; SIGTERM would wait
		// for the clients.
		death: syscall.SIGQUIT, stop: syscall.SIGINT,
		prepare: func(s *Server) ([]string, error) {
			err := s.seed(func(data string) error {
				password := filepath.Join(filepath.Dir(data), "password")
				if err := os.WriteFile(password, []byte(sqlPassword), 0o644); err != nil {
					return err
				}
				return s.run(filepath.Join(filepath.Dir(s.binary), "initdb"), "-D", data, "--no-sync", "--no-locale", "--encoding=UTF8",
					"--username="+sqlUser, "--pwfile="+password, "--auth=scram-sha-256")
			})
			return append([]string{
				"-D", s.folder.join("data"), "-p", strconv.Itoa(s.ports[0]),
				"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=400",
				"-c", "shared_buffers=32MB", "-c", "dynamic_shared_memory_type=mmap", "-c", "fsync=off",
			}, args...), err
		},
		ready: func(ctx context.Context, s *Server) error {
			return ensureDatabase(ctx, "pgx", postgresDSN(s.Addr(), "postgres"), sqlDatabase)
		},
		clear: freeSharedMemory,
	}
}

// freeSharedMemory removes the segment that a killed PostgreSQL leaves: its pid
// file, there still after a kill, holds the id.
func freeSharedMemory(s *Server) {
	text, err := os.ReadFile(s.folder.join("data/postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	if ids := strings.Fields(lines[6]); len(ids) == 2 {
		if id, err := strconv.Atoi(ids[1]); err == nil {
			_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) // one that is gone is what we want
		}
	}
}

func mariadbRecipe(args ...string) recipe {
	small := []string{"--no-defaults", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"}
	return recipe{
		name: "mariadb", program: []string{"mariadbd", "/usr/sbin/mariadbd"}, ports: 1,
		user: "mysql", // it refuses root
		prepare: func(s *Server) ([]string, error) {
			install, err := find("mariadb-install-db")
			if err != nil {
				return nil, err
			}
			err = s.seed(func(data string) error {
				return s.run(install, slices.Concat(small, []string{
					"--datadir=" + data, "--skip-test-db", "--auth-root-authentication-method=normal", "--innodb-flush-method=nosync",
				})...)
			})
			if err != nil {
				return nil, err
			}
			script := fmt.Sprintf("CREATE USER IF NOT EXISTS '%[1]s'@'%%' IDENTIFIED BY '%[2]s';\nGRANT ALL ON *.* TO '%[1]s'@'%%' WITH GRANT OPTION;\n",
				sqlUser, sqlPassword)
			if err := os.WriteFile(s.folder.join("init.sql"), []byte(script), 0o644); err != nil {
				return nil, err
			}
			return slices.Concat(small, []string{
				"--datadir=" + s.folder.join("data"), "--init-file=" + s.folder.join("init.sql"),
				"--port=" + strconv.Itoa(s.ports[0]), "--bind-address=127.0.0.1", "--skip-name-resolve",
				"--socket=mysql.sock", "--pid-file=mysql.pid", "--max-connections=500",
			}, args), nil
		},
		ready: func(ctx context.Context, s *Server) error {
			return ensureDatabase(ctx, "mysql", mysqlConfig(s.Addr(), "").FormatDSN(), sqlDatabase)
		},
	}
}

// run runs a program of the server's as the server's user and waits for it.
func (s *Server) run(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = s.folder.path
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second
	p, err := launch(cmd, s.as, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := p.wait(startLimit); err != nil {
		return errors.Join(err, p.kill())
	}
	if p.how != "exit status 0" {
		return fmt.Errorf("%s: %s\n%s", filepath.Base(program), p.how, output.String())
	}
	return nil
}

// seed makes the server's folder "data" a copy of what fill, run once per version
// of the server and of this package, put there. Filling takes seconds.
func (s *Server) seed(fill func(data string) error) error {
	data := s.folder.join("data")
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	version, err := exec.Command(s.binary, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", s.binary, err)
	}
	key := sha256.Sum256(fmt.Appendf(version, "%d 1", os.Getuid())) // count up what fill changes
	seed := filepath.Join(cache, "solotick", fmt.Sprintf("%s-%x", s.recipe.name, key[:6]))
	if _, err := os.Stat(seed); err == nil {
		return copyTree(seed, data)
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if s.as != nil {
		if err := os.Chown(data, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	if err := fill(data); err != nil {
		return err
	}
	// Whole or not at all; of two at a time, either.
	if err := os.MkdirAll(filepath.Dir(seed), 0o755); err != nil {
		return err
	}
	part := fmt.Sprintf("%s.%d", seed, os.Getpid())
	if err := copyTree(data, part); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, seed); err != nil {
		return os.RemoveAll(part)
	}
	return nil
}

// copyTree copies with owners and modes.
func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	return nil
}

// ensureDatabase connects and creates the database where it is missing.
func ensureDatabase(ctx context.Context, driver, dsn, name string) error {
	err := execute(ctx, driver, dsn, "CREATE DATABASE "+name)
	if err != nil && strings.Contains(err.Error(), "exists") {
		return nil
	}
	return err
}

// execute runs one statement over a connection of its own.
func execute(ctx context.Context, driver, dsn, statement string) error {
	var db *sql.DB
	if driver == "mysql" {
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			return err
		}
		config.Logger = &mysql.NopLogger{} // a server that is not up yet is no news
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return err
		}
		db = sql.OpenDB(connector)
	} else {
		var err error
		if db, err = sql.Open(driver, dsn); err != nil {
			return err
		}
	}
	_, err := db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}
