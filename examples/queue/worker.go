package main

import (
	"context"
	"errors"
	"os"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// SendInvoice is the argument of the job. Its name gives the kind, send_invoice.
type SendInvoice struct {
	OrderID int `json:"order_id"`
}

// work is the consumer. One that is to die kills itself inside the transaction of
// its first invoice.
func work(ctx context.Context, file string, die bool) (err error) {
	db, st, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	guard := idempotent.New(st)

	// Short times, so that a job of a dead worker is soon taken over. A queue needs
	// no locker: a job is claimed by one worker.
	s, err := scheduler.New(
		scheduler.Config{Namespace: namespace, Lease: 2 * time.Second, PollInterval: 200 * time.Millisecond},
		scheduler.Deps{Store: st})
	if err != nil {
		return err
	}
	err = s.Add(scheduler.Queue(func(ctx context.Context, run *scheduler.Run, in SendInvoice) error {
		return guard.Do(ctx, run, func(tx *gorm.DB) error {
			if err := tx.Create(&Invoice{OrderID: in.OrderID, Attempt: run.Attempt()}).Error; err != nil {
				return err
			}
			if die {
				return killMyself()
			}
			return nil
		})
	}, scheduler.Promise(scheduler.ExactlyOnce)))
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// killMyself ends the process as kill -9 does: nothing is tidied up.
func killMyself() error {
	me, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := me.Kill(); err != nil {
		return err
	}
	select {} // until the signal arrives
}
