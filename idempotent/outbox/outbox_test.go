package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent/message"
	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/store"
)

var errUndo = errors.New("undo")

func TestMessageGoesWithItsTransaction(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{})
		full := outbox.Message{
			ID: "m-1", Topic: "orders", Key: "käse", Payload: []byte{0, 1, '\'', 0xff, '\\'},
			Headers: map[string]string{"Trace-Id": "a'b\\ü", "x": ""},
		}
		err := w.db.Transaction(func(tx *gorm.DB) error {
			w.must(outbox.Add(tx, full))
			return errUndo
		})
		if !errors.Is(err, errUndo) {
			w.Fatal(err)
		}
		w.turn(r)
		w.want()
		w.add(full, outbox.Message{ID: "m-2", Topic: "orders"})
		w.turn(r)
		w.turn(r)
		w.want("m-1", "m-2")
		if got := w.broker.got[0]; got.Topic != full.Topic || got.Key != full.Key || string(got.Payload) != string(full.Payload) || !maps.Equal(got.Headers, full.Headers) {
			w.Errorf("sent %+v, want %+v", got, full)
		}
		if got := w.broker.got[1]; got.Key != "" || len(got.Payload) != 0 || got.Headers != nil {
			w.Errorf("sent %+v, want an empty one", got)
		}
	})
}

// As many of the largest as are more than a server takes in one statement.
func TestLargeMessages(t *testing.T) {
	everywhere(t, func(w *world) {
		large := make([]outbox.Message, 70)
		for i := range large {
			large[i] = outbox.Message{ID: fmt.Sprint(i), Topic: "orders", Payload: bytes.Repeat([]byte{byte(i)}, message.MaxPayload)}
		}
		w.add(large...)
		w.turn(w.relay(outbox.Config{}))
		for i, m := range w.broker.got {
			if m.ID != large[i].ID || !bytes.Equal(m.Payload, large[i].Payload) {
				w.Errorf("message %d is %s with %d bytes", i, m.ID, len(m.Payload))
			}
		}
		if len(w.broker.got) != len(large) {
			w.Errorf("%d messages", len(w.broker.got))
		}
	})
}

func TestAddRefuses(t *testing.T) {
	w := newWorld(t)
	if err := outbox.Add(w.db, msg("a/1")); err == nil || !strings.Contains(err.Error(), "not in a transaction") {
		t.Errorf("outside of a transaction: %v", err)
	}
	w.must(w.db.Transaction(func(tx *gorm.DB) error {
		if err := outbox.Add(tx, msg("a/1"), outbox.Message{Topic: "t"}); err == nil || !strings.Contains(err.Error(), "ID is empty") {
			t.Errorf("without an ID: %v", err)
		}
		return nil
	}))
	other, err := outbox.New(w.db, outbox.WithTablePrefix("mine_"))
	w.must(err)
	if err := w.db.Transaction(func(tx *gorm.DB) error { return other.Add(tx, msg("a/1")) }); !errors.Is(err, store.ErrSchema) {
		t.Errorf("tables that are not there: %v", err)
	}
	if err := other.CheckSchema(t.Context()); !errors.Is(err, store.ErrSchema) {
		t.Errorf("CheckSchema: %v", err)
	}
	w.must(other.Migrate(t.Context()))
	w.must(w.db.Transaction(func(tx *gorm.DB) error { return other.Add(tx, msg("a/1")) }))
	if n := w.count("id = 'a/1'"); n != 0 {
		t.Errorf("%d rows in the tables of another prefix", n)
	}
}

// A second attempt, after the first or beside it, adds nothing.
func TestSecondAttemptAddsNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{})
		w.add(msg("a/1"))
		w.add(msgs("a/1", "a/2")...)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					err := w.db.Transaction(func(tx *gorm.DB) error { return outbox.Add(tx, msg("a/3")) })
					if err == nil {
						return
					}
					if !errors.Is(err, store.ErrUnavailable) { // busy: its caller tries again
						w.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		w.turn(r)
		w.want("a/1", "a/2", "a/3")
		w.add(msgs("a/2", "a/3")...) // sent, and remembered
		w.turn(r)
		w.want("a/1", "a/2", "a/3")
	})
}

