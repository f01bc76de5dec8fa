package gormstore_test

import (
	"database/sql"
	"errors"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/storetest"
)

// hostile is a DSN with settings under which careless statements go wrong: snapshots
// by default, and rows counted as changed although they were only found.
func (s server) hostile(tb testing.TB, addr string) string {
	tb.Helper()
	if s.name == "mariadb" {
		c, err := mysql.ParseDSN(s.dsnAt(addr))
		if err != nil {
			tb.Fatal(err)
		}
		c.ClientFoundRows = true
		c.Params = map[string]string{"tx_isolation": "'REPEATABLE-READ'", "innodb_snapshot_isolation": "ON"}
		return c.FormatDSN()
	}
	u, err := url.Parse(s.dsnAt(addr))
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	q.Set("default_transaction_isolation", "repeatable read")
	u.RawQuery = q.Encode()
	return u.String()
}

// The suite once more, under hostile settings and through a proxy, in its
// short form.
func TestHostileConformance(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		proxy := faultproxy.Start(t, s.addr)
		storetest.RunShort(t, func(t *testing.T) storetest.Harness {
			prefix := tables()
			return storetest.Harness{Open: func(tb testing.TB) store.Store {
				tb.Helper()
				return newStore(tb, s.open(tb, s.hostile(tb, proxy.Addr()), 4), prefix)
			}}
		})
	})
}

var onlyMariaDB = regexp.MustCompile(`/\*M!.*?\*/`)

// asOnMySQL takes out what only MariaDB reads.
func asOnMySQL(query string) string { return onlyMariaDB.ReplaceAllString(query, "") }

// The suite in its short form where an INSERT returns nothing, as on MySQL, and a claim
// with its read-back there.
func TestConformanceWithoutReturning(t *testing.T) {
	t.Parallel()
	s := servers["mariadb"](t)
	open := func(tb testing.TB) (*gorm.DB, *sqlcount.Counter) {
		db, count := sqlcount.Wrap(s.open(tb, s.dsnAt(s.addr), 4))
		count.Edit(asOnMySQL)
		return db, count
	}
	storetest.RunShort(t, func(t *testing.T) storetest.Harness {
		prefix := tables()
		return storetest.Harness{Open: func(tb testing.TB) store.Store {
			tb.Helper()
			db, _ := open(tb)
			return newStore(tb, db, prefix)
		}}
	})
	t.Run("costs", func(t *testing.T) {
		db, count := open(t)
		p := &place{T: t, ctx: t.Context(), db: db, s: newStore(t, db, tables()), count: count, owner: store.NewOwner()}
		tick := p.register("a", "b")
		p.costs("claim of 2", 4, 1, func() { p.want(p.claim(cron("a", tick), cron("b", tick)), "started", 2) })
	})
}

// What a command printed may be no text.
func TestErrorTextOfAnyBytes(t *testing.T) {
	everywhere(t, func(p *place) {
		x := p.started(cron("job", p.register("job")))
		f := done(x)
		f.State, f.ErrorCode, f.ErrorText = store.StateFailed, "exit\xff", "a\x00b\xc3"
		errs, err := p.s.Finish(p.ctx, []store.Finish{f})
		p.must(err)
		p.must(errs[0])
		if got, err := p.s.Get(p.ctx, space, x.ID); err != nil || got.ErrorCode != "exit\uFFFD" || got.ErrorText != "a\uFFFDb\uFFFD" {
			p.Errorf("stored %q and %q, %v", got.ErrorCode, got.ErrorText, err)
		}
	})
}

