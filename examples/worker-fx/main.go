// Command worker-fx is a worker wired with go.uber.org/fx: jobs that have
// dependencies, a locker, a store, and a clean stop. Ctrl-C ends it.
//
//	go run ./examples/worker-fx [FILE]
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"go.uber.org/fx"
	"go.uber.org/fx/fxevent"
	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulerfx"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func main() {
	file := filepath.Join(os.TempDir(), "solotick-worker-fx.db")
	if len(os.Args) > 1 {
		file = os.Args[1]
	}
	fx.New(worker(file, os.Stdout)).Run() // until SIGINT or SIGTERM
}

// worker is the whole composition. That it is complete is checked without starting
// it, by fx.ValidateApp.
func worker(file string, out io.Writer) fx.Option {
	return fx.Options(
		schedulerfx.Options(
			schedulerfx.Config{Scheduler: scheduler.Config{Namespace: "shop"}},
			schedulerfx.WithMigration(), schedulerfx.WithLogger()),
		schedulerfx.Store(gormstore.New),
		schedulerfx.Locker(newLocker),
		schedulerfx.Jobs(newSale, newReport),
		fx.Provide(
			func(lc fx.Lifecycle) (*gorm.DB, error) { return newDB(lc, file) },
			func() *printer { return &printer{out} },
			func() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) },
			idempotent.New),
		fx.WithLogger(func(log *slog.Logger) fxevent.Logger {
			l := &fxevent.SlogLogger{Logger: log}
			l.UseLogLevel(slog.LevelDebug)
			return l
		}),
	)
}

// Sale and Report are the tables of the shop, beside solotick's own in one database.
type Sale struct {
	ID   int64
	Tick string
}

// Report counts the sales.
type Report struct {
	ID    int64
	Tick  string
	Sales int64
}

func newDB(lc fx.Lifecycle, file string) (*gorm.DB, error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(func() error { return sqlitedb.Close(db) }))
	return db, db.AutoMigrate(&Sale{}, &Report{})
}

func newLocker(db *gorm.DB) (*locks.Locker, error) { return sqllock.New(db, nil) }

const stamp = "15:04:05"

// newSale makes one sale a tick: the row and the record of the run are committed
// together, so there are as many sales as ticks.
func newSale(guard *idempotent.Guard) scheduler.Job {
	return scheduler.Cron("sale", "@every 1s", func(ctx context.Context, run *scheduler.Run) error {
		return guard.Do(ctx, run, func(tx *gorm.DB) error {
			return tx.Create(&Sale{Tick: run.Tick().Format(stamp)}).Error
		})
	}, scheduler.Promise(scheduler.ExactlyOnce))
}

// newReport counts the sales and prints the sum. Several dependencies are no
// different from one.
func newReport(guard *idempotent.Guard, p *printer) scheduler.Job {
	return scheduler.Cron("report", "@every 3s", func(ctx context.Context, run *scheduler.Run) error {
		r := Report{Tick: run.Tick().Format(stamp)}
		err := guard.Do(ctx, run, func(tx *gorm.DB) error {
			if err := tx.Model(&Sale{}).Count(&r.Sales).Error; err != nil {
				return err
			}
			return tx.Create(&r).Error
		})
		if err == nil {
			p.print(r) // after the commit: what is printed is true, and may be lost
		}
		return err
	}, scheduler.Promise(scheduler.ExactlyOnce))
}

type printer struct{ out io.Writer }

func (p *printer) print(r Report) { fmt.Fprintf(p.out, "%s: %d sales\n", r.Tick, r.Sales) }
