package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// Options of the demo.
type Options struct {
	For       time.Duration // ticks are due and replicas are killed for so long
	Replicas  int
	KillEvery time.Duration // 0 kills none
	Skew      time.Duration // the replicas' clocks are off by -Skew, 0, +Skew in turn
	Dir       string        // for database and logs; empty for a temporary one that is removed
	Screen    *Screen       // where progress is shown
}

// Validate reports the first option that cannot work.
func (o Options) Validate() error {
	switch {
	case o.For < 3*time.Second || o.For > 24*time.Hour:
		return fmt.Errorf("--for %v is outside 3s to 24h", o.For)
	case o.Replicas < 1 || o.Replicas > 20:
		return fmt.Errorf("--replicas %d is outside 1 to 20", o.Replicas)
	case o.KillEvery != 0 && o.KillEvery < minKillEvery:
		return fmt.Errorf("--kill-every %v leaves a run no time to end (a run takes %v and a takeover up to %v): use %v or more",
			o.KillEvery, reportTakes, lease, minKillEvery)
	case o.Skew < 0 || o.Skew > time.Minute:
		return fmt.Errorf("--skew %v is outside 0s to 1m", o.Skew)
	}
	return nil
}

// minKillEvery leaves a run that was interrupted the time to be taken over and to
// end before the next kill, on a busy machine as well.
const minKillEvery = 5 * time.Second

const (
	frame        = 200 * time.Millisecond
	enqueueEvery = 250 * time.Millisecond
	startTimeout = 30 * time.Second
	queryTimeout = 10 * time.Second
)

// ErrInterrupted says that the demo was ended before its time.
var ErrInterrupted = errors.New("demo: interrupted before the end: nothing was decided")

// Run runs the demo and returns what it found, also where the promise was broken;
// an error means that it found nothing. When it returns, no replica is left.
func Run(ctx context.Context, o Options) (report Report, err error) {
	dir, remove, err := workDir(o.Dir)
	if err != nil {
		return Report{}, err
	}
	kept := o.Dir != ""
	defer func() {
		if kept {
			return
		}
		err = errors.Join(err, remove())
	}()
	db, err := sqlitedb.Open(filepath.Join(dir, databaseFile), nil) //nolint:contextcheck // Open bounds itself
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, sqlitedb.Close(db)) }()
	st, err := gormstore.New(db)
	if err != nil {
		return Report{}, err
	}
	if err := st.Migrate(ctx); err != nil {
		return Report{}, err
	}
	if err := createLedger(ctx, db); err != nil {
		return Report{}, err
	}
	fleet, err := newFleet(dir, o.Replicas, o.Skew)
	if err != nil {
		return Report{}, err
	}
	defer fleet.stop()
	s := &show{o: o, db: db, store: st, fleet: fleet, screen: o.Screen}
	defer s.screen.Close()
	if err := s.run(ctx); err != nil {
		kept = kept || !errors.Is(err, ErrInterrupted)
		return Report{}, s.explain(ctx, err, dir, kept)
	}
	fleet.stop()
	t, err := s.verdict(ctx)
	if err != nil {
		return Report{}, err
	}
	s.screen.Close()
	t.tell(s.screen.Out, s.board)
	if kept = kept || !t.Kept(); kept {
		fmt.Fprintf(s.screen.Out, "Database and logs: %s\n", dir)
	}
	return t.Report, nil
}

// workDir makes a temporary directory, or uses an empty one of the user's.
func workDir(asked string) (dir string, remove func() error, err error) {
	if asked == "" {
		dir, err := os.MkdirTemp("", "solotick-demo-")
		if err != nil {
			return "", nil, fmt.Errorf("demo: %w", err)
		}
		return dir, func() error { return os.RemoveAll(dir) }, nil
	}
	if err := os.MkdirAll(asked, 0o700); err != nil {
		return "", nil, fmt.Errorf("demo: --dir: %w", err)
	}
	if _, err := os.Stat(filepath.Join(asked, databaseFile)); err == nil {
		return "", nil, fmt.Errorf("demo: --dir %s holds the database of an earlier demo: remove it or name another directory", asked)
	}
	return asked, func() error { return nil }, nil
}

// show is a demo in progress. It belongs to one goroutine.
type show struct {
	o      Options
	db     *gorm.DB
	store  store.Store
	fleet  *fleet
	screen *Screen
	board  *board

	lastEffect, lastStart int64
	running               []store.Execution
	killer                killer
	deaths                int // replicas that ended by themselves
	nextPut               store.Millis
}

func (s *show) run(ctx context.Context) error {
	from, err := s.registered(ctx)
	if err != nil {
		return err
	}
	end := from.Add(s.o.For)
	if s.board, err = newBoard(from, end); err != nil {
		return err
	}
	s.killer = newKiller(s.o.KillEvery, from, end)
	s.nextPut = from
	limit := end.Add(lease + takeoverSlack)
	ticker := time.NewTicker(frame)
	defer ticker.Stop()
	for {
		now := store.MillisOf(time.Now())
		if err := s.step(ctx, now); err != nil {
			return err
		}
		if now >= end && len(s.board.owed(end)) == 0 || now >= limit {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ErrInterrupted
		}
	}
}