// A transaction of the user's with a snapshot sees what was committed since where it
// matters: a key that is taken is a duplicate or a conflict, never taken twice, and an
// attempt that was taken over commits nothing.
func TestSnapshotOfTheUser(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		for name, dsn := range map[string]string{"plain": s.dsnAt(s.addr), "hostile": s.hostile(t, s.addr)} {
			t.Run(name, func(t *testing.T) {
				prefix := tables()
				db := s.open(t, dsn, 4)
				p := &place{T: t, ctx: t.Context(), db: db, s: newStore(t, db, prefix), owner: store.NewOwner()}
				table := "effects_" + name
				p.must(db.Exec("CREATE TABLE " + table + " (n INTEGER)").Error)
				inSnapshot := func(meanwhile func(), f func(tx *gorm.DB) error) error {
					tx := db.Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
					p.must(tx.Error)
					var n int
					p.must(tx.Raw("SELECT count(*) FROM " + table).Scan(&n).Error) // takes the snapshot
					meanwhile()
					err := f(tx)
					if err == nil {
						return tx.Commit().Error
					}
					return errors.Join(err, tx.Rollback().Error)
				}
				tick := p.register("job")
				first := queued("mail", "1")
				err := inSnapshot(func() {
					_, err := p.s.Enqueue(p.ctx, space, []store.NewExecution{first})
					p.must(err)
				}, func(tx *gorm.DB) error {
					got, err := p.s.EnqueueTx(p.ctx, tx, space, queued("mail", "1"), queued("mail", "2"))
					if err == nil && (got[0].Outcome != store.OutcomeDuplicate || got[1].Outcome != store.OutcomeEnqueued) {
						t.Errorf("enqueued %+v", got)
					}
					return err
				})
				if err != nil && !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("enqueue: %v", err)
				}

				x := p.started(cron("job", tick))
				finish := func(x store.Execution) func(tx *gorm.DB) error {
					return func(tx *gorm.DB) error {
						p.must(tx.Exec("INSERT INTO "+table+" VALUES (?)", x.Attempt).Error)
						return p.s.FinishTx(p.ctx, tx, done(x))
					}
				}
				err = inSnapshot(func() {
					_, err := p.s.Heartbeat(p.ctx, store.HeartbeatRequest{
						Namespace: space, Owner: p.owner, Lease: time.Millisecond, Beats: []store.Beat{{ID: x.ID, Attempt: 1}},
					})
					p.must(err)
					y := p.takenOver()
					p.must(db.Transaction(finish(y), &sql.TxOptions{Isolation: sql.LevelReadCommitted}))
				}, finish(x))
				if !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("the attempt that was taken over: %v", err)
				}
				var effects []int
				p.must(db.Raw("SELECT n FROM " + table).Scan(&effects).Error)
				if len(effects) != 1 || effects[0] != 2 {
					t.Errorf("effects of the attempts %v, want one of attempt 2", effects)
				}
			})
		}
	})
}

// An owner that got its own run again, as a later attempt, cannot finish it by the
// earlier one, however the driver counts rows.
func TestEarlierAttemptOfTheSameOwner(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		for name, dsn := range map[string]string{"plain": s.dsnAt(s.addr), "hostile": s.hostile(t, s.addr)} {
			t.Run(name, func(t *testing.T) {
				db := s.open(t, dsn, 2)
				p := &place{T: t, ctx: t.Context(), db: db, s: newStore(t, db, tables()), owner: store.NewOwner()}
				first := p.started(cron("job", p.register("job")))
				again := done(first)
				again.State = store.StatePending
				errs, err := p.s.Finish(p.ctx, []store.Finish{again})
				p.must(errors.Join(append(errs, err)...))
				var second []store.Execution
				for len(second) == 0 && p.ctx.Err() == nil { // due at once, by the server's clock
					second = p.fetch(1, "job").Runs
				}
				finish := func(x store.Execution) error {
					return db.Transaction(func(tx *gorm.DB) error { return p.s.FinishTx(p.ctx, tx, done(x)) })
				}
				if err := finish(first); !errors.Is(err, store.ErrFenced) {
					t.Errorf("attempt %d while %d runs: %v", first.Attempt, second[0].Attempt, err)
				}
				if err := finish(second[0]); err != nil {
					t.Errorf("attempt %d, which runs: %v", second[0].Attempt, err)
				}
			})
		}
	})
}

// An answer that was cut off is unknown: the caller is told so, and the repeat settles
// it, whether the request was carried out or not.
func TestAnswersCutOff(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		// What the wire carries of a commit, and of a statement by itself.
		commit, alone := "commit\x00", "stmtcache_"
		if s.name == "mariadb" {
			commit, alone = "\x03COMMIT", "\x03UPDATE"
		}
		for _, executed := range []bool{true, false} {
			name := map[bool]string{true: "executed", false: "not executed"}[executed]
			t.Run(name, func(t *testing.T) { cutOff(t, s, executed, commit, alone) })
		}
	})
}

