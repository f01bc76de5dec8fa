package gormstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// The test binary plays the other processes.
const (
	roleEnv = "GORMSTORE_TEST_ROLE"
	pathEnv = "GORMSTORE_TEST_PATH"

	childLease = time.Second
)

func child(role, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sqlitedb.Open(path, &sqlitedb.Options{OpenTimeout: 30 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = sqlitedb.Close(db) }()
	s, err := gormstore.New(db)
	if err != nil {
		return err
	}
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	if role == "migrate" {
		return nil
	}
	reg, err := s.Register(ctx, space, []store.JobSpec{{Job: "job", Spec: "x", Hash: "h"}})
	if err != nil {
		return err
	}
	if role == "race" {
		return race(ctx, s, db, reg.Jobs[0].Settled)
	}
	// A run whose effect is written in a transaction that the parent interrupts.
	got, err := s.Claim(ctx, store.ClaimRequest{Namespace: space, Owner: store.NewOwner(), Lease: childLease, Runs: []store.ClaimRun{cron("job", reg.Now+1)}})
	if err != nil || got.Runs[0].Outcome != store.OutcomeStarted {
		return fmt.Errorf("claim %v: %w", got, err)
	}
	x := got.Runs[0].Execution
	in := bufio.NewReader(os.Stdin)
	wait := func(told string) {
		fmt.Println(told)
		_, _ = in.ReadString('\n')
	}
	wait("claimed")
	err = db.Transaction(func(tx *gorm.DB) error {
		if role == "checked" {
			if err := s.CheckTx(ctx, tx, x.Ref()); err != nil {
				return err
			}
		}
		if err := tx.Exec("INSERT INTO effects VALUES (?, ?)", x.Key.String(), x.Attempt).Error; err != nil {
			return err
		}
		wait("written")
		return s.FinishTx(ctx, tx, done(x))
	})
	fmt.Println("ended:", err)
	return nil
}

// race claims and finishes many ticks beside other processes that do the same.
func race(ctx context.Context, s *gormstore.Store, db *gorm.DB, settled store.Millis) error {
	owner := store.NewOwner()
	for i := range store.Millis(raceTicks) {
		run := cron("job", settled+1+i)
		run.Busy = store.BusyRefuse
		for {
			got, err := s.Claim(ctx, store.ClaimRequest{Namespace: space, Owner: owner, Lease: time.Minute, Runs: []store.ClaimRun{run}})
			if err != nil {
				return err
			}
			c := got.Runs[0]
			if c.Outcome == store.OutcomeDuplicate {
				break
			}
			if c.Outcome != store.OutcomeStarted {
				continue // busy or early
			}
			err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				if err := tx.Exec("INSERT INTO effects VALUES (?, ?)", c.Execution.Key.String(), c.Execution.Fence).Error; err != nil {
					return err
				}
				return s.FinishTx(ctx, tx, done(c.Execution))
			})
			if err != nil {
				return err
			}
			break
		}
	}
	return nil
}

const raceTicks = 40

// process is a child that tells where it is and waits to be told to go on.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, role, path string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, pathEnv+"="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{t, cmd, in, bufio.NewReader(out)}
}

func (p *process) says(want string) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, want) {
		p.t.Fatalf("child says %q, %v; want %q", line, err, want)
	}
}

func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func TestTenProcessesMigrateAnEmptyFile(t *testing.T) {
	for range 2 {
		path := filepath.Join(t.TempDir(), "store.db")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), roleEnv+"=migrate", pathEnv+"="+path)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
		wg.Wait()
		s := newStore(t, openDB(t, path))
		if st, err := s.MigrationStatus(t.Context()); err != nil || st.Current != st.Latest || len(st.Applied) != st.Latest {
			t.Errorf("status %+v, %v", st, err)
		}
	}
}

// withEffects is a place with a table of the user's.
func withEffects(t *testing.T) *place {
	p := newPlace(t)
	p.must(p.db.Exec("CREATE TABLE effects (run TEXT, n INTEGER)").Error)
	return p
}

func (p *place) effects() (n int) {
	p.Helper()
	p.must(p.db.Raw("SELECT count(*) FROM effects").Scan(&n).Error)
	return n
}

func (p *place) takenOver() store.Execution {
	p.Helper()
	for {
		got, err := p.s.TakeOver(p.ctx, store.FetchRequest{Namespace: space, Owner: p.owner, Lease: long, Jobs: []string{"job"}, Limit: 5})
		p.must(err)
		if len(got.Runs) == 1 {
			return got.Runs[0]
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (p *place) finishWithEffect(x store.Execution) error {
	return p.db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO effects VALUES (?, ?)", x.Key.String(), x.Attempt).Error; err != nil {
			return err
		}
		return p.s.FinishTx(p.ctx, tx, done(x))
	})
}

