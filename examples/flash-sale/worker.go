package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

const (
	workerEnv = "FLASH_SALE_WORKER"
	dsnEnv    = "FLASH_SALE_DSN"

	// lease of the lock and of a request: how long the others wait for a process that
	// is frozen or dead. Its first renewal comes after a third of it.
	lease = 3 * time.Second
)

// Task is what a worker is told.
type Task struct {
	Setup   Setup `json:"setup"`
	Process int   `json:"process"` // from 0; the first one is frozen, if one is
}

// Told is what a worker tells at its end.
type Told struct {
	Answers   map[string]string `json:"answers"` // by request
	Tries     int64             `json:"tries"`   // transactions that wanted to buy
	Conflicts int64             `json:"conflicts"`
}

// requests are those that a process gets: each goes to as many processes as it has
// repeats.
func (t Task) requests() (names []string) {
	s := t.Setup
	for i := range s.Requests / s.Repeats {
		if (t.Process-i%s.Processes+s.Processes)%s.Processes < s.Repeats {
			names = append(names, fmt.Sprintf("r-%d", i))
		}
	}
	return names
}

// worker is a process that sells.
type worker struct {
	Task
	db     *gorm.DB
	guard  *idempotent.Guard
	locker *locks.Locker
	in     *bufio.Reader
	out    io.Writer

	sold   atomic.Bool // out, as this process has seen
	freeze sync.Once
	looked atomic.Int64
	met    chan struct{} // closed when two buyers have looked

	tries, conflicts atomic.Int64
}

// work is the whole life of a worker: its task is JSON, and what it tells, too.
func work(ctx context.Context, task string, in io.Reader, out io.Writer) (err error) {
	w := &worker{in: bufio.NewReader(in), out: out, met: make(chan struct{})}
	if err := json.Unmarshal([]byte(task), &w.Task); err != nil {
		return err
	}
	db, closer, err := open(w.Setup.DB, os.Getenv(dsnEnv))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closer()) }()
	w.db = db
	st, err := gormstore.New(db)
	if err != nil {
		return err
	}
	w.guard = idempotent.New(st)
	if w.locker, err = sqllock.New(db, &locks.Config{TTL: lease, Poll: 20 * time.Millisecond}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.locker.Close(context.WithoutCancel(ctx))) }()
	answers, err := w.serve(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(Told{answers, w.tries.Load(), w.conflicts.Load()})
}

// serve answers every request.
func (w *worker) serve(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	answers := map[string]string{}
	answer := func(name string) {
		text, err := w.request(ctx, name)
		if err != nil {
			cancel(fmt.Errorf("%s: %w", name, err))
			return
		}
		mu.Lock()
		defer mu.Unlock()
		answers[name] = text
	}
	names := w.requests()
	if w.Setup.Freeze && w.Process == 0 {
		// Alone, so that the freeze catches nobody in the middle of a transaction.
		answer(names[0])
		names = names[1:]
	}
	var all sync.WaitGroup
	next := make(chan string)
	for range w.Setup.Callers {
		all.Go(func() {
			for name := range next {
				answer(name)
			}
		})
	}
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		next <- name
	}
	close(next)
	all.Wait()
	return answers, context.Cause(ctx)
}

// request is a client that asks until it has an answer.
func (w *worker) request(ctx context.Context, name string) (string, error) {
	for {
		text, err := w.try(ctx, name)
		switch {
		case errors.Is(err, idempotent.ErrConflict):
			w.conflicts.Add(1)
		case errors.Is(err, store.ErrUnavailable), errors.Is(err, idempotent.ErrFenced), errors.Is(err, idempotent.ErrLeaseLost):
		default:
			return text, err
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(rand.N(5 * time.Millisecond)):
		}
	}
}

// try makes one try, under the protections that there are.
func (w *worker) try(ctx context.Context, name string) (string, error) {
	var seen Item
	var held *locks.Lease
	defer func() {
		if held != nil {
			_ = held.Release(context.WithoutCancel(ctx)) // one that was lost is gone
		}
	}()
	before := func(ctx context.Context) error {
		if w.sold.Load() {
			return nil
		}
		if w.Setup.Lock && held == nil {
			var err error
			if held, err = w.locker.Acquire(ctx, locks.Key(w.Setup.Namespace, "sale")); err != nil {
				return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
			}
		}
		var err error
		if seen, err = look(ctx, w.db); err != nil {
			return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		w.sold.Store(seen.Stock <= 0)
		return w.provoke(ctx)
	}
	sell := func(tx *gorm.DB) (string, error) {
		if w.sold.Load() {
			return soldOut, nil
		}
		w.tries.Add(1)
		return buy(tx, w.Setup.Update, name, seen)
	}
	if !w.Setup.Key {
		if err := before(ctx); err != nil {
			return "", err
		}
		var text string
		err := idempotent.Optimistic(ctx, w.db, 1, func(tx *gorm.DB) (err error) {
			text, err = sell(tx)
			return err
		})
		return text, err
	}
	key := idempotent.Key{Namespace: w.Setup.Namespace, Job: "buy", Name: name}
	reply, err := idempotent.Once(ctx, w.guard, key, idempotent.Fingerprint{}, sell, idempotent.Lease(lease),
		idempotent.Before(func(ctx context.Context, _ *idempotent.Attempt) error { return before(ctx) }))
	return reply.Value, err
}

// provoked tells whether a setup has its first process say when it is ready to harm.
func (s Setup) provoked() bool { return s.Freeze || s.paired() }

// paired tells whether two buyers look before either writes. With a lock they cannot.
func (s Setup) paired() bool { return !s.Lock && s.Update == "blind" }

const holding = "holding"

// provoke makes happen between the look and the write what happens now and then.
func (w *worker) provoke(ctx context.Context) (err error) {
	switch {
	case w.Process != 0:
		return nil
	case w.Setup.Freeze:
		w.freeze.Do(func() {
			if _, err = fmt.Fprintln(w.out, holding); err == nil {
				_, err = w.in.ReadString('\n') // frozen, until the others are through
			}
		})
		return err
	case !w.Setup.paired():
		return nil
	}
	switch w.looked.Add(1) {
	case 1:
		select {
		case <-w.met:
		case <-ctx.Done():
			return ctx.Err()
		}
	case 2:
		if _, err := fmt.Fprintln(w.out, holding); err != nil {
			return err
		}
		close(w.met)
	}
	return nil
}
