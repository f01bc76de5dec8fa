package outbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent/message"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

//go:embed migrations
var migrations embed.FS

type (
	// Message is what is to be sent. See [message.Message].
	Message = message.Message
	// Publisher brings messages to where they go. See [message.Publisher].
	Publisher = message.Publisher
)

// ErrUnavailable is what a Publisher's errors match when the broker could not be
// asked. It is [message.ErrUnavailable].
var ErrUnavailable = message.ErrUnavailable

// Outbox is the table of messages in a database. It is safe for concurrent use and
// needs no Close.
type Outbox struct {
	conn   sqldialect.Conn
	schema *sqldialect.Set
	t      tables
}

type tables struct {
	messages, relay string
	bySeq           string // the messages, in an UPDATE by seq
	open, lane      string // the hints for the indexes that a look for open rows goes by
}

func tablesOf(prefix string, d *sqldialect.Dialect) tables {
	t := tables{messages: prefix + "outbox", relay: prefix + "outbox_relay"}
	t.bySeq = t.messages
	if d == sqldialect.MySQL() {
		// InnoDB locks what it scans, and would wait for transactions that are open.
		t.bySeq += " FORCE INDEX (PRIMARY)"
		// It would read all that was sent where it thinks that little was.
		t.open, t.lane = " FORCE INDEX ("+t.messages+"_open)", " FORCE INDEX ("+t.messages+"_lane)"
	}
	return t
}

// Option changes how New makes an Outbox.
type Option func(*options)

type options struct{ prefix string }

// WithTablePrefix sets the prefix of the tables: a lower-case letter, then letters,
// digits and underscores. Default [gormstore.DefaultPrefix].
func WithTablePrefix(prefix string) Option { return func(o *options) { o.prefix = prefix } }

// New works on the user's open database, the one that the transactions given to Add
// are of: SQLite, PostgreSQL, MariaDB or MySQL. It sends nothing: call Migrate once, or
// run MigrationSQL by hand.
func New(db *gorm.DB, opts ...Option) (*Outbox, error) {
	o := options{prefix: gormstore.DefaultPrefix}
	for _, set := range opts {
		set(&o)
	}
	conn, err := sqldialect.Pool(db)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	schema, err := sqldialect.LoadSet("outbox", migrations, "migrations", o.prefix, conn.Dialect, broken)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Outbox{conn: conn, schema: schema, t: tablesOf(o.prefix, conn.Dialect)}, nil
}

// broken tells which guards of the schema are to be left out.
func broken(guard string) bool { return guard == "outbox-unique" && mutation.On("outbox-unique") }

// Migrate makes the tables <prefix>outbox and <prefix>outbox_relay, or brings them up
// to what this program needs; see [gormstore.Store.Migrate].
func (o *Outbox) Migrate(ctx context.Context) error {
	return fail(o.conn.Dialect, "migrate", o.schema.Up(ctx, o.conn))
}

// CheckSchema answers nil if the tables are what this program needs. Otherwise the
// error matches store.ErrSchema or store.ErrUnavailable.
func (o *Outbox) CheckSchema(ctx context.Context) error {
	return fail(o.conn.Dialect, "check the schema", o.schema.Check(ctx, o.conn))
}

// MigrationSQL is the schema as a script, for those who run migrations by hand.
func (o *Outbox) MigrationSQL() string { return o.schema.SQL(o.conn.Dialect) }

// Add writes messages in the caller's transaction, in their order: they are sent if and
// only if it commits. One whose ID is there already is passed over. One statement for
// up to 100 messages or 1 MiB. It is for tables of the default prefix; see [Outbox.Add].
//
// An error that matches store.ErrUnavailable says that the database refused it, which
// may pass; the transaction must be rolled back.
func Add(tx *gorm.DB, msgs ...Message) error {
	return addTo(tx, gormstore.DefaultPrefix+"outbox", msgs)
}

// Add is the function [Add] for the tables of this outbox.
func (o *Outbox) Add(tx *gorm.DB, msgs ...Message) error {
	return addTo(tx, o.t.messages, msgs)
}

// The most of one INSERT: MariaDB takes no statement of more than 16 MiB.
const (
	addMax      = 100     // rows
	addMaxBytes = 1 << 20 // of payloads, and one more
)

// addable is how many of the messages go into one INSERT.
func addable(msgs []Message) int {
	n, size := 0, 0
	for n < min(len(msgs), addMax) && size < addMaxBytes {
		size += len(msgs[n].Payload)
		n++
	}
	return n
}

func addTo(tx *gorm.DB, table string, msgs []Message) error {
	c, err := sqldialect.Within(tx)
	switch {
	case err != nil:
		return fmt.Errorf("outbox: add: %w", err)
	case !c.InTx():
		return errors.New("outbox: add: this *gorm.DB is not in a transaction: pass the one that your function was given")
	}
	ctx := tx.Statement.Context
	if ctx == nil {
		ctx = context.Background() //nolint:forbidigo // a *gorm.DB without a context
	}
	for len(msgs) > 0 {
		now := msgs[:addable(msgs)]
		msgs = msgs[len(now):]
		args := make([]any, 0, 6*len(now))
		for i := range now {
			m := &now[i]
			if err := m.Check(); err != nil {
				return fmt.Errorf("outbox: add: %w", err)
			}
			headers, err := message.EncodeHeaders(m.Headers)
			if err != nil {
				return fmt.Errorf("outbox: add: %w", err)
			}
			payload := m.Payload
			if payload == nil {
				payload = []byte{}
			}
			args = append(args, m.ID, m.Topic, m.Key, lane(m), payload, headers)
		}
		query := "INSERT INTO " + table + " (id, topic, key_name, lane, payload, headers, added_ms) VALUES " +
			c.Values(len(now), "(?, ?, ?, ?, ?, ?, "+c.NowMillis+")") + c.InsertIgnore
		if _, err := c.Exec(ctx, query, args...); err != nil {
			return fail(c.Dialect, "add", err)
		}
	}
	return nil
}