// A transaction that began first and commits last is not passed over, and the relay
// does not wait for it.
func TestLateCommitIsNotPassedOver(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{Lease: 2 * time.Second})
		if w.db.Name() == "sqlite" {
			// It has one writer, so numbers are committed in their order: a lower one that
			// comes later has to be made.
			w.add(msg("-/2"))
			w.exec("UPDATE solotick_outbox SET seq = 200 WHERE id = '-/2'")
			w.turn(r)
			w.want("-/2")
			w.add(msg("-/1"))
			w.exec("UPDATE solotick_outbox SET seq = 100 WHERE id = '-/1'")
			w.turn(r)
			w.want("-/2", "-/1")
			return
		}
		late := w.db.WithContext(w.Context()).Begin()
		w.must(late.Error)
		w.must(outbox.Add(late, msg("-/1")))
		w.add(msg("-/2"))
		// The turns end while the first transaction is open: reading, marking and
		// cleaning touch no row of its.
		look := func() {
			w.Helper()
			_, err := r.Turn(w.Context())
			w.must(err)
		}
		for range 3 {
			look()
		}
		w.want("-/2")
		_, err := w.box.Prune(w.Context(), -time.Hour, 100)
		w.must(err)
		if n := w.count("id = '-/2'"); n != 0 {
			w.Errorf("%d rows after the prune", n)
		}
		w.add(msg("-/3"))
		look()
		w.must(late.Commit().Error)
		look()
		w.want("-/2", "-/3", "-/1")
	})
}

func TestKeysAreInOrderWhateverFails(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{})
		failures := map[string]int{"a/1": 2, "b/2": 1}
		w.broker.refuse = func(m outbox.Message) error {
			if failures[m.ID] == 0 {
				return nil
			}
			failures[m.ID]--
			return errors.New("no")
		}
		w.add(msgs("a/1", "b/1", "a/2", "-/1", "b/2", "-/2", "b/3", "a/3")...)
		if _, err := r.Turn(w.Context()); err != nil {
			w.Fatal(err)
		}
		w.want("b/1", "-/1", "-/2")
		// What waits holds up those behind it, and nobody else.
		w.exec("UPDATE solotick_outbox SET due_ms = due_ms + 3600000 WHERE due_ms > 0")
		w.add(msgs("c/1", "a/4")...)
		if _, err := r.Turn(w.Context()); err != nil {
			w.Fatal(err)
		}
		w.want("b/1", "-/1", "-/2", "c/1")
		w.turn(r)
		w.want("b/1", "-/1", "-/2", "c/1", "b/2", "b/3")
		w.turn(r)
		w.want("b/1", "-/1", "-/2", "c/1", "b/2", "b/3", "a/1", "a/2", "a/3", "a/4")
		if w.count("state = 1") != 0 {
			w.Error("some are open")
		}
	})
}

// The same key in another topic is another order.
func TestTopicsAreApart(t *testing.T) {
	w := newWorld(t)
	r := w.relay(outbox.Config{})
	w.broker.refuse = func(m outbox.Message) error {
		if m.Topic == "orders" {
			return errors.New("no")
		}
		return nil
	}
	other := msg("a/2")
	other.Topic = "mails"
	w.add(msg("a/1"), other)
	w.turn(r)
	w.want("a/2")
}

