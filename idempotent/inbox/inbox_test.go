package inbox_test

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent/inbox"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) {
	// GORM's cache of prepared statements has a goroutine that nothing ends.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// world is a consumer's database.
type world struct {
	*testing.T
	db *gorm.DB
	in *inbox.Inbox
}

// everywhere runs a test on every database, on servers with transactions that are
// snapshots by default, and where found rows count as changed.
func everywhere(t *testing.T, run func(w *world)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "shop.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		run(worldOn(t, db, func() error { return sqlitedb.Close(db) }))
	})
	t.Run("postgres", func(t *testing.T) {
		db, closer, err := postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(testenv.SharedPostgres(t).DSN() + "&default_transaction_isolation=repeatable%20read")})
		if err != nil {
			t.Fatal(err)
		}
		run(worldOn(t, db, closer))
	})
	t.Run("mariadb", func(t *testing.T) {
		db, closer, err := mysqldb.Open(sqldialect.ServerConfig{DSN: secret.New(testenv.SharedMySQL(t).DSN() + "&innodb_snapshot_isolation=ON&clientFoundRows=true")})
		if err != nil {
			t.Fatal(err)
		}
		run(worldOn(t, db, closer))
	})
}

func worldOn(t *testing.T, db *gorm.DB, closer func() error) *world {
	t.Helper()
	t.Cleanup(func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	})
	in, err := inbox.New(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.CheckSchema(t.Context()); !errors.Is(err, store.ErrSchema) {
		t.Errorf("before the migration: %v", err)
	}
	if err := errors.Join(in.Migrate(t.Context()), in.Migrate(t.Context()), in.CheckSchema(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec("CREATE TABLE effects (message VARCHAR(64))").Error; err != nil {
		t.Fatal(err)
	}
	return &world{t, db, in}
}

// handle is a consumer's transaction; end is what it returns.
func (w *world) handle(consumer, id string, end error) (first bool, err error) {
	err = w.db.Transaction(func(tx *gorm.DB) error {
		var err error
		if first, err = inbox.Once(tx, consumer, id); err != nil {
			return err
		}
		if first {
			if err := tx.Exec("INSERT INTO effects VALUES (?)", consumer+"/"+id).Error; err != nil {
				return err
			}
		}
		return end
	})
	return first, err
}

func (w *world) effects() (n int) {
	w.Helper()
	if err := w.db.Raw("SELECT count(*) FROM effects").Scan(&n).Error; err != nil {
		w.Fatal(err)
	}
	return n
}

func TestMessageIsHandledOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		undo := errors.New("undo")
		for _, step := range []struct {
			consumer, id string
			end          error
			first        bool
		}{
			{"billing", "m", undo, true}, // rolled back, and forgotten with it
			{"billing", "m", nil, true},
			{"billing", "m", nil, false},
			{"Billing", "m", nil, true}, // names are compared byte by byte
			{"billing", "m ", nil, true},
			{"billing", "M", nil, true},
			{"mail", "m", nil, true},
			{"mail", "m", nil, false},
		} {
			first, err := w.handle(step.consumer, step.id, step.end)
			if first != step.first || !errors.Is(err, step.end) {
				w.Errorf("%s %q: first %v, %v; want %v, %v", step.consumer, step.id, first, err, step.first, step.end)
			}
		}
		if n := w.effects(); n != 5 {
			w.Errorf("%d effects", n)
		}
	})
}

// Many deliveries of a few messages at once, some of whose transactions are rolled
// back: one effect of each.
func TestManyDeliveriesAtOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		undo := errors.New("undo")
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				end := error(nil)
				if i%3 == 0 {
					end = undo
				}
				for {
					_, err := w.handle("billing", string(rune('a'+i%4)), end)
					if err == nil || errors.Is(err, undo) {
						return
					}
					if !errors.Is(err, store.ErrUnavailable) { // busy: the broker delivers again
						w.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if n := w.effects(); n != 4 {
			w.Errorf("%d effects of 4 messages", n)
		}
	})
}

func TestPruneForgetsByAge(t *testing.T) {
	everywhere(t, func(w *world) {
		for _, id := range []string{"a", "b", "c"} {
			if _, err := w.handle("billing", id, nil); err != nil {
				w.Fatal(err)
			}
		}
		if err := w.db.Exec("UPDATE solotick_inbox SET seen_ms = seen_ms - 3600000").Error; err != nil {
			w.Fatal(err)
		}
		if _, err := w.handle("billing", "d", nil); err != nil {
			w.Fatal(err)
		}
		for _, step := range []struct {
			age   time.Duration
			limit int
			want  int64
		}{{2 * time.Hour, 10, 0}, {30 * time.Minute, 2, 2}, {30 * time.Minute, 2, 1}, {30 * time.Minute, 2, 0}} {
			if n, err := w.in.Prune(w.Context(), step.age, step.limit); err != nil || n != step.want {
				w.Errorf("Prune(%v, %d) = %d, %v, want %d", step.age, step.limit, n, err, step.want)
			}
		}
		for id, want := range map[string]bool{"a": true, "d": false} {
			if first, err := w.handle("billing", id, nil); err != nil || first != want {
				w.Errorf("%s after the prune: first %v, %v", id, first, err)
			}
		}
	})
}

func TestOnceRefuses(t *testing.T) {
	everywhere(t, func(w *world) {
		if _, err := inbox.Once(w.db, "billing", "m"); err == nil || !strings.Contains(err.Error(), "not in a transaction") {
			w.Errorf("outside of a transaction: %v", err)
		}
		for want, args := range map[string][2]string{
			"the consumer \"\"":       {"", "m"},
			"the consumer \"aaa":      {strings.Repeat("a", 256), "m"},
			"the message's ID is emp": {"billing", ""},
		} {
			if _, err := w.handle(args[0], args[1], nil); err == nil || !strings.Contains(err.Error(), want) {
				w.Errorf("%v, want %q", err, want)
			}
		}
		other, err := inbox.New(w.db, inbox.WithTablePrefix("mine_"))
		if err != nil {
			w.Fatal(err)
		}
		if !strings.Contains(other.MigrationSQL(), "mine_inbox") {
			w.Error("the script has another prefix")
		}
		err = w.db.Transaction(func(tx *gorm.DB) error {
			_, err := other.Once(tx, "billing", "m")
			return err
		})
		if !errors.Is(err, store.ErrSchema) {
			w.Errorf("a table that is not there: %v", err)
		}
		if err := other.Migrate(w.Context()); err != nil {
			w.Fatal(err)
		}
		counted, c := sqlcount.Wrap(w.db)
		err = counted.Transaction(func(tx *gorm.DB) error {
			first, err := other.Once(tx, strings.Repeat("ä", 127), strings.Repeat("m", 4000))
			if !first {
				w.Error("not the first")
			}
			return err
		})
		if err != nil || c.Statements() != 2 {
			w.Errorf("%v, %d statements: %q", err, c.Statements(), c.Queries())
		}
	})
}
