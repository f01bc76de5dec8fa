package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/libtnb/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/sqldialect"
)

// Options of [Open]. The zero Options is ready for use; a nil *Options too.
type Options struct {
	// BusyTimeout is how long a statement waits for a writer in another process.
	// The statement's context ends the wait earlier. Default 5s.
	BusyTimeout time.Duration
	// Readers is the number of connections for SELECTs. Default 4.
	Readers int
	// OpenTimeout bounds Open where other processes create the same file.
	// Default 10s.
	OpenTimeout time.Duration
	// Logger gets GORM's warnings: failed and slow statements, without their
	// values. Default none.
	Logger *slog.Logger
}

func (o *Options) withDefaults() (Options, error) {
	var v Options
	if o != nil {
		v = *o
	}
	if v.BusyTimeout < 0 || v.Readers < 0 || v.OpenTimeout < 0 {
		return v, errors.New("sqlitedb: BusyTimeout, Readers and OpenTimeout cannot be negative: leave them out for the defaults")
	}
	if v.BusyTimeout == 0 {
		v.BusyTimeout = 5 * time.Second
	}
	if v.Readers == 0 {
		v.Readers = 4
	}
	if v.OpenTimeout == 0 {
		v.OpenTimeout = 10 * time.Second
	}
	return v, nil
}

// Open opens the database file at path and creates it if it does not exist; the
// directory must exist. Close it with [Close].
//
// A path that cannot work is refused before SQLite is asked, so that nothing on
// disk changes: a directory, a missing parent, a file or directory that cannot be
// read or written (by its permission bits, for root as well), a network file
// system, a file that is not a SQLite database or is damaged.
//
// The *gorm.DB is quiet, runs single statements without a transaction around
// them, and prepares the statements it sees again. In-memory databases are
// refused: they have no second process and no second connection.
func Open(path string, o *Options) (*gorm.DB, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkPath(path); err != nil {
		return nil, fmt.Errorf("sqlitedb: %w", err)
	}
	// Connections are opened later too, perhaps from another working directory.
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("sqlitedb: %w", err)
	}
	//nolint:forbidigo // gorm.Open takes no context either; OpenTimeout bounds it
	ctx, cancel := context.WithTimeout(context.Background(), opts.OpenTimeout)
	defer cancel()
	p, err := connect(ctx, path, opts)
	if err != nil {
		return nil, fmt.Errorf("sqlitedb: open %s: %w", path, err)
	}
	log := logger.Discard
	if opts.Logger != nil {
		log = logger.NewSlogLogger(opts.Logger, logger.Config{
			LogLevel: logger.Warn, SlowThreshold: time.Second, IgnoreRecordNotFoundError: true, ParameterizedQueries: true,
		})
	}
	db, err := gorm.Open(sqlite.New(sqlite.Config{Conn: p}), &gorm.Config{
		SkipDefaultTransaction: true,
		DisableAutomaticPing:   true,
		Logger:                 log,
	})
	if err != nil {
		return nil, fmt.Errorf("sqlitedb: open %s: %w", path, errors.Join(err, p.close()))
	}
	return db, nil
}

// Close closes the connections of a db that Open made. Statements in progress
// are waited for.
func Close(db *gorm.DB) error {
	p, ok := db.ConnPool.(*pool)
	if !ok {
		return fmt.Errorf("sqlitedb: close: this *gorm.DB was not opened by this package (it has a %T)", db.ConnPool)
	}
	if err := p.close(); err != nil {
		return fmt.Errorf("sqlitedb: close: %w", err)
	}
	return nil
}

// connect opens the connections and sees the file answer. Several processes that
// turn a new file to WAL at once get "busy" without a wait, so it tries again.
func connect(ctx context.Context, path string, o Options) (*pool, error) {
	d := sqldialect.SQLite()
	delay := backoff.Policy{Base: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	for n := 0; ; n++ {
		p, err := dial(ctx, path, o)
		if err == nil {
			return p, nil
		}
		if d.Classify(err) != sqldialect.Busy || backoff.Wait(ctx, delay.Delay(n)) != nil {
			return nil, d.Explain(err)
		}
	}
}

func dial(ctx context.Context, path string, o Options) (*pool, error) {
	if err := checkBody(ctx, path, o); err != nil {
		return nil, err
	}
	writer, err := sql.Open(sqlite.DriverName, dsn(path, o, "_txlock=immediate",
		pragma("journal_mode(WAL)"), pragma("synchronous(FULL)")))
	if err != nil {
		return nil, err
	}
	writer.SetMaxOpenConns(1)
	readers, err := sql.Open(sqlite.DriverName, dsn(path, o, "_query_only=1"))
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	readers.SetMaxOpenConns(o.Readers)
	readers.SetMaxIdleConns(o.Readers)
	p := newPool(writer, readers)
	var mode string
	if err := writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if mode != "wal" {
		return nil, errors.Join(fmt.Errorf("journal mode is %q, not wal: this file system cannot share memory between processes", mode), p.close())
	}
	return p, nil
}

// dsn names the file as a URI, so that no character of the path is taken for a
// parameter. Time columns of the user's models travel as with libtnb's own opener.
func dsn(path string, o Options, params ...string) string {
	common := "_time_format=sqlite&_inttotime=1&_busy_timeout=" + strconv.FormatInt(o.BusyTimeout.Milliseconds(), 10)
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + strings.Join(append(params, common), "&")
}

func pragma(p string) string { return "_pragma=" + url.QueryEscape(p) }
