// Package mysqldb opens MariaDB and MySQL for the store and the lock:
// go-sql-driver behind one *gorm.DB, with the rules that operators rely on: TLS to
// another host, a bound on every dial, no password in an error.
package mysqldb

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/internal/sqldialect"
)

// Parse checks a configuration and makes of it what the driver connects with. It
// sends nothing.
func Parse(c sqldialect.ServerConfig) (*driver.Config, error) {
	c = c.Defaults()
	if c.DSN.IsZero() {
		return nil, errors.New("dsn: it is empty; name the database, such as user@tcp(host:3306)/name")
	}
	cfg, err := driver.ParseDSN(c.DSN.Reveal())
	if err != nil {
		// The parser's error may quote a part of the DSN.
		return nil, errors.New("dsn: the driver cannot read it; write it as user@tcp(host:3306)/name")
	}
	if cfg.DBName == "" {
		return nil, errors.New("dsn: it names no database; write it as user@tcp(host:3306)/name")
	}
	if !c.Password.IsZero() {
		cfg.Passwd = c.Password.Reveal()
	}
	host := cfg.Addr
	if h, _, err := net.SplitHostPort(cfg.Addr); err == nil {
		host = h
	}
	if c.TLS.On() {
		if cfg.TLS, err = c.TLS.Config(host); err != nil {
			return nil, err
		}
		cfg.AllowFallbackToPlaintext = false
	}
	if cfg.AllowFallbackToPlaintext {
		err = c.CheckTransport(host, nil)
	} else {
		err = c.CheckTransport(host, cfg.TLS)
	}
	if err != nil {
		return nil, err
	}
	cfg.Timeout = c.ConnectTimeout
	cfg.InterpolateParams = true // else every statement is prepared, run and closed
	cfg.ParseTime, cfg.Loc = true, time.UTC
	cfg.Logger = &driver.NopLogger{} // what goes wrong is told by an error
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	if _, set := cfg.Params["innodb_lock_wait_timeout"]; !set {
		cfg.Params["innodb_lock_wait_timeout"] = "5"
	}
	return cfg, nil
}

// Open returns a quiet *gorm.DB that runs single statements without a transaction
// around them. It sends nothing. The caller closes it.
func Open(c sqldialect.ServerConfig) (*gorm.DB, func() error, error) {
	cfg, err := Parse(c)
	if err != nil {
		return nil, nil, fmt.Errorf("mysqldb: %w", err)
	}
	connector, err := driver.NewConnector(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("mysqldb: dsn: %w", err)
	}
	c = c.Defaults()
	pool := sql.OpenDB(sqldialect.Patient(connector, c.ConnectTimeout))
	pool.SetMaxOpenConns(c.MaxConns)
	pool.SetMaxIdleConns(c.MaxConns)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	db, err := Over(pool)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("mysqldb: %w", err), pool.Close())
	}
	return db, func() error {
		// Its errors are those of connections that the server or the network has ended,
		// and that cannot say goodbye. Closed they all are.
		_ = pool.Close()
		return nil
	}, nil
}

// Over is the *gorm.DB over an open pool of connections.
func Over(pool *sql.DB) (*gorm.DB, error) {
	return gorm.Open(mysql.New(mysql.Config{Conn: pool, SkipInitializeWithVersion: true}),
		&gorm.Config{SkipDefaultTransaction: true, DisableAutomaticPing: true, Logger: logger.Discard})
}
