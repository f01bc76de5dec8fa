package sqljob_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/sqljob"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func open(t *testing.T) (*gorm.DB, *gormstore.Store) {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "s.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	s, err := gormstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db, s
}

// run enqueues one job for statements and returns its record when it has ended.
func run(t *testing.T, db *gorm.DB, s *gormstore.Store, statements string) store.Execution {
	t.Helper()
	h, err := sqljob.New(sqljob.SQLite, statements, idempotent.New(s))
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan scheduler.RunFinished, 1)
	sched, err := scheduler.New(scheduler.Config{Namespace: "test", PollInterval: 100 * time.Millisecond}, scheduler.Deps{
		Store: s,
		Listeners: []scheduler.Listener{scheduler.ListenerFunc(func(e scheduler.Event) {
			if f, ok := e.(scheduler.RunFinished); ok {
				finished <- f
			}
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sched.Add(scheduler.QueueFunc("book", h, scheduler.Retry(1, time.Second, time.Second), scheduler.Promise(scheduler.ExactlyOnce))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sched.Run(ctx) }()
	rows, err := gormstore.Enqueue(db.WithContext(t.Context()), "test", store.NewExecution{
		Key: store.Key{Class: store.ClassKey, Job: "book", Name: t.Name()}, Args: []byte(`{"order":7}`), MaxAttempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-finished
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	e, err := s.Get(t.Context(), "test", rows[0].Execution.ID)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const table = "CREATE TABLE bookings (order_id INTEGER, run_key TEXT, tick TEXT, mark TEXT)"

func count(t *testing.T, db *gorm.DB) (n int64) {
	t.Helper()
	if err := db.Table("bookings").Count(&n).Error; err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStatementsAndRecordAreOneTransaction(t *testing.T) {
	db, s := open(t)
	if err := db.Exec(table).Error; err != nil {
		t.Fatal(err)
	}
	e := run(t, db, s, `
		INSERT INTO bookings VALUES (json_extract(:args, '$.order'), :key, :tick, 'what? :tick'); -- COMMIT;
		UPDATE bookings SET mark = mark || :job || ':' || :attempt WHERE run_key = :key AND :fence > 0`)
	if e.State != store.StateSucceeded || string(e.Result) != `{"rows_affected":[1,1]}` {
		t.Fatalf("%v, %s: %s", e.State, e.Result, e.ErrorText)
	}
	var row struct {
		OrderID int
		RunKey  string
		Tick    *string
		Mark    string
	}
	if err := db.Table("bookings").Take(&row).Error; err != nil {
		t.Fatal(err)
	}
	if row.OrderID != 7 || len(row.RunKey) != 32 || row.Tick != nil || row.Mark != "what? :tickbook:1" {
		t.Errorf("%+v", row)
	}
}

func TestNothingIsLeftOfARunThatFails(t *testing.T) {
	db, s := open(t)
	if err := db.Exec(table).Error; err != nil {
		t.Fatal(err)
	}
	e := run(t, db, s, "INSERT INTO bookings (mark) VALUES ('first');\nINSERT INTO no_such_table VALUES (1)")
	if e.State != store.StateFailed || count(t, db) != 0 {
		t.Fatalf("%v with %d rows: %s", e.State, count(t, db), e.ErrorText)
	}
}

func TestNewRefuses(t *testing.T) {
	_, s := open(t)
	if _, err := sqljob.New(sqljob.SQLite, "COMMIT", idempotent.New(s)); err == nil {
		t.Error("COMMIT was accepted")
	}
}
