// Package postgresdb opens PostgreSQL for the store and the lock: pgx behind one
// *gorm.DB, with the rules that operators rely on: TLS to another host, a bound
// on every dial, no password in an error.
package postgresdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/internal/sqldialect"
)

// Parse checks a configuration and makes of it what pgx connects with. It sends
// nothing.
func Parse(c sqldialect.ServerConfig) (*pgx.ConnConfig, error) {
	c = c.Defaults()
	if c.DSN.IsZero() {
		return nil, errors.New("dsn: it is empty; name the database, such as postgres://user@host:5432/name?sslmode=verify-full")
	}
	cfg, err := pgx.ParseConfig(c.DSN.Reveal())
	if err != nil {
		// The parser's error quotes the DSN.
		return nil, errors.New("dsn: pgx cannot read it; write it as postgres://user@host:5432/name?sslmode=verify-full")
	}
	if !c.Password.IsZero() {
		cfg.Password = c.Password.Reveal()
	}
	cfg.ConnectTimeout = c.ConnectTimeout
	cfg.DialFunc = (&net.Dialer{Timeout: c.ConnectTimeout, KeepAlive: 15 * time.Second}).DialContext
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "solotick"
	}
	if cfg.RuntimeParams["plan_cache_mode"] == "" {
		// A plan that was made and kept while a table was empty scans the whole of it
		// when it no longer is, until the next autovacuum.
		cfg.RuntimeParams["plan_cache_mode"] = "force_custom_plan"
	}
	if c.TLS.On() {
		if cfg.TLSConfig, err = c.TLS.Config(cfg.Host); err != nil {
			return nil, err
		}
		for _, f := range cfg.Fallbacks {
			if f.TLSConfig, err = c.TLS.Config(f.Host); err != nil {
				return nil, err
			}
		}
	}
	if err := c.CheckTransport(cfg.Host, cfg.TLSConfig); err != nil {
		return nil, err
	}
	for _, f := range cfg.Fallbacks {
		if err := c.CheckTransport(f.Host, f.TLSConfig); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// Open returns a quiet *gorm.DB that runs single statements without a transaction
// around them. It sends nothing. The caller closes it.
func Open(c sqldialect.ServerConfig) (*gorm.DB, func() error, error) {
	cfg, err := Parse(c)
	if err != nil {
		return nil, nil, fmt.Errorf("postgresdb: %w", err)
	}
	return Connect(cfg, c)
}

// Connect is Open with what Parse returned, as the caller has changed it.
func Connect(cfg *pgx.ConnConfig, c sqldialect.ServerConfig) (*gorm.DB, func() error, error) {
	c = c.Defaults()
	pool := sql.OpenDB(sqldialect.Patient(stdlib.GetConnector(*cfg), c.ConnectTimeout))
	pool.SetMaxOpenConns(c.MaxConns)
	pool.SetMaxIdleConns(c.MaxConns)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	db, err := Over(pool)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("postgresdb: %w", err), pool.Close())
	}
	return db, pool.Close, nil
}

// Over is the *gorm.DB over an open pool of pgx connections.
func Over(pool *sql.DB) (*gorm.DB, error) {
	// pgx keeps prepared statements by itself.
	return gorm.Open(postgres.New(postgres.Config{Conn: pool}),
		&gorm.Config{SkipDefaultTransaction: true, DisableAutomaticPing: true, Logger: logger.Discard})
}

// ConfigOf returns what the connections behind db were made with, or an error if
// they are not pgx's.
func ConfigOf(ctx context.Context, db *gorm.DB) (*pgx.ConnConfig, error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var cfg *pgx.ConnConfig
	err = conn.Raw(func(c any) error {
		std, ok := c.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("postgresdb: the connections are %T, not of pgx", c)
		}
		cfg = std.Conn().Config().Copy()
		cfg.OnNotification, cfg.OnNotice = nil, nil // those of that connection
		return nil
	})
	return cfg, errors.Join(err, conn.Close())
}