func TestRefusedMessageIsParked(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{MaxAttempts: 3})
		broken := true
		w.broker.refuse = func(m outbox.Message) error {
			if m.ID == "a/1" && broken {
				return errors.New("it is \x00 poison \xff")
			}
			return nil
		}
		w.add(msgs("a/1", "a/2")...)
		for range 2 {
			w.turn(r)
		}
		if b, err := w.box.Backlog(w.Context()); err != nil || b.Open != 2 || b.Parked != 0 {
			w.Errorf("Backlog = %+v, %v", b, err)
		}
		w.want()
		w.turn(r)
		w.want("a/2") // one that is parked holds nobody up
		w.turn(r)
		parked, err := w.box.Parked(w.Context(), 10)
		if err != nil || len(parked) != 1 || parked[0].ID != "a/1" || parked[0].Attempts != 3 || parked[0].Error != "it is ? poison ?" ||
			parked[0].Since.Before(parked[0].Added) {
			w.Fatalf("Parked = %+v, %v", parked, err)
		}
		if b, err := w.box.Backlog(w.Context()); err != nil || b != (outbox.Backlog{Parked: 1}) {
			w.Errorf("Backlog = %+v, %v", b, err)
		}
		broken = false
		w.turn(r)
		w.want("a/2")
		if n, err := w.box.Retry(w.Context(), "a/1", "a/2", "nobody"); err != nil || n != 1 {
			w.Errorf("Retry = %d, %v", n, err)
		}
		w.turn(r)
		w.want("a/2", "a/1")
	})
}

// A row that cannot be read holds up those behind it, until it is parked, and nobody else.
func TestFlawedRowIsParked(t *testing.T) {
	w := newWorld(t)
	r := w.relay(outbox.Config{MaxAttempts: 2})
	w.add(msgs("a/1", "b/1", "a/2", "b/2")...)
	w.exec("UPDATE solotick_outbox SET headers = 'x' WHERE id = 'a/1'")
	w.turn(r)
	w.want("b/1", "b/2")
	w.turn(r)
	w.want("b/1", "b/2", "a/2")
	if parked, err := w.box.Parked(t.Context(), 10); err != nil || len(parked) != 1 || parked[0].ID != "a/1" || !strings.Contains(parked[0].Error, "headers") {
		t.Errorf("Parked = %+v, %v", parked, err)
	}
}

// A broker that is away parks nothing, and is asked less and less.
func TestBrokerThatIsAwayParksNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{MaxAttempts: 1, Batch: 2})
		away := true
		w.broker.refuse = func(outbox.Message) error {
			if away {
				return errors.Join(outbox.ErrUnavailable, errors.New("connection refused"))
			}
			return nil
		}
		w.add(msgs("a/1", "a/2", "b/1", "-/1", "-/2")...)
		for range 20 {
			w.turn(r)
		}
		if w.broker.calls != 20 || w.count("state = 1") != 5 || w.count("attempts > 0") != 0 {
			w.Errorf("%d calls for 20 turns, %d open, %d with attempts", w.broker.calls, w.count("state = 1"), w.count("attempts > 0"))
		}
		var longest time.Duration
		for range 20 {
			w.exec("UPDATE solotick_outbox SET due_ms = 0")
			wait, err := r.Turn(w.Context())
			w.must(err)
			longest = max(longest, wait)
		}
		if longest < 5*time.Second { // of 20, evenly spread up to 30 s
			w.Errorf("the longest pause was %v", longest)
		}
		away = false
		for range 3 {
			w.turn(r)
		}
		if w.count("state = 2") != 5 {
			w.Errorf("%d were sent", w.count("state = 2"))
		}
	})
}

// An answer that is lost is a message that is sent twice, not one that is lost.
func TestLostAnswerIsSentAgain(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.relay(outbox.Config{})
		lost := 1
		w.broker.lose = func(outbox.Message) error {
			if lost--; lost == 0 {
				return errors.New("no answer")
			}
			return nil
		}
		w.add(msg("a/1"))
		w.turn(r)
		w.turn(r)
		w.turn(r)
		w.want("a/1", "a/1")
	})
}

// short answers one error too few.
type short struct{}

func (short) Publish(_ context.Context, m []outbox.Message) []error { return make([]error, len(m)-1) }

func TestPublisherThatMiscountsSendsNothing(t *testing.T) {
	w := newWorld(t)
	relay, err := outbox.NewRelay(w.box, outbox.Config{}, outbox.Deps{Publisher: short{}})
	w.must(err)
	w.add(msgs("a/1", "b/1")...)
	w.turn(relay.NewTerm())
	if n := w.count("state = 1 AND attempts = 1"); n != 2 {
		t.Errorf("%d are open after an attempt, want 2", n)
	}
}

