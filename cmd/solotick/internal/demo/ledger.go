package demo

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// The tables that the jobs write. Neither has a unique index: a doubled effect
// has to show, not to fail.
const (
	effectsTable = "demo_effects" // one row for each committed effect
	startsTable  = "demo_starts"  // one row for each call of a cron job's handler
)

// entry is a row of either table.
type entry struct {
	ID      int64 // in the order of commits: there is one writer at a time
	Job     string
	TickMs  store.Millis // 0 for queue jobs
	Name    string       // key of a queue job
	Attempt int
	Fence   int64
	Replica int
	Pid     int
	AtMs    store.Millis
}

func (e entry) tick() tickKey { return tickKey{job: e.Job, tick: e.TickMs, name: e.Name} }

// tickKey is a run of the demo, whatever its attempts.
type tickKey struct {
	job  string
	tick store.Millis
	name string
}

// String is the run for people: jobs of this demo are told apart by the second.
func (k tickKey) String() string {
	if k.tick == 0 {
		return k.job + "/" + k.name
	}
	return k.job + "@" + k.tick.Time().Format(time.TimeOnly)
}

// identity is a replica as it signs its rows.
type identity struct{ replica, pid int }

func (i identity) entry(run *scheduler.Run) entry {
	return entry{
		Job: run.Job(), TickMs: run.Key().Tick, Name: run.Key().Name, Attempt: run.Attempt(), Fence: run.Fence(),
		Replica: i.replica, Pid: i.pid, AtMs: store.MillisOf(time.Now()),
	}
}

func (e entry) insert(db *gorm.DB, table string) error {
	return db.Exec("INSERT INTO "+table+" (job, tick_ms, name, attempt, fence, replica, pid, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		e.Job, int64(e.TickMs), e.Name, e.Attempt, e.Fence, e.Replica, e.Pid, int64(e.AtMs)).Error
}

func createLedger(ctx context.Context, db *gorm.DB) error {
	for _, table := range []string{effectsTable, startsTable} {
		err := db.WithContext(ctx).Exec("CREATE TABLE " + table + ` (id INTEGER PRIMARY KEY AUTOINCREMENT,
			job TEXT NOT NULL, tick_ms INTEGER NOT NULL, name TEXT NOT NULL, attempt INTEGER NOT NULL,
			fence INTEGER NOT NULL, replica INTEGER NOT NULL, pid INTEGER NOT NULL, at_ms INTEGER NOT NULL)`).Error
		if err != nil {
			return fmt.Errorf("demo: create table %s: %w", table, err)
		}
	}
	return nil
}

// readEntries returns the rows after an id, oldest first.
func readEntries(ctx context.Context, db *gorm.DB, table string, after int64) ([]entry, error) {
	var rows []entry
	err := db.WithContext(ctx).Raw("SELECT id, job, tick_ms, name, attempt, fence, replica, pid, at_ms FROM "+table+" WHERE id > ? ORDER BY id", after).
		Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("demo: read %s: %w", table, err)
	}
	return rows, nil
}
