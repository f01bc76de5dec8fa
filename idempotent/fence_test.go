package idempotent_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
)

func TestFence(t *testing.T) {
	everywhere(t, func(w *world) {
		fence := func(resource string, n int64) error {
			return w.db.Transaction(func(tx *gorm.DB) error {
				if err := tx.Create(&effect{Note: resource}).Error; err != nil {
					return err
				}
				return idempotent.Fence(tx, resource, n)
			})
		}
		for _, c := range []struct {
			resource string
			n        int64
			fenced   bool
		}{{"a", 5, false}, {"a", 5, false}, {"a", 4, true}, {"a", 9, false}, {"a", 5, true}, {"b", 1, false}} {
			if err := fence(c.resource, c.n); errors.Is(err, idempotent.ErrFenced) != c.fenced || err != nil && !c.fenced {
				w.Errorf("Fence(%q, %d) = %v, fenced wanted: %v", c.resource, c.n, err, c.fenced)
			}
		}
		if a, b := w.effects("a"), w.effects("b"); a != 3 || b != 1 {
			w.Errorf("%d and %d writes went through, want 3 and 1", a, b)
		}
		// One that was rolled back leaves no mark.
		if err := w.db.Transaction(func(tx *gorm.DB) error {
			return errors.Join(w.guard.Fence(tx, "a", 100), errors.New("no"))
		}); err == nil || errors.Is(err, idempotent.ErrFenced) {
			w.Errorf("a transaction that is rolled back: %v", err)
		}
		if err := fence("a", 9); err != nil {
			w.Errorf("after it: %v", err)
		}
		for want, err := range map[string]error{
			"is not in a transaction": idempotent.Fence(w.db, "a", 1),
			"the resource is empty":   fence("", 1),
			"0 is no fence":           fence("a", 0),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				w.Errorf("%v, want %q", err, want)
			}
		}
	})
}

// stock is a row of the user's with a version.
type stock struct {
	ID      int64
	Left    int
	Version int64
}

func TestOptimisticChangesLoseNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		if err := w.db.AutoMigrate(&stock{}); err != nil {
			w.Fatal(err)
		}
		if err := w.db.Create(&stock{ID: 1, Left: 100}).Error; err != nil {
			w.Fatal(err)
		}
		take := func(tx *gorm.DB) error {
			var s stock
			if err := tx.First(&s, 1).Error; err != nil {
				return err
			}
			return idempotent.Swap(tx, &s, s.Version, map[string]any{"left": s.Left - 1})
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					if err := idempotent.Optimistic(w.Context(), w.db, 1000, take); err != nil {
						w.Error(err)
					}
				}
			})
		}
		wg.Wait()
		var s stock
		if err := w.db.First(&s, 1).Error; err != nil || s.Left != 80 || s.Version != 20 {
			w.Errorf("after 20 changes: %+v, %v", s, err)
		}
		// A stale version changes nothing, and the tries are bounded.
		calls := 0
		err := idempotent.Optimistic(w.Context(), w.db, 3, func(tx *gorm.DB) error {
			calls++
			return idempotent.Swap(tx, &s, 7, map[string]any{"left": 0})
		})
		if !errors.Is(err, idempotent.ErrConflict) || calls != 3 {
			w.Errorf("a stale version: %v after %d calls", err, calls)
		}
		own := errors.New("sold out")
		if err := idempotent.Optimistic(w.Context(), w.db, 3, func(*gorm.DB) error { return own }); !errors.Is(err, own) {
			w.Errorf("fn's own error: %v", err)
		}
		if err := w.db.First(&s, 1).Error; err != nil || s.Left != 80 {
			w.Errorf("at the end: %+v, %v", s, err)
		}
	})
}
