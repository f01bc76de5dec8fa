// Package inbox lets a consumer of messages act once on each, however often a broker
// delivers it.
//
//	err := db.Transaction(func(tx *gorm.DB) error {
//		first, err := inbox.Once(tx, "billing", msg.ID)
//		if err != nil || !first {
//			return err // nil for a repeat: acknowledge it
//		}
//		return tx.Create(&invoice).Error
//	})
//
// # Guaranteed
//
//   - Of all transactions that ask for one consumer and message, at most one that is
//     committed was told that it is the first: a unique index says so.
//   - A transaction that asks while another one that was told so is open waits for its
//     end, and is the first if that is rolled back.
//
// # Not guaranteed
//
//   - Anything about effects outside of the transaction's database.
//   - Anything about a message that comes again after its row was pruned; see
//     [Inbox.Prune].
package inbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

//go:embed migrations
var migrations embed.FS

// Inbox is the table of handled messages in a database. It is safe for concurrent use
// and needs no Close.
type Inbox struct {
	conn   sqldialect.Conn
	schema *sqldialect.Set
	table  string
}

// Option changes how New makes an Inbox.
type Option func(*options)

type options struct{ prefix string }

// WithTablePrefix sets the prefix of the table: a lower-case letter, then letters,
// digits and underscores. Default [gormstore.DefaultPrefix].
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// New works on the consumer's open database: SQLite, PostgreSQL, MariaDB or MySQL. It
// sends nothing: call Migrate once, or run MigrationSQL by hand.
func New(db *gorm.DB, opts ...Option) (*Inbox, error) {
	o := options{prefix: gormstore.DefaultPrefix}
	for _, set := range opts {
		set(&o)
	}
	conn, err := sqldialect.Pool(db)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	schema, err := sqldialect.LoadSet("inbox", migrations, "migrations", o.prefix, conn.Dialect, broken)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return &Inbox{conn: conn, schema: schema, table: o.prefix + "inbox"}, nil
}

// broken tells which guards of the schema are to be left out.
func broken(guard string) bool { return guard == "inbox-unique" && mutation.On("inbox-unique") }

// Migrate makes the table <prefix>inbox, or brings it up to what this program needs;
// see [gormstore.Store.Migrate].
func (i *Inbox) Migrate(ctx context.Context) error {
	return fail(i.conn.Dialect, "migrate", i.schema.Up(ctx, i.conn))
}

// CheckSchema answers nil if the table is what this program needs. Otherwise the error
// matches store.ErrSchema or store.ErrUnavailable.
func (i *Inbox) CheckSchema(ctx context.Context) error {
	return fail(i.conn.Dialect, "check the schema", i.schema.Check(ctx, i.conn))
}

// MigrationSQL is the schema as a script, for those who run migrations by hand.
func (i *Inbox) MigrationSQL() string { return i.schema.SQL(i.conn.Dialect) }

// Once tells, in the transaction of what the message leads to, whether this is the
// first time that the consumer handles it: then act, and commit. If not, it was handled
// by a transaction that is committed: acknowledge the message. Two statements. It is for
// the table of the default prefix; see [Inbox.Once].
//
// The consumer names who handles, at most 255 bytes: two consumers handle a message
// once each. The message's ID is any text, and the publisher's, not the broker's: a
// broker gives a message that is sent twice two IDs of its own.
//
// An error that matches store.ErrUnavailable says that the database refused it, which
// may pass: roll back and let the message come again. Under REPEATABLE READ that is the
// answer to a message which another transaction has handled since this one began.
func Once(tx *gorm.DB, consumer, messageID string) (first bool, err error) {
	return once(tx, gormstore.DefaultPrefix+"inbox", consumer, messageID)
}

// Once is the function [Once] for the table of this inbox.
func (i *Inbox) Once(tx *gorm.DB, consumer, messageID string) (first bool, err error) {
	return once(tx, i.table, consumer, messageID)
}