func cutOff(t *testing.T, s server, executed bool, commit, alone string) {
	prefix := tables()
	proxy := faultproxy.Start(t, s.addr)
	near := newStore(t, s.db(t, 2), prefix)
	db := s.open(t, s.dsnAt(proxy.Addr()), 1)
	far, err := gormstore.New(db, prefix)
	if err != nil {
		t.Fatal(err)
	}
	p := &place{T: t, ctx: t.Context(), db: db, s: far, owner: store.NewOwner()}
	cut := func(what, match string, call func() error) {
		t.Helper()
		trap := proxy.CutRequest([]byte(match))
		if executed {
			trap.Disarm()
			trap = proxy.SwallowReply([]byte(match))
		}
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v, want unavailable", what, err)
		}
		select {
		case <-trap.Fired():
		default:
			t.Errorf("%s: nothing was cut", what)
		}
	}
	tick := p.register("job")
	run := cron("job", tick)
	run.ID = store.NewID(tick)
	cut("claim", commit, func() error {
		_, err := far.Claim(p.ctx, store.ClaimRequest{Namespace: space, Owner: p.owner, Lease: long, Runs: []store.ClaimRun{run}})
		return err
	})
	if _, err := near.Find(p.ctx, space, run.Key); (err == nil) != executed {
		t.Errorf("after the claim: %v", err)
	}
	x := p.started(run)
	if x.Attempt != 1 {
		t.Errorf("attempt %d", x.Attempt)
	}

	job := queued("mail", "1")
	job.ID = store.NewID(tick)
	enqueue := func() error {
		got, err := far.Enqueue(p.ctx, space, []store.NewExecution{job})
		if err == nil && got[0].Outcome != store.OutcomeEnqueued {
			t.Errorf("enqueued %+v", got)
		}
		return err
	}
	cut("enqueue", commit, enqueue)
	p.must(enqueue())

	beat := func() error {
		got, err := far.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: long, Beats: []store.Beat{{ID: x.ID, Attempt: 1}}})
		if err == nil && got.Beats[0].Lost {
			t.Error("the beat is lost")
		}
		return err
	}
	p.must(beat()) // PostgreSQL knows the statement then
	cut("heartbeat", alone, beat)
	p.must(beat())

	cut("fetch", commit, func() error {
		_, err := far.Fetch(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: time.Millisecond, Jobs: []string{"mail"}, Limit: 1})
		return err
	})
	for n := 0; n == 0; { // taken over if it was handed out, fetched if it was not
		over, err := far.TakeOver(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"mail"}, Limit: 1})
		p.must(err)
		n = len(over.Runs) + len(p.fetch(1, "mail").Runs)
		if len(over.Runs) > 0 != executed && n > 0 {
			t.Errorf("after the fetch: %d taken over", len(over.Runs))
		}
	}

	end := func(x store.Execution) func() error {
		return func() error {
			errs, err := far.Finish(p.ctx, []store.Finish{done(x)})
			if err == nil {
				err = errs[0]
			}
			return err
		}
	}
	p.must(end(x)())
	x = p.started(cron("job", tick+1))
	cut("finish", alone, end(x))
	if got, err := near.Get(p.ctx, space, x.ID); err != nil || (got.State == store.StateSucceeded) != executed {
		t.Errorf("after the finish: %v, %v", got.State, err)
	}
	p.must(end(x)())

	x = p.started(cron("job", tick+2))
	finishTx := func() error {
		return db.Transaction(func(tx *gorm.DB) error { return far.FinishTx(p.ctx, tx, done(x)) })
	}
	err = nil
	cut("commit of the user", commit, func() error {
		if err = finishTx(); sqldialectOf(db).Classify(err) == sqldialect.Unavailable {
			return store.ErrUnavailable
		}
		return err
	})
	got, err := near.Get(p.ctx, space, x.ID)
	if err != nil || (got.State == store.StateSucceeded) != executed {
		t.Errorf("after the commit: %v, %v", got.State, err)
	}
	if err := finishTx(); executed != errors.Is(err, store.ErrFenced) {
		t.Errorf("the transaction again: %v", err)
	}
}

func sqldialectOf(db *gorm.DB) *sqldialect.Dialect {
	d, err := sqldialect.For(db)
	if err != nil {
		panic(err)
	}
	return d
}
