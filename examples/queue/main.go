// Command queue tells a story about a queue job whose effect happens exactly once,
// and then ends:
//
//   - Orders are placed: the order and the job that invoices it are one transaction.
//     The same order again puts no second job, and one that is rolled back none.
//   - A worker is killed after it has written an invoice and before that is
//     committed together with the job's completion.
//   - Another worker takes the job over. There is one invoice for each order.
//
// Its workers are processes of their own, on one SQLite file.
//
//	go run ./examples/queue [FILE]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

const namespace = "shop"

// Order is what a customer wants.
type Order struct{ ID int }

// Invoice has no unique index on OrderID: a second one would show.
type Invoice struct {
	ID      int64
	OrderID int
	Attempt int // of the run that wrote it
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "worker":
		err = work(ctx, args[1], false)
	case len(args) == 2 && args[0] == "dying-worker":
		err = work(ctx, args[1], true)
	case len(args) == 1:
		err = tell(ctx, args[0], os.Stdout)
	default:
		err = tellInTemp(ctx, os.Stdout)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "queue:", err)
		os.Exit(1)
	}
}

func tellInTemp(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "solotick-queue-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return tell(ctx, filepath.Join(dir, "queue.db"), out)
}

// tell tells the story on the file.
func tell(ctx context.Context, file string, out io.Writer) (err error) {
	db, st, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	shop := &shop{db: db.WithContext(ctx), store: st}

	for _, id := range []int{1, 2, 1} {
		outcome, err := shop.order(id, nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "order %d: job %s\n", id, outcome)
	}
	errNoMoney := errors.New("the card was refused")
	if _, err := shop.order(3, errNoMoney); !errors.Is(err, errNoMoney) {
		return fmt.Errorf("order 3: %w, want it rolled back", err)
	}
	fmt.Fprintln(out, "order 3: rolled back, and its job with it")

	self, err := os.Executable()
	if err != nil {
		return err
	}
	open, err := shop.openJobs(ctx)
	if err != nil {
		return err
	}
	if open > 0 { // a second telling on the same file has nothing left to do
		if err := shop.employ(ctx, self, file, out); err != nil {
			return err
		}
	}
	invoices, err := shop.invoices()
	if err != nil {
		return err
	}
	for _, i := range invoices {
		fmt.Fprintf(out, "invoice for order %d, by attempt %d\n", i.OrderID, i.Attempt)
	}
	return nil
}

// employ starts a worker that dies, and then one that does the work.
func (s *shop) employ(ctx context.Context, self, file string, out io.Writer) error {
	died := exec.CommandContext(ctx, self, "dying-worker", file).Run()
	invoices, err := s.invoices()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker 1: died with an invoice written and not committed (%v); invoices: %d\n", died, len(invoices))

	worker := exec.CommandContext(ctx, self, "worker", file)
	worker.Cancel = func() error { return worker.Process.Signal(os.Interrupt) }
	worker.WaitDelay = 20 * time.Second
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		return err
	}
	fmt.Fprintln(out, "worker 2: started")
	waited := s.waitUntilDone(ctx)
	return errors.Join(waited, worker.Cancel(), worker.Wait())
}

// shop is the producer.
type shop struct {
	db    *gorm.DB
	store *gormstore.Store
}

// order places an order and the job that invoices it, in one transaction. The
// job's key makes it one per order, however often this is called. A refusal rolls
// both back.
func (s *shop) order(id int, refusal error) (store.Outcome, error) {
	args, err := json.Marshal(SendInvoice{OrderID: id})
	if err != nil {
		return 0, err
	}
	var outcome store.Outcome
	err = s.db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Clauses(clause.OnConflict{DoNothing: true}).Create(&Order{ID: id}).Error; err != nil {
			return err
		}
		jobs, err := gormstore.Enqueue(tx, namespace, store.NewExecution{
			Key:  store.Key{Class: store.ClassKey, Job: scheduler.KindOf[SendInvoice](), Name: fmt.Sprintf("order-%d", id)},
			Args: args,
		})
		if err != nil {
			return err
		}
		outcome = jobs[0].Outcome
		return refusal
	})
	return outcome, err
}

// waitUntilDone waits until no job is open.
func (s *shop) waitUntilDone(ctx context.Context) error {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		open, err := s.openJobs(ctx)
		if err != nil || open == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}

func (s *shop) openJobs(ctx context.Context) (int, error) {
	jobs, err := s.store.List(ctx, store.Filter{Namespace: namespace, States: []store.State{store.StatePending, store.StateRunning}})
	return len(jobs), err
}

func (s *shop) invoices() (all []Invoice, err error) {
	return all, s.db.Order("order_id").Find(&all).Error
}

func open(ctx context.Context, file string) (*gorm.DB, *gormstore.Store, error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return nil, nil, err
	}
	st, err := gormstore.New(db)
	if err == nil {
		err = errors.Join(st.Migrate(ctx), db.AutoMigrate(&Order{}, &Invoice{}))
	}
	if err != nil {
		return nil, nil, errors.Join(err, sqlitedb.Close(db))
	}
	return db, st, nil
}