func once(tx *gorm.DB, table, consumer, messageID string) (bool, error) {
	c, err := sqldialect.Within(tx)
	switch {
	case err != nil:
		return false, fmt.Errorf("inbox: once: %w", err)
	case !c.InTx():
		return false, errors.New("inbox: once: this *gorm.DB is not in a transaction: call it in the one that holds the consumer's writes")
	case consumer == "" || len(consumer) > 255 || !utf8.ValidString(consumer) || strings.ContainsRune(consumer, 0):
		return false, fmt.Errorf("inbox: once: the consumer %.40q: name it with 1 to 255 bytes of UTF-8 without NUL", consumer)
	case messageID == "":
		return false, errors.New("inbox: once: the message's ID is empty: without one a repeat cannot be told")
	}
	ctx := tx.Statement.Context
	if ctx == nil {
		ctx = context.Background() //nolint:forbidigo // a *gorm.DB without a context
	}
	id, owner := store.HashOf("inbox", messageID), store.NewOwner()
	_, err = c.Exec(ctx, "INSERT INTO "+table+" (consumer, message, owner, seen_ms) VALUES (?, ?, ?, "+c.NowMillis+")"+c.InsertIgnore,
		consumer, id[:], owner[:])
	if err != nil {
		return false, fail(c.Dialect, "once", err)
	}
	// Drivers disagree about the number of rows that an INSERT passed over: the row
	// says whose it is.
	var by []byte
	err = c.QueryRow(ctx, "SELECT owner FROM "+table+" WHERE consumer = ? AND message = ?"+c.ReadLatest, []any{consumer, id[:]}, &by)
	return err == nil && string(by) == string(owner[:]), fail(c.Dialect, "once", err)
}

// DefaultAge is a good age for Prune.
const DefaultAge = 30 * 24 * time.Hour

// pruneMax is the most rows that one statement deletes.
const pruneMax = 500

// Prune forgets messages that were handled longer ago than age, by the database's
// clock, at most limit of them (and 500), and answers how many. Call it now and then
// until it answers less.
//
// A message that is delivered again later than age after it was handled is handled
// again. So the age must be longer than anybody can take to deliver a message again:
// than the broker keeps messages for a consumer that was away, and than a relay can be
// down or a parked message can wait for Outbox.Retry. See DefaultAge.
func (i *Inbox) Prune(ctx context.Context, age time.Duration, limit int) (int64, error) {
	c := i.conn
	var n int64
	err := c.Retry(ctx, func() error {
		var old []any
		with, now := c.Clock()
		err := c.Query(ctx, with+"SELECT consumer, message FROM "+i.table+" WHERE seen_ms <= "+now+" - ? ORDER BY seen_ms LIMIT ?",
			[]any{age.Milliseconds(), min(limit, pruneMax)}, func(from sqldialect.Rows) error {
				var consumer, id []byte
				err := from.Scan(&consumer, &id)
				old = append(old, string(consumer), id)
				return err
			})
		if err != nil || len(old) == 0 {
			return err
		}
		remove := "DELETE FROM " + i.table
		if c.Dialect == sqldialect.MySQL() {
			// InnoDB locks what it scans, and would wait for consumers that are at work.
			remove = "DELETE m FROM " + i.table + " m FORCE INDEX (" + i.table + "_once)"
		}
		n, err = c.Exec(ctx, remove+" WHERE (consumer, message) IN "+c.Tuples(len(old)/2, 2), old...)
		return err
	})
	return n, fail(c.Dialect, "prune", err)
}

// fail says what was tried, and makes an error that says "the database cannot answer"
// match store.ErrUnavailable.
func fail(d *sqldialect.Dialect, op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*sqldialect.SchemaError](err); ok {
		return fmt.Errorf("inbox: %s: %w: %w", op, store.ErrSchema, err)
	}
	switch d.Classify(err) {
	case sqldialect.Schema:
		return fmt.Errorf("inbox: %s: %w: %w: call Migrate first", op, store.ErrSchema, err)
	case sqldialect.Busy, sqldialect.Full, sqldialect.ReadOnly, sqldialect.Corrupt, sqldialect.Unavailable:
		return fmt.Errorf("inbox: %s: %w: %w", op, store.ErrUnavailable, d.Explain(err))
	case sqldialect.Other, sqldialect.Unique:
	}
	return fmt.Errorf("inbox: %s: %w", op, err)
}
