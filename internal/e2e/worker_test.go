package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	leaderdriver "github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/leader/leadertest/terms"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// workerEnv makes this test binary a replica: it holds the replica's plan.
const workerEnv = "SOLOTICK_E2E_PLAN"

func TestMain(m *testing.M) {
	if plan := os.Getenv(workerEnv); plan != "" {
		if err := work(plan); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests wait for clocks most of the time: more of them than there are cores
	// may run at once, each with three processes.
	flag.Parse()
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(testenv.Main(m))
}

// plan is what a replica does.
type plan struct {
	Name       string
	DB         string // store and effects
	StoreDSN   string // of a store on PostgreSQL, in the place of DB
	LockDB     string // lock database, by default the store's
	Locks      string // name of the lock backend, by default SQLite
	LocksPart  string // its part of a file
	Native     bool   // the backend's own election recipe
	Follow     bool   // tells of terms
	Gate       scheduler.Gate
	Partitions int // of gate leader; 0 for one leader
	Lease      time.Duration
	LockTTL    time.Duration
	Offset     time.Duration
	Mode       store.Mode
	After      time.Duration
	Recover    time.Duration
	Journal    string // its directory
	EffectDB   string // database of plain effects, by default the store's
	Jobs       []planJob
}

// planJob is a job that holds on for a while and then writes its effect, guarded
// or not. A deaf one ignores the end of its context.
type planJob struct {
	Name    string
	Spec    string
	For     time.Duration
	Deaf    bool
	Plain   bool // no guard: the effect is a plain insert
	Misfire scheduler.Misfire
	Overlap scheduler.Overlap
	Down    scheduler.StoreDown
}

// effectRow is what a run of a job leaves behind, in a table of the jobs' own.
type effectRow struct {
	ID      int64  `gorm:"primaryKey"`
	Job     string `gorm:"index:,composite:tick"`
	Tick    int64  `gorm:"index:,composite:tick"`
	Attempt int
	Fence   int64
	Mode    string
	Replica string
	Began   int64 // milliseconds
	Ended   int64
}

func (effectRow) TableName() string { return "effects" }

// note is a line that a replica prints.
type note struct {
	Replica string
	What    string // ready, began, ended, fenced, lost, look
	Job     string
	Tick    int64
	Attempt int
	Cause   string
	At      int64
	Look    *terms.Look `json:",omitempty"`
}

var notes sync.Mutex

func (p plan) tell(n note) {
	notes.Lock()
	defer notes.Unlock()
	n.Replica, n.At = p.Name, time.Now().UnixMilli()
	line, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func work(text string) (err error) {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, closeDB, err := p.openStore()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDB()) }()
	lockDB := db
	if p.LockDB != "" {
		if lockDB, err = sqlitedb.Open(p.LockDB, nil); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sqlitedb.Close(lockDB)) }()
	}
	st, err := gormstore.New(db)
	if err != nil {
		return err
	}
	if err := st.Migrate(ctx); err != nil {
		return err
	}
	locker, recipe, err := p.openLocks(ctx, lockDB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.closeLocks(ctx, locker)) }()
	deps := scheduler.Deps{
		Store: st, Locker: locker,
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Listeners: []scheduler.Listener{scheduler.ListenerFunc(p.listen)},
	}
	lead := leader.Config{Label: p.Name, TTL: p.LockTTL}
	if p.Partitions > 0 {
		deps.Shares, err = leader.NewShares(locker, electionKey, leader.SharesConfig{Config: lead, Partitions: p.Partitions})
	} else if p.Native {
		deps.Elector, err = leader.New(leaderdriver.FromQueue(recipe), electionKey, lead)
	} else {
		deps.Elector, err = leader.FromLocks(locker, electionKey, lead)
	}
	if err != nil {
		return err
	}
	s, err := scheduler.New(scheduler.Config{
		Namespace: "e2e", Journal: p.Journal, Gate: p.Gate, Lease: p.Lease, ClockOffset: p.Offset, Label: p.Name, PollInterval: 500 * time.Millisecond,
		Degradation: scheduler.Degradation{Mode: p.Mode, After: p.After, RecoverAfter: p.Recover},
	}, deps)
	if err != nil {
		return err
	}
	guard, effects := idempotent.New(st), db
	if p.EffectDB != "" {
		if effects, err = sqlitedb.Open(p.EffectDB, nil); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sqlitedb.Close(effects)) }()
	}
	for _, j := range p.Jobs {
		if err := s.Add(p.job(j, guard, effects)); err != nil {
			return err
		}
	}
	if p.Follow {
		defer p.follow(ctx, deps.Elector)()
	}
	p.tell(note{What: "ready"})
	return s.Run(ctx)
}

func (p plan) openStore() (db *gorm.DB, closer func() error, err error) {
	if p.StoreDSN != "" {
		return postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(p.StoreDSN)})
	}
	db, err = sqlitedb.Open(p.DB, nil)
	return db, func() error { return sqlitedb.Close(db) }, err
}

func (p plan) listen(e scheduler.Event) {
	switch e := e.(type) {
	case scheduler.RunLost:
		p.tell(note{What: "lost", Job: e.Execution.Key.Job, Tick: int64(e.Execution.Key.Tick), Attempt: e.Execution.Attempt, Cause: e.Cause.Error()})
	case scheduler.RunTakenOver:
		p.tell(note{What: "took", Job: e.Execution.Key.Job, Tick: int64(e.Execution.Key.Tick), Attempt: e.Execution.Attempt})
	case scheduler.Degraded:
		what := "recovered"
		if e.On {
			what = "degraded"
		}
		p.tell(note{What: what, Cause: string(e.Mode)})
	}
}

func (p plan) job(j planJob, guard *idempotent.Guard, db *gorm.DB) scheduler.Job {
	var opts []scheduler.Option
	if j.Misfire != "" {
		opts = append(opts, scheduler.OnMisfire(j.Misfire))
	}
	if j.Overlap != "" {
		opts = append(opts, scheduler.OnOverlap(j.Overlap))
	}
	if j.Down != "" {
		opts = append(opts, scheduler.WhenStoreDown(j.Down))
	}
	return scheduler.Cron(j.Name, j.Spec, func(ctx context.Context, run *scheduler.Run) error {
		n := note{What: "began", Job: j.Name, Tick: run.Tick().UnixMilli(), Attempt: run.Attempt()}
		p.tell(n)
		began := time.Now()
		for time.Since(began) < j.For {
			if ctx.Err() != nil && !j.Deaf {
				return context.Cause(ctx)
			}
			time.Sleep(min(j.For, 5*time.Millisecond)) // real time: the work that this job pretends to do
		}
		cause := ""
		if ctx.Err() != nil {
			cause = context.Cause(ctx).Error()
			ctx = context.WithoutCancel(ctx) // deaf to the last: only the record can stop it
		}
		row := effectRow{
			Job: j.Name, Tick: run.Tick().UnixMilli(), Attempt: run.Attempt(), Fence: run.Fence(), Mode: string(run.Mode()), Replica: p.Name,
			Began: began.UnixMilli(), Ended: time.Now().UnixMilli(),
		}
		insert := func(tx *gorm.DB) error { return tx.Create(&row).Error }
		var err error
		if j.Plain {
			err = insert(db.WithContext(ctx))
		} else {
			err = guard.Do(ctx, run, insert)
		}
		n.What, n.Cause = "ended", cause
		if errors.Is(err, idempotent.ErrFenced) {
			n.What = "fenced"
		} else if err != nil {
			n.What, n.Cause = "failed", strings.TrimSpace(cause+" "+err.Error())
		}
		p.tell(n)
		return err
	}, opts...)
}
