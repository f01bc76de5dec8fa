package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// GORM's cache of prepared statements has a goroutine that nothing ends.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// world is a database with an outbox, and a broker.
type world struct {
	*testing.T
	db     *gorm.DB
	box    *outbox.Outbox
	broker *broker
}

// everywhere runs a test on every database, on servers with transactions that are
// snapshots by default.
func everywhere(t *testing.T, run func(w *world)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { run(newWorld(t)) })
	t.Run("postgres", func(t *testing.T) {
		run(worldOn(t, open(t, postgresdb.Open, testenv.SharedPostgres(t).DSN()+"&default_transaction_isolation=repeatable%20read")))
	})
	t.Run("mariadb", func(t *testing.T) {
		run(worldOn(t, open(t, mysqldb.Open, testenv.SharedMySQL(t).DSN()+"&innodb_snapshot_isolation=ON")))
	})
}

func open(t *testing.T, open func(sqldialect.ServerConfig) (*gorm.DB, func() error, error), dsn string) *gorm.DB {
	t.Helper()
	db, closer, err := open(sqldialect.ServerConfig{DSN: secret.New(dsn)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "shop.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	return worldOn(t, db)
}

func worldOn(t *testing.T, db *gorm.DB) *world {
	t.Helper()
	box, err := outbox.New(db)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := box.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := box.CheckSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &world{t, db, box, &broker{}}
}

// add commits messages in a transaction of their own.
func (w *world) add(msgs ...outbox.Message) {
	w.Helper()
	w.must(w.db.WithContext(w.Context()).Transaction(func(tx *gorm.DB) error { return outbox.Add(tx, msgs...) }))
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// relay is a relay that makes one turn at a time.
func (w *world) relay(cfg outbox.Config) *outbox.Term {
	w.Helper()
	r, err := outbox.NewRelay(w.box, cfg, outbox.Deps{Publisher: w.broker, Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	return r.NewTerm()
}

// turn makes all that waits due, and one turn.
func (w *world) turn(t *outbox.Term) {
	w.Helper()
	w.exec("UPDATE solotick_outbox SET due_ms = 0 WHERE state = 1 AND due_ms > 0")
	_, err := t.Turn(w.Context())
	w.must(err)
}

func (w *world) exec(query string, args ...any) {
	w.Helper()
	w.must(w.db.WithContext(w.Context()).Exec(query, args...).Error)
}

func (w *world) count(where string) (n int) {
	w.Helper()
	w.must(w.db.WithContext(w.Context()).Raw("SELECT count(*) FROM solotick_outbox WHERE " + where).Scan(&n).Error)
	return n
}

// want checks what the broker was given, by IDs in their order.
func (w *world) want(ids ...string) {
	w.Helper()
	if got := w.broker.ids(); !slices.Equal(got, ids) {
		w.Errorf("the broker was given %v, want %v", got, ids)
	}
}

// msg is a message whose key is the letter that its ID begins with; "-" is none.
func msg(id string) outbox.Message {
	m := outbox.Message{ID: id, Topic: "orders", Payload: []byte(id)}
	if key, _, _ := strings.Cut(id, "/"); key != "-" {
		m.Key = key
	}
	return m
}

func msgs(ids ...string) []outbox.Message {
	out := make([]outbox.Message, len(ids))
	for i, id := range ids {
		out[i] = msg(id)
	}
	return out
}

// broker is a publisher that remembers what it was given, and fails on command.
type broker struct {
	mu     sync.Mutex
	got    []outbox.Message
	calls  int
	refuse func(m outbox.Message) error // before it is taken
	lose   func(m outbox.Message) error // after it
}

func (b *broker) Publish(_ context.Context, all []outbox.Message) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	errs := make([]error, len(all))
	for i, m := range all {
		if b.refuse != nil {
			if errs[i] = b.refuse(m); errs[i] != nil {
				continue
			}
		}
		b.got = append(b.got, m)
		if b.lose != nil {
			errs[i] = b.lose(m)
		}
	}
	return errs
}

func (b *broker) ids() (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.got {
		out = append(out, m.ID)
	}
	return out
}
