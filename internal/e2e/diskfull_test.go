package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// disk is a database whose size can be limited to what it has now.
type disk struct {
	t  *testing.T
	db *gorm.DB
}

func (d disk) limit(pages int64) {
	d.t.Helper()
	if err := d.db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages)).Error; err != nil {
		d.t.Error(err)
	}
}

func (d disk) fill() {
	d.t.Helper()
	var pages int64
	if err := d.db.Raw("PRAGMA page_count").Scan(&pages).Error; err != nil {
		d.t.Error(err)
	}
	d.limit(pages)
}

func (d disk) clear() { d.limit(1 << 20) }

// within waits for a condition in this process, with a limit.
func within(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond) // real time: a condition with a limit
	}
}

// TestDiskFull: a full disk before a claim leaves no record and the tick runs when
// there is space; in a run it rolls the effect back, and a new attempt makes it.
func TestDiskFull(t *testing.T) {
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "full.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	}()
	st, err := gormstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	type blob struct {
		ID   int64 `gorm:"primaryKey"`
		Tick int64
		Data []byte
	}
	if err := db.AutoMigrate(&blob{}); err != nil {
		t.Fatal(err)
	}
	d := disk{t, db}
	guard := idempotent.New(st)
	var full, unclaimed atomic.Int64
	fill := make(chan struct{}, 1)
	s, err := scheduler.New(scheduler.Config{Namespace: "e2e", Gate: scheduler.GateNone, Lease: 2 * time.Second, PollInterval: 200 * time.Millisecond}, scheduler.Deps{
		Store: st, Logger: slog.New(slog.DiscardHandler),
		Listeners: []scheduler.Listener{scheduler.ListenerFunc(func(e scheduler.Event) {
			if e, ok := e.(scheduler.StoreUnavailable); ok && (e.Op == "claim" || e.Op == "settle") {
				unclaimed.Add(1)
			}
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Add(scheduler.Cron("blob", "@every 1s", func(ctx context.Context, run *scheduler.Run) error {
		select {
		case <-fill:
			d.fill()
		default:
		}
		err := guard.Do(ctx, run, func(tx *gorm.DB) error {
			return tx.Create(&blob{Tick: run.Tick().UnixMilli(), Data: make([]byte, 64<<10)}).Error
		})
		if errors.Is(err, store.ErrUnavailable) {
			full.Add(1)
		}
		return err
	}, scheduler.OnMisfire(scheduler.MisfireFireAll), scheduler.OnOverlap(scheduler.OverlapBufferAll)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	count := func() (n int64) {
		if err := db.Model(&blob{}).Count(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
	within(t, patience, "two effects", func() bool { return count() >= 2 })
	from := time.Now()

	fill <- struct{}{}
	within(t, patience, "a run finds the disk full", func() bool { return full.Load() > 0 })
	within(t, patience, "claims find the disk full", func() bool { return unclaimed.Load() > 0 })
	was := count()
	d.clear()

	within(t, patience, "effects again", func() bool { return count() >= was+4 })
	until(time.Now().Add(3 * time.Second))
	to := time.Now().Add(-2 * time.Second)
	within(t, patience, "all ticks have their effect once", func() bool {
		var ticks []int64
		if err := db.Model(&blob{}).Where("tick > ? AND tick <= ?", from.UnixMilli(), to.UnixMilli()).Pluck("tick", &ticks).Error; err != nil {
			t.Fatal(err)
		}
		seen := map[int64]int{}
		for _, tick := range ticks {
			if seen[tick]++; seen[tick] > 1 {
				t.Fatalf("tick %s has %d effects", store.Millis(tick), seen[tick])
			}
		}
		return len(seen) == len(expected(t, "@every 1s", from, to))
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	retaken, err := st.List(t.Context(), store.Filter{Namespace: "e2e", Jobs: []string{"blob"}, States: []store.State{store.StateSucceeded}, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	for _, row := range retaken {
		if row.Attempt > 1 {
			again++
		}
	}
	if again == 0 {
		t.Error("no run was made again as a new attempt")
	}
}