// A process killed with its effect written and not committed leaves nothing but
// a lease, and its run is taken over once.
func TestKilledInItsTransaction(t *testing.T) {
	p := withEffects(t)
	c := start(t, "plain", p.path)
	c.says("claimed")
	c.goOn()
	c.says("written")
	c.signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
	from := time.Now()
	x := p.takenOver()
	t.Logf("taken over after %v", time.Since(from))
	if x.Attempt != 2 || p.effects() != 0 {
		t.Fatalf("attempt %d, %d effects", x.Attempt, p.effects())
	}
	p.must(p.finishWithEffect(x))
	if n := p.effects(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// A process frozen for longer than its lease wakes up while the second attempt
// runs (plain), or after it has finished (checked): its effect must not be there.
func TestFrozenOwnerCommitsNothing(t *testing.T) {
	for _, role := range []string{"plain", "checked"} {
		t.Run(role, func(t *testing.T) {
			p := withEffects(t)
			c := start(t, role, p.path)
			c.says("claimed")
			c.signal(syscall.SIGSTOP)
			x := p.takenOver()
			if x.Fence != 2 {
				t.Errorf("fence %d after the takeover, want 2", x.Fence)
			}
			if role == "checked" {
				p.must(p.finishWithEffect(x))
			}
			c.signal(syscall.SIGCONT)
			c.goOn()
			if role == "plain" {
				c.says("written")
				c.goOn()
			}
			c.says("ended: " + store.ErrFenced.Error())
			if role == "plain" {
				p.must(p.finishWithEffect(x))
			}
			if n := p.effects(); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// Six processes claim the same ticks: each runs once, one at a time, under
// fences that rise.
func TestManyProcessesOneRunPerTick(t *testing.T) {
	p := withEffects(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), roleEnv+"=race", pathEnv+"="+p.path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	var runs, distinct, unordered int
	p.must(p.db.Raw("SELECT count(*), count(DISTINCT run) FROM effects").Row().Scan(&runs, &distinct))
	p.must(p.db.Raw("SELECT count(*) FROM effects a JOIN effects b ON b.rowid = a.rowid + 1 WHERE b.n <= a.n").Scan(&unordered).Error)
	if runs != raceTicks || distinct != raceTicks || unordered != 0 {
		t.Errorf("%d effects of %d runs, want %d; %d with a fence that did not rise", runs, distinct, raceTicks, unordered)
	}
}

var errUndo = errors.New("undo")

func TestFinishTxGoesWithTheTransaction(t *testing.T) {
	p := withEffects(t)
	tick := p.register("job")
	x := p.started(cron("job", tick))
	err := p.db.Transaction(func(tx *gorm.DB) error {
		p.must(p.s.CheckTx(p.ctx, tx, x.Ref()))
		p.must(p.s.FinishTx(p.ctx, tx, done(x)))
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		t.Fatal(err)
	}
	if got, err := p.s.Get(p.ctx, space, x.ID); err != nil || got.State != store.StateRunning {
		t.Errorf("after the rollback: %v, %v", got.State, err)
	}
	for _, wrong := range []func(*store.Ref){
		func(r *store.Ref) { r.Attempt++ },
		func(r *store.Ref) { r.Owner = store.NewOwner() },
		func(r *store.Ref) { r.Namespace = "other" },
		func(r *store.Ref) { r.ID[15]++ },
	} {
		f := done(x)
		wrong(&f.Ref)
		err := p.db.Transaction(func(tx *gorm.DB) error {
			if err := p.s.CheckTx(p.ctx, tx, f.Ref); !errors.Is(err, store.ErrFenced) {
				t.Errorf("check: %v", err)
			}
			return p.s.FinishTx(p.ctx, tx, f)
		})
		if !errors.Is(err, store.ErrFenced) {
			t.Errorf("%+v: %v", f.Ref, err)
		}
	}
	p.must(p.finishWithEffect(x))
	if err := p.finishWithEffect(x); !errors.Is(err, store.ErrFenced) || p.effects() != 1 {
		t.Errorf("a second time: %v, %d effects", err, p.effects())
	}
	if err := p.s.FinishTx(p.ctx, p.db, done(x)); err == nil || errors.Is(err, store.ErrFenced) {
		t.Errorf("outside of a transaction: %v", err)
	}
}

// A transaction that sends a canceled run back to be tried again is not lost, and the
// run ends.
func TestFinishTxOfACanceledRun(t *testing.T) {
	p := withEffects(t)
	x := p.started(cron("job", p.register("job")))
	if _, err := p.s.Cancel(p.ctx, space, x.ID); err != nil {
		t.Fatal(err)
	}
	p.must(p.db.Transaction(func(tx *gorm.DB) error {
		return p.s.FinishTx(p.ctx, tx, store.Finish{Ref: x.Ref(), State: store.StatePending, ErrorText: "why"})
	}))
	if got, err := p.s.Get(p.ctx, space, x.ID); err != nil || got.State != store.StateCanceled || got.ErrorText != "why" {
		t.Errorf("%v, %q, %v", got.State, got.ErrorText, err)
	}
	if got, err := p.s.Attempts(p.ctx, space, x.ID); err != nil || len(got) != 0 {
		t.Errorf("attempts %+v, %v", got, err)
	}
}

func TestEnqueueGoesWithTheTransaction(t *testing.T) {
	p := withEffects(t)
	put := func(undo bool) {
		t.Helper()
		err := p.db.Transaction(func(tx *gorm.DB) error {
			got, err := gormstore.Enqueue(tx, space, queued("mail", "1"))
			p.must(err)
			if len(got) != 1 || got[0].Outcome != store.OutcomeEnqueued {
				t.Errorf("enqueued %+v", got)
			}
			if undo {
				return errUndo
			}
			return nil
		})
		if err != nil && !undo {
			t.Fatal(err)
		}
	}
	put(true)
	if got := p.fetch(5, "mail").Runs; len(got) != 0 {
		t.Fatalf("fetched %d rows of a transaction that was rolled back", len(got))
	}
	put(false)
	if got := p.fetch(5, "mail").Runs; len(got) != 1 {
		t.Fatalf("fetched %d", len(got))
	}
	other := newStore(t, openDB(t, filepath.Join(t.TempDir(), "o.db")), gormstore.WithPrefix("mine_"))
	if _, err := other.EnqueueTx(p.ctx, p.db, space, queued("mail", "2")); !errors.Is(err, store.ErrSchema) {
		t.Errorf("tables of another prefix: %v", err)
	}
}