func TestSentRowsAreDeletedInTime(t *testing.T) {
	everywhere(t, func(w *world) {
		// Also by a relay that always finds a whole batch.
		busy := w.relay(outbox.Config{Retention: time.Millisecond, Batch: 1})
		w.add(msgs("x/1", "x/2")...)
		w.exec("UPDATE solotick_outbox SET state = 2, ended_ms = 1 WHERE id = 'x/1'")
		w.turn(busy)
		busy.Resign(w.Context())
		w.want("x/2")
		if n := w.count("id = 'x/1'"); n != 0 {
			w.Errorf("%d old rows beside a backlog", n)
		}
		w.exec("DELETE FROM solotick_outbox")
		keeps, forgets := w.relay(outbox.Config{}), w.relay(outbox.Config{Retention: time.Millisecond})
		w.broker.refuse = func(m outbox.Message) error {
			if m.ID == "bad/1" {
				return errors.New("no")
			}
			return nil
		}
		w.add(msgs("a/1", "a/2", "bad/1")...)
		w.turn(keeps)
		keeps.Resign(w.Context())
		if n := w.count("state = 2"); n != 2 {
			w.Errorf("%d sent rows within the retention", n)
		}
		w.exec("UPDATE solotick_outbox SET ended_ms = ended_ms - 1000 WHERE state = 2")
		_, err := forgets.Turn(w.Context())
		w.must(err)
		if n := w.count("1 = 1"); n != 1 {
			w.Errorf("%d rows after the retention, want the one that is open", n)
		}
	})
}

// What the package comments say about the number of statements.
func TestStatements(t *testing.T) {
	everywhere(t, func(w *world) {
		counted, c := sqlcount.Wrap(w.db)
		box, err := outbox.New(counted)
		w.must(err)
		relay, err := outbox.NewRelay(box, outbox.Config{Lease: 10 * time.Minute, Retention: -1}, outbox.Deps{Publisher: w.broker})
		w.must(err)
		r := relay.NewTerm()
		_, err = r.Turn(w.Context())
		w.must(err)
		looks := 1
		if w.db.Name() == "postgres" {
			looks = 2 // in a transaction, with what the planner may do
		}
		many := make([]outbox.Message, 100)
		for i := range many {
			many[i] = msg("-/" + string(rune('A'+i/10)) + string(rune('0'+i%10)))
		}
		for _, step := range []struct {
			name       string
			do         func() error
			statements int
		}{
			{"idle", func() error { _, err := r.Turn(w.Context()); return err }, looks},
			{"add 100", func() error { return counted.Transaction(func(tx *gorm.DB) error { return outbox.Add(tx, many...) }) }, 1},
			{"send 100", func() error { _, err := r.Turn(w.Context()); return err }, looks + 1},
		} {
			c.Reset()
			w.must(step.do())
			if n := c.Statements(); n != step.statements {
				w.Errorf("%s: %d statements, want %d: %q", step.name, n, step.statements, c.Queries())
			}
		}
		if w.broker.calls != 1 || len(w.broker.got) != 100 {
			w.Errorf("%d messages in %d calls", len(w.broker.got), w.broker.calls)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	w := newWorld(t)
	for want, cfg := range map[string]outbox.Config{
		"Config.Interval":    {Interval: time.Millisecond},
		"Config.Batch":       {Batch: 501},
		"Config.Lease":       {Lease: time.Millisecond},
		"Config.MaxAttempts": {MaxAttempts: -1},
		"Config.RetryBase":   {RetryBase: time.Hour},
	} {
		if _, err := outbox.NewRelay(w.box, cfg, outbox.Deps{Publisher: w.broker}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := outbox.NewRelay(w.box, outbox.Config{}, outbox.Deps{}); err == nil {
		t.Error("no publisher: no error")
	}
	if _, err := outbox.NewRelay(nil, outbox.Config{}, outbox.Deps{Publisher: w.broker}); err == nil {
		t.Error("no outbox: no error")
	}
	for _, part := range []string{"CREATE TABLE solotick_outbox", "CREATE TABLE solotick_outbox_relay"} {
		if !strings.Contains(w.box.MigrationSQL(), part) {
			t.Errorf("the script lacks %q", part)
		}
	}
}
