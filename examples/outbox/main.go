// Command outbox tells a story about messages that are sent if and only if what they
// tell of has happened, and then ends:
//
//   - A shop places orders, each with its message in one transaction. An order that is
//     rolled back takes its message with it; a repeated request adds none.
//   - A relay posts the messages to billing, which is another program with a database of
//     its own. Billing's first answer is lost after it has acted.
//   - The relay posts that message again. Billing's inbox knows it: there is one invoice
//     for each order.
//
// Shop and billing are two SQLite files in a directory that is removed at the end.
//
//	go run ./examples/outbox
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/idempotent/httppost"
	"github.com/solotick/solotick/idempotent/inbox"
	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := tell(ctx, os.Stdout); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

// tell tells the story.
func tell(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "solotick-outbox-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	billing, err := openBilling(ctx, filepath.Join(dir, "billing.db"), out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, billing.close()) }()
	shop, err := openShop(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(shop.db)) }()

	for _, request := range []struct {
		key   string
		order Order
	}{{"r-1", Order{1, 4200}}, {"r-2", Order{2, 1000}}, {"r-1", Order{1, 4200}}, {"r-3", Order{3, -5}}} {
		switch replayed, err := shop.place(ctx, request.key, request.order); {
		case errors.Is(err, errPrice):
			fmt.Fprintf(out, "request %s: refused, and its message with it\n", request.key)
		case err != nil:
			return err
		case replayed:
			fmt.Fprintf(out, "request %s: came before\n", request.key)
		default:
			fmt.Fprintf(out, "request %s: order %d is placed\n", request.key, request.order.ID)
		}
	}
	if err := shop.send(ctx, billing.url); err != nil {
		return err
	}
	var invoices []Invoice
	if err := billing.db.WithContext(ctx).Order("order_id").Find(&invoices).Error; err != nil {
		return err
	}
	fmt.Fprintf(out, "%d deliveries, %d invoices\n", billing.deliveries.Load(), len(invoices))
	for _, i := range invoices {
		fmt.Fprintf(out, "invoice for order %d: %d cents\n", i.OrderID, i.Cents)
	}
	return nil
}

// Order is what a customer wants.
type Order struct {
	ID    int64
	Cents int64
}

var errPrice = errors.New("the price is negative")

type shop struct {
	db    *gorm.DB
	guard *idempotent.Guard
	box   *outbox.Outbox
}

func openShop(ctx context.Context, file string) (*shop, error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return nil, err
	}
	st, err := gormstore.New(db)
	if err != nil {
		return nil, errors.Join(err, sqlitedb.Close(db))
	}
	box, err := outbox.New(db)
	if err == nil {
		err = errors.Join(st.Migrate(ctx), box.Migrate(ctx), db.AutoMigrate(&Order{}))
	}
	if err != nil {
		return nil, errors.Join(err, sqlitedb.Close(db))
	}
	return &shop{db, idempotent.New(st), box}, nil
}

// place places an order once for each request, however often that comes.
func (s *shop) place(ctx context.Context, request string, order Order) (replayed bool, err error) {
	fingerprint, err := idempotent.FingerprintOf(order)
	if err != nil {
		return false, err
	}
	key := idempotent.Key{Namespace: "shop", Job: "place-order", Name: request}
	reply, err := idempotent.Once(ctx, s.guard, key, fingerprint, func(tx *gorm.DB) (int64, error) {
		return order.ID, placeOrder(tx, request, order)
	})
	return reply.Replayed, err
}

// placeOrder writes the order and the message that tells of it, in one transaction.
func placeOrder(tx *gorm.DB, request string, order Order) error {
	if err := tx.Create(&order).Error; err != nil {
		return err
	}
	body, err := json.Marshal(order)
	if err != nil {
		return err
	}
	err = outbox.Add(tx, outbox.Message{
		ID:      "placed-" + request, // the same for every attempt; run.EffectKey("placed") in a job
		Topic:   "orders",
		Key:     fmt.Sprint(order.ID), // what tells of one order is sent in its order
		Payload: body,
	})
	if err == nil && order.Cents < 0 {
		err = idempotent.Refuse(errPrice)
	}
	return err
}

// send runs a relay until nothing waits.
func (s *shop) send(ctx context.Context, url string) error {
	publisher, err := httppost.New(httppost.Config{URL: secret.New(url)}, httppost.Deps{Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(s.box, outbox.Config{Interval: 50 * time.Millisecond}, outbox.Deps{Publisher: publisher})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		backlog, err := s.box.Backlog(ctx)
		if err != nil || backlog.Open == 0 {
			stop()
			return errors.Join(err, <-ended)
		}
		select {
		case err := <-ended:
			return errors.Join(err, ctx.Err())
		case <-look.C:
		}
	}
}

// Invoice has no unique index on OrderID: a second one would show.
type Invoice struct {
	ID      int64
	OrderID int64
	Cents   int64
}

// billing is another program.
type billing struct {
	db         *gorm.DB
	server     *http.Server
	url        string
	out        io.Writer
	deliveries atomic.Int64
	served     chan error
}

func openBilling(ctx context.Context, file string, out io.Writer) (*billing, error) {
	db, err := sqlitedb.Open(file, nil)
	if err != nil {
		return nil, err
	}
	in, err := inbox.New(db)
	if err == nil {
		err = errors.Join(in.Migrate(ctx), db.AutoMigrate(&Invoice{}))
	}
	if err != nil {
		return nil, errors.Join(err, sqlitedb.Close(db))
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, sqlitedb.Close(db))
	}
	b := &billing{db: db, url: "http://" + l.Addr().String(), out: out, served: make(chan error, 1)}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: 5 * time.Second}
	go func() { b.served <- b.server.Serve(l) }()
	return b, nil
}

func (b *billing) close() error {
	err := b.server.Close()
	if served := <-b.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, sqlitedb.Close(b.db))
}

// ServeHTTP takes a message.
func (b *billing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := b.deliveries.Add(1)
	var order Order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&order); err != nil {
		http.Error(w, "not an order", http.StatusBadRequest)
		return
	}
	var first bool
	err := b.db.WithContext(r.Context()).Transaction(func(tx *gorm.DB) (err error) {
		first, err = writeInvoice(tx, r.Header.Get("Idempotency-Key"), order)
		return err
	})
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case n == 1:
		fmt.Fprintln(b.out, "billing: has written an invoice, and its answer is lost")
		panic(http.ErrAbortHandler)
	case !first:
		fmt.Fprintln(b.out, "billing: this message came before")
	}
}

// writeInvoice is what a message leads to, once.
func writeInvoice(tx *gorm.DB, messageID string, order Order) (first bool, err error) {
	first, err = inbox.Once(tx, "billing", messageID)
	if err != nil || !first {
		return first, err // a repeat is no error: it is answered as the first was
	}
	return first, tx.Create(&Invoice{OrderID: order.ID, Cents: order.Cents}).Error
}
