package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent/outbox"
	"github.com/solotick/solotick/internal/sqldialect"
)

// counter numbers the messages of a key; its row is locked by who adds one.
type counter struct {
	ID int64
	N  int
}

// moody is a broker that refuses, is away, or loses its answer, now and then.
type moody struct{ broker }

func newMoody() *moody {
	m := &moody{}
	m.refuse = func(outbox.Message) error {
		switch rand.N(12) {
		case 0:
			return errors.New("no")
		case 1:
			return outbox.ErrUnavailable
		}
		return nil
	}
	m.lose = func(outbox.Message) error {
		if rand.N(12) == 0 {
			return errors.New("the answer is lost")
		}
		return nil
	}
	return m
}

// Many add, some of whose transactions are rolled back; two relays, each of which is
// told again and again that the other has died; a broker with its moods. What was
// committed is delivered, what was not is not, and the first deliveries of each key
// are in the order in which they were added.
func TestCrowd(t *testing.T) {
	const keys, adders, each = 3, 4, 25
	everywhere(t, func(w *world) {
		w.must(w.db.AutoMigrate(&counter{}))
		for k := range keys {
			w.must(w.db.Create(&counter{ID: int64(k + 1)}).Error)
		}
		b := newMoody()
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		var relays, adding sync.WaitGroup
		for range 2 {
			r, err := outbox.NewRelay(w.box, outbox.Config{
				Interval: 10 * time.Millisecond, Lease: time.Second, Batch: 7, MaxAttempts: 1 << 20, RetryBase: time.Millisecond, RetryMax: 5 * time.Millisecond,
			}, outbox.Deps{Publisher: &one{to: b}, Log: slog.New(slog.DiscardHandler)})
			w.must(err)
			relays.Go(func() {
				if err := r.Run(ctx); err != nil {
					w.Error(err)
				}
			})
		}
		relays.Go(func() { // both believe that they work, most of the time
			for ctx.Err() == nil {
				if err := w.db.Exec("UPDATE solotick_outbox_relay SET until_ms = 1, version = version + 1").Error; err != nil && !busy(w.db, err) {
					w.Error(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
		for range adders {
			adding.Go(func() {
				for range each {
					w.addNext(1+rand.N(int64(keys)), rand.N(4) == 0)
				}
			})
		}
		adding.Wait()
		for w.count("state = 1") > 0 {
			<-time.After(20 * time.Millisecond)
		}
		cancel()
		relays.Wait()
		if n := w.count("state <> 2"); n != 0 {
			w.Errorf("%d are not marked as sent", n)
		}
		for k := range keys {
			var c counter
			w.must(w.db.First(&c, k+1).Error)
			var want, got []string
			for n := range c.N {
				want = append(want, fmt.Sprintf("%d/%d", k+1, n+1))
			}
			for _, m := range b.got {
				if m.Key == fmt.Sprint(k+1) && !slices.Contains(got, m.ID) {
					got = append(got, m.ID)
				}
			}
			if !slices.Equal(got, want) {
				w.Errorf("first deliveries of key %d: %v, want %v", k+1, got, want)
			}
		}
		w.Logf("%d messages, %d deliveries", w.count("1 = 1"), len(b.got))
	})
}

// addNext adds the next message of a key, after it has locked what the key names.
func (w *world) addNext(key int64, undo bool) {
	for {
		err := w.db.Transaction(func(tx *gorm.DB) error {
			if err := tx.Model(&counter{ID: key}).Update("n", gorm.Expr("n + 1")).Error; err != nil {
				return err
			}
			var c counter
			if err := tx.First(&c, key).Error; err != nil {
				return err
			}
			m := outbox.Message{ID: fmt.Sprintf("%d/%d", key, c.N), Topic: "orders", Key: fmt.Sprint(key)}
			if err := outbox.Add(tx, m); err != nil {
				return err
			}
			if undo {
				return errUndo
			}
			return nil
		})
		switch {
		case err == nil, errors.Is(err, errUndo):
			return
		case !busy(w.db, err):
			w.Error(err)
			return
		}
	}
}

// busy reports whether the database asks for another try.
func busy(db *gorm.DB, err error) bool {
	d, wrong := sqldialect.For(db)
	return wrong == nil && d.Classify(err) == sqldialect.Busy
}

// one notes when a relay's publisher is used by two at a time.
type one struct {
	to outbox.Publisher
	mu sync.Mutex
}

func (o *one) Publish(ctx context.Context, msgs []outbox.Message) []error {
	if !o.mu.TryLock() {
		panic("two calls of one publisher at a time")
	}
	defer o.mu.Unlock()
	return o.to.Publish(ctx, msgs)
}
