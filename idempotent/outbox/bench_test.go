package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/mysqldb"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// sink takes everything.
type sink struct{}

func (sink) Publish(_ context.Context, msgs []outbox.Message) []error {
	return make([]error, len(msgs))
}

// BenchmarkRelay is what a message costs from its row to its mark, in batches of 100
// beside a table of messages that were sent: 0 and 100,000.
func BenchmarkRelay(b *testing.B) {
	servers := map[string]func(b *testing.B) (*gorm.DB, func() error, error){
		"sqlite": func(b *testing.B) (*gorm.DB, func() error, error) {
			db, err := sqlitedb.Open(filepath.Join(b.TempDir(), "shop.db"), nil)
			return db, func() error { return sqlitedb.Close(db) }, err
		},
		"postgres": func(b *testing.B) (*gorm.DB, func() error, error) {
			return postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(testenv.SharedPostgres(b).DSN())})
		},
		"mariadb": func(b *testing.B) (*gorm.DB, func() error, error) {
			return mysqldb.Open(sqldialect.ServerConfig{DSN: secret.New(testenv.SharedMySQL(b).DSN())})
		},
	}
	for _, name := range []string{"sqlite", "postgres", "mariadb"} {
		for _, before := range []int{0, 100_000} {
			b.Run(fmt.Sprintf("%s/sent=%d", name, before), func(b *testing.B) {
				db, closer, err := servers[name](b)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = closer() }()
				relays(b, db, before)
			})
		}
	}
}

func relays(b *testing.B, db *gorm.DB, before int) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	box, err := outbox.New(db)
	must(err)
	must(box.Migrate(b.Context()))
	n := 0
	fill := func(count int) {
		for count > 0 {
			batch := make([]outbox.Message, min(count, 100))
			for i := range batch {
				n++
				batch[i] = outbox.Message{ID: fmt.Sprint(n), Topic: "orders", Key: fmt.Sprint(n % 1000), Payload: make([]byte, 200)}
			}
			count -= len(batch)
			must(db.Transaction(func(tx *gorm.DB) error { return outbox.Add(tx, batch...) }))
		}
	}
	fill(before)
	must(db.Exec("UPDATE solotick_outbox SET state = 2, ended_ms = " + fmt.Sprint(int64(1)<<50)).Error)
	// As it is when the database has cleaned up behind that.
	tidy := map[string]string{"sqlite": "ANALYZE", "postgres": "VACUUM ANALYZE solotick_outbox", "mysql": "ALTER TABLE solotick_outbox ENGINE=InnoDB"}
	must(db.Exec(tidy[db.Name()]).Error)
	r, err := outbox.NewRelay(box, outbox.Config{}, outbox.Deps{Publisher: sink{}, Log: slog.New(slog.DiscardHandler)})
	must(err)
	t := r.NewTerm()
	_, err = t.Turn(b.Context())
	must(err)
	fill(b.N)
	b.ResetTimer()
	for range b.N/100 + 1 {
		_, err := t.Turn(b.Context())
		must(err)
	}
	b.StopTimer()
	if backlog, err := box.Backlog(b.Context()); err != nil || backlog.Open != 0 {
		b.Errorf("%+v, %v", backlog, err)
	}
}