// lane is what messages are put into an order by; nil for none.
func lane(m *Message) any {
	if m.Key == "" {
		return nil
	}
	h := store.HashOf("outbox", m.Topic, m.Key)
	return h[:]
}

// Parked is a message that was refused as often as Config.MaxAttempts allows. It is
// not sent again before Retry.
type Parked struct {
	Message
	Attempts int
	Added    time.Time
	Since    time.Time
	Error    string // of the last attempt
}

// Parked lists parked messages, those that were parked first in front, at most limit.
func (o *Outbox) Parked(ctx context.Context, limit int) ([]Parked, error) {
	var out []Parked
	err := o.conn.Query(ctx, "SELECT "+columns+", added_ms, ended_ms, error_text FROM "+o.t.messages+
		" WHERE state = 3 ORDER BY ended_ms, seq LIMIT ?", []any{limit}, func(from sqldialect.Rows) error {
		var r row
		var added, since store.Millis
		var text []byte
		if err := r.scan(from, &added, &since, &text); err != nil {
			return err
		}
		out = append(out, Parked{Message: r.Message, Attempts: r.attempts, Added: added.Time(), Since: since.Time(), Error: string(text)})
		return nil
	})
	return out, fail(o.conn.Dialect, "list parked messages", err)
}

// Retry lets parked messages be sent again, with all their attempts before them, and
// answers how many of the IDs were parked. Later messages of their keys may have been
// sent meanwhile.
func (o *Outbox) Retry(ctx context.Context, ids ...string) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	var n int64
	err := o.conn.Retry(ctx, func() (err error) {
		n, err = o.conn.Exec(ctx, "UPDATE "+o.t.messages+" SET state = 1, attempts = 0, silence = 0, due_ms = 0, ended_ms = 0, version = version + 1"+
			" WHERE state = 3 AND id IN "+o.conn.List(len(ids)), args...)
		return err
	})
	return n, fail(o.conn.Dialect, "retry parked messages", err)
}

// Backlog is what waits.
type Backlog struct {
	Open   int64
	Parked int64
	Oldest time.Duration // since the open message with the lowest number was added; 0 for none
}

// Backlog counts what was added and not sent, for a metric. It reads every open row's
// entry in an index.
func (o *Outbox) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var oldest int64
	err := o.conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM "+o.t.messages+" WHERE state = 1), (SELECT count(*) FROM "+o.t.messages+
		" WHERE state = 3), COALESCE((SELECT "+o.conn.NowMillis+" - added_ms FROM "+o.t.messages+" WHERE state = 1 ORDER BY seq LIMIT 1), 0)",
		nil, &b.Open, &b.Parked, &oldest)
	b.Oldest = time.Duration(max(oldest, 0)) * time.Millisecond
	return b, fail(o.conn.Dialect, "count the backlog", err)
}

// pruneMax is the most rows that one statement deletes.
const pruneMax = 500

// Prune deletes messages that were sent longer ago than age, by the database's clock,
// at most limit of them (and 500), and answers how many. A relay does so by itself,
// see Config.Retention. With a message goes the memory of its ID: one that is added
// again afterwards is sent again.
func (o *Outbox) Prune(ctx context.Context, age time.Duration, limit int) (int64, error) {
	c := o.conn
	var n int64
	err := c.Retry(ctx, func() error {
		var old []any
		with, now := c.Clock()
		err := c.Query(ctx, with+"SELECT seq FROM "+o.t.messages+" WHERE state = 2 AND ended_ms <= "+now+" - ? ORDER BY ended_ms LIMIT ?",
			[]any{age.Milliseconds(), min(limit, pruneMax)}, func(from sqldialect.Rows) error {
				var seq int64
				err := from.Scan(&seq)
				old = append(old, seq)
				return err
			})
		if err != nil || len(old) == 0 {
			return err
		}
		remove := "DELETE FROM " + o.t.messages
		if c.Dialect == sqldialect.MySQL() {
			remove = "DELETE m FROM " + o.t.messages + " m FORCE INDEX (PRIMARY)"
		}
		n, err = c.Exec(ctx, remove+" WHERE seq IN "+c.List(len(old)), old...)
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
		return fmt.Errorf("outbox: %s: %w: %w", op, store.ErrSchema, err)
	}
	switch d.Classify(err) {
	case sqldialect.Schema:
		return fmt.Errorf("outbox: %s: %w: %w: call Migrate first", op, store.ErrSchema, err)
	case sqldialect.Busy, sqldialect.Full, sqldialect.ReadOnly, sqldialect.Corrupt, sqldialect.Unavailable:
		return fmt.Errorf("outbox: %s: %w: %w", op, store.ErrUnavailable, d.Explain(err))
	case sqldialect.Other, sqldialect.Unique:
	}
	return fmt.Errorf("outbox: %s: %w", op, err)
}