// registered waits until a replica has made the jobs known, and returns since when
// their ticks are owed.
func (s *show) registered(ctx context.Context) (store.Millis, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		known, err := s.store.Survey(ctx, namespace, []string{longJob})
		if err == nil && len(known.Jobs) == 1 && len(known.Jobs[0].Revisions) > 0 {
			return known.Jobs[0].Current().From, nil
		}
		if _, err := s.fleet.fallen(&s.deaths); err != nil {
			return 0, err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return 0, ErrInterrupted
			}
			return 0, errors.Join(fmt.Errorf("demo: no replica got to work within %v", startTimeout), err)
		}
	}
}

// step reads what the jobs wrote, puts queue jobs, kills and draws.
func (s *show) step(ctx context.Context, now store.Millis) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := s.read(ctx); err != nil {
		return err
	}
	if now >= s.nextPut && now < s.board.end {
		if err := s.put(ctx, now); err != nil {
			return err
		}
	}
	restarted, err := s.fleet.fallen(&s.deaths)
	for _, r := range restarted {
		s.screen.event(now, "replica %d (pid %d) ended by itself: %v; a new process takes its place", r.number, r.pid, cause(r.err))
	}
	if err != nil {
		return err
	}
	if err := s.kill(now); err != nil {
		return err
	}
	return s.screen.draw(s, now)
}

func (s *show) read(ctx context.Context) error {
	starts, err := readEntries(ctx, s.db, startsTable, s.lastStart)
	if err != nil {
		return err
	}
	for _, e := range starts {
		s.lastStart = e.ID
		if t := s.board.addStart(e); t != nil {
			s.screen.event(e.AtMs, "%s taken over by replica %d, %.1fs after replica %d was killed", t.run, t.by.Replica, t.after.Seconds(), t.from)
		}
	}
	effects, err := readEntries(ctx, s.db, effectsTable, s.lastEffect)
	if err != nil {
		return err
	}
	for _, e := range effects {
		s.lastEffect = e.ID
		s.board.addEffect(e)
	}
	s.running, err = s.store.List(ctx, store.Filter{Namespace: namespace, States: []store.State{store.StateRunning}, Limit: 100})
	return err
}

// put enqueues a queue job.
func (s *show) put(ctx context.Context, now store.Millis) error {
	k := tickKey{job: queueKind, name: fmt.Sprintf("mail-%04d", len(s.board.put)+1)}
	_, err := s.store.Enqueue(ctx, namespace, []store.NewExecution{{
		Key: store.Key{Class: store.ClassKey, Job: k.job, Name: k.name}, MaxAttempts: 100, CreatedBy: "demo",
	}})
	if err != nil {
		return err
	}
	s.board.put = append(s.board.put, k)
	s.nextPut = max(s.nextPut.Add(enqueueEvery), now)
	return nil
}

func (s *show) kill(now store.Millis) error {
	victim := s.killer.choose(now, s)
	if victim == nil {
		return nil
	}
	k := kill{replica: victim.number, pid: victim.pid}
	for _, e := range s.running {
		if ownerPid(e) == victim.pid {
			k.during = append(k.during, tickKey{job: e.Key.Job, tick: e.Key.Tick, name: e.Key.Name})
		}
	}
	s.fleet.kill(victim)
	k.at = store.MillisOf(time.Now())
	s.board.kills = append(s.board.kills, k)
	what := []string{fmt.Sprintf("killed replica %d (pid %d)", k.replica, k.pid)}
	for _, run := range k.during {
		what = append(what, "during "+run.String())
	}
	s.screen.event(k.at, "%s", strings.Join(what, ", "))
	return s.fleet.start(victim.number)
}

// verdict counts from the tables as they are in the end, not from what was
// followed on the way.
func (s *show) verdict(ctx context.Context) (tally, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	fresh, err := newBoard(s.board.from, s.board.end)
	if err != nil {
		return tally{}, err
	}
	fresh.put, fresh.kills = s.board.put, s.board.kills
	s.board, s.lastStart, s.lastEffect = fresh, 0, 0
	starts, err := readEntries(ctx, s.db, startsTable, 0)
	if err != nil {
		return tally{}, err
	}
	for _, e := range starts {
		fresh.addStart(e)
	}
	effects, err := readEntries(ctx, s.db, effectsTable, 0)
	if err != nil {
		return tally{}, err
	}
	for _, e := range effects {
		fresh.addEffect(e)
	}
	open, err := s.store.List(ctx, store.Filter{
		Namespace: namespace, States: []store.State{store.StatePending, store.StateRunning}, Limit: 10_000,
	})
	if err != nil {
		return tally{}, err
	}
	t := fresh.count(open)
	t.Replicas, t.Seconds = s.o.Replicas, s.o.For.Seconds()
	skipped, err := s.store.List(ctx, store.Filter{
		Namespace: namespace, States: []store.State{store.StateSkipped}, Classes: []store.Class{store.ClassCron}, Limit: 10_000,
	})
	if err != nil {
		return tally{}, err
	}
	var ranges []store.TickRange
	for _, j := range cronJobs {
		more, err := s.store.Ranges(ctx, namespace, j.name, fresh.from, fresh.end)
		if err != nil {
			return tally{}, err
		}
		ranges = append(ranges, more...)
	}
	t.Skipped = skips(skipped, ranges, fresh.from, fresh.end)
	return t, nil
}

// explain adds where to look to an error that ended the demo.
func (s *show) explain(ctx context.Context, err error, dir string, kept bool) error {
	switch {
	case ctx.Err() != nil:
		return ErrInterrupted
	case kept:
		return fmt.Errorf("%w; database and logs are kept in %s", err, dir)
	}
	return err
}
