package schedulerfx_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/memlock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/schedulerfx"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
	"github.com/solotick/solotick/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nothing(context.Context, *scheduler.Run) error { return nil }

func newStore() *memstore.Store { return memstore.New() }

func newLocker() (*locks.Locker, error) { return memlock.New(nil, nil) }

func newElector(l *locks.Locker) (*leader.Elector, error) {
	return leader.FromLocks(l, "leader:test", leader.Config{})
}

func newShares(l *locks.Locker) (*leader.Shares, error) {
	return leader.NewShares(l, "leader:test", leader.SharesConfig{Partitions: 4})
}

func newReport() scheduler.Job { return scheduler.Cron("report", "0 2 * * *", nothing) }

func newPing(*memstore.Store) (scheduler.Job, error) {
	return scheduler.Cron("ping", "@every 1h", nothing, scheduler.Describe("are you there")), nil
}

func newPair() []scheduler.Job {
	return []scheduler.Job{scheduler.QueueFunc("mail", nothing), scheduler.QueueFunc("bill", nothing)}
}

func config() schedulerfx.Config {
	return schedulerfx.Config{Scheduler: scheduler.Config{Namespace: "test", DrainTimeout: time.Second}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// app composes what most tests need.
func app(opts ...fx.Option) fx.Option {
	return fx.Options(append(opts, fx.NopLogger, fx.Provide(quiet))...)
}

func TestSameSchedulerWithAndWithoutFx(t *testing.T) {
	locker, err := newLocker()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := locker.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	elector, err := newElector(locker)
	if err != nil {
		t.Fatal(err)
	}
	st := newStore()
	ping, err := newPing(st)
	if err != nil {
		t.Fatal(err)
	}
	byHand, err := scheduler.New(config().Scheduler, scheduler.Deps{Store: st, Locker: locker, Elector: elector})
	if err != nil {
		t.Fatal(err)
	}
	lead := scheduler.Cron("lead", "@daily", nothing, scheduler.WithGate(scheduler.GateLeader))
	if err := byHand.Add(append(newPair(), newReport(), ping, lead)...); err != nil {
		t.Fatal(err)
	}
	for range 20 { // fx hands out groups in random order
		var wired *scheduler.Scheduler
		a := fxtest.New(t, app(
			schedulerfx.Options(config(), schedulerfx.WithElector(), schedulerfx.WithLogger()),
			schedulerfx.Store(newStore), schedulerfx.Locker(newLocker), schedulerfx.Elector(newElector),
			schedulerfx.Jobs(newReport, newPing, lead, newPair),
			fx.Populate(&wired),
		))
		if got, want := wired.Describe(), byHand.Describe(); !reflect.DeepEqual(got, want) {
			t.Fatalf("\n got %+v\nwant %+v", got, want)
		}
		a.RequireStart().RequireStop()
	}
}

func TestSharesAreWired(t *testing.T) {
	a := fxtest.New(t, app(
		schedulerfx.Options(config(), schedulerfx.WithShares()),
		schedulerfx.Store(newStore), schedulerfx.Locker(newLocker), schedulerfx.Shares(newShares),
		schedulerfx.Jobs(scheduler.Cron("lead", "@daily", nothing, scheduler.WithGate(scheduler.GateLeader)))))
	a.RequireStart().RequireStop()
	if err := fx.ValidateApp(app(schedulerfx.Shares(newElector))); err == nil || !strings.Contains(err.Error(), "make it return *leader.Shares") {
		t.Errorf("a wrong constructor: %v", err)
	}
}

// everything is a composition with all parts.
func everything() fx.Option {
	return app(
		schedulerfx.Options(config(),
			schedulerfx.WithElector(), schedulerfx.WithLogger(), schedulerfx.Middleware(), schedulerfx.Listeners(),
			schedulerfx.MiddlewareFrom(func(*slog.Logger) []scheduler.Middleware { return nil }),
			schedulerfx.ListenersFrom(func() ([]scheduler.Listener, error) { return nil, nil })),
		schedulerfx.Store(newStore), schedulerfx.Locker(newLocker), schedulerfx.Elector(newElector),
		schedulerfx.Jobs(newReport, newPing, newPair, []scheduler.Job{scheduler.Cron("x", "@daily", nothing)}))
}

func TestCompositionsAreComplete(t *testing.T) {
	plugin := config()
	plugin.Locks.Driver = "memory"
	for name, opts := range map[string]fx.Option{
		"least":      app(schedulerfx.Options(config(), schedulerfx.WithoutLocker()), schedulerfx.Store(newStore), schedulerfx.Jobs()),
		"locker":     app(schedulerfx.Options(config()), schedulerfx.Store(newStore), schedulerfx.Locker(newLocker), schedulerfx.Jobs(newReport)),
		"plugins":    app(schedulerfx.Options(plugin), schedulerfx.Store(newStore), schedulerfx.LockPlugins(memlock.Plugin(nil)), schedulerfx.Jobs(newReport)),
		"module":     app(schedulerfx.Module, fx.Supply(config()), schedulerfx.Store(newStore), schedulerfx.Locker(newLocker)),
		"everything": everything(),
	} {
		t.Run(name, func(t *testing.T) {
			if err := fx.ValidateApp(opts); err != nil {
				t.Fatal(err)
			}
			fxtest.New(t, opts).RequireStart().RequireStop()
		})
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		opts fx.Option
		want string
	}{
		"store":   {app(schedulerfx.Options(config(), schedulerfx.WithoutLocker())), "missing type: store.Store"},
		"locker":  {app(schedulerfx.Options(config()), schedulerfx.Store(newStore)), "missing type: *locks.Locker"},
		"elector": {app(schedulerfx.Options(config(), schedulerfx.WithElector()), schedulerfx.Store(newStore), schedulerfx.Locker(newLocker)), "missing type: *leader.Elector"},
		"shares":  {app(schedulerfx.Options(config(), schedulerfx.WithShares()), schedulerfx.Store(newStore), schedulerfx.Locker(newLocker)), "missing type: *leader.Shares"},
		"a job's": {app(schedulerfx.Options(config(), schedulerfx.WithoutLocker()), schedulerfx.Store(newStore), schedulerfx.Jobs(func(*gorm.DB) scheduler.Job { return newReport() })), "missing type: *gorm.DB"},
	} {
		if err := fx.ValidateApp(c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func wrongType() string                             { return "" }
func errorOnly() error                              { return nil }
func pointer() *scheduler.Job                       { return nil }
func threeResults() (scheduler.Job, int, error)     { return scheduler.Job{}, 0, nil }
func handler(context.Context, *scheduler.Run) error { return nil }

func TestWrongConstructorsAreNamed(t *testing.T) {
	base := func(opts ...fx.Option) fx.Option {
		return app(append(opts, schedulerfx.Options(config(), schedulerfx.WithoutLocker()), schedulerfx.Store(newStore))...)
	}
	for _, c := range []struct {
		opt  fx.Option
		want string
	}{
		{schedulerfx.Jobs(newReport, wrongType), "Jobs: argument 2: github.com/solotick/solotick/scheduler/schedulerfx_test.wrongType ("},
		{schedulerfx.Jobs(wrongType), "returns string: make it return scheduler.Job or []scheduler.Job"},
		{schedulerfx.Jobs(errorOnly), "schedulerfx_test.errorOnly ("},
		{schedulerfx.Jobs(pointer), "schedulerfx_test.pointer ("},
		{schedulerfx.Jobs(threeResults), "a constructor returns one value, or one and an error"},
		{schedulerfx.Jobs(handler), "schedulerfx_test.handler ("},
		{schedulerfx.Jobs(nil), "a <nil> is no constructor"},
		{schedulerfx.Jobs("x"), "a string is no constructor"},
		{schedulerfx.Store(wrongType), "Store: github.com/solotick/solotick/scheduler/schedulerfx_test.wrongType ("},
		{schedulerfx.Locker(newStore), "newStore ("},
		{schedulerfx.Locker(newStore), "returns *memstore.Store: make it return *locks.Locker"},
		{schedulerfx.Elector(newLocker), "make it return *leader.Elector"},
		{schedulerfx.LockPlugins(newLocker), "LockPlugins: argument 1: "},
		{schedulerfx.Options(config(), schedulerfx.MiddlewareFrom(wrongType)), "MiddlewareFrom: "},
		{schedulerfx.Options(config(), schedulerfx.ListenersFrom(wrongType)), "ListenersFrom: "},
	} {
		err := fx.New(base(c.opt)).Err()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestErrorsOfTheSchedulerAreTheApplications(t *testing.T) {
	for want, opts := range map[string]fx.Option{
		"scheduler: namespace":       app(schedulerfx.Options(schedulerfx.Config{}, schedulerfx.WithoutLocker()), schedulerfx.Store(newStore)),
		`two jobs are called "x"`:    app(schedulerfx.Options(config(), schedulerfx.WithoutLocker()), schedulerfx.Store(newStore), schedulerfx.Jobs(scheduler.QueueFunc("x", nothing), scheduler.QueueFunc("x", nothing))),
		"gate lock needs":            app(schedulerfx.Options(config(), schedulerfx.WithoutLocker()), schedulerfx.Store(newStore), schedulerfx.Jobs(newReport)),
		`driver "redsi"`:             app(schedulerfx.Options(schedulerfx.Config{Scheduler: config().Scheduler, Locks: schedulerfx.Locks{Driver: "redsi"}}), schedulerfx.Store(newStore), schedulerfx.LockPlugins(memlock.Plugin(nil))),
		"WithMigration: *memstore.S": app(schedulerfx.Options(config(), schedulerfx.WithoutLocker(), schedulerfx.WithMigration()), schedulerfx.Store(newStore)),
	} {
		if err := fx.New(opts).Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestLockPluginGetsItsPartAndIsClosed follows a driver from its section to its end.
func TestLockPluginGetsItsPartAndIsClosed(t *testing.T) {
	d := &closing{Driver: memlock.NewDriver(nil)}
	part := ""
	cfg := config()
	cfg.Locks = schedulerfx.Locks{Driver: "mine", Config: locks.Config{TTL: 5 * time.Second}, Decode: func(into any) error {
		*into.(*string) = "its own part"
		return nil
	}}
	newPlugin := func() (locks.Plugin, error) {
		return locks.Plugin{Name: "mine", Open: func(_ context.Context, decode func(any) error) (driver.Driver, error) {
			return d, decode(&part)
		}}, nil
	}
	a := fxtest.New(t, app(schedulerfx.Options(cfg, schedulerfx.WithLogger()), schedulerfx.Store(newStore),
		schedulerfx.LockPlugins(memlock.Plugin(nil), newPlugin), schedulerfx.Jobs(newReport)))
	a.RequireStart().RequireStop()
	if part != "its own part" || d.closed != 1 {
		t.Errorf("part %q, closed %d times", part, d.closed)
	}
}

type closing struct {
	driver.Driver
	closed int
}

func (c *closing) Close() error { c.closed++; return nil }

func TestMiddlewareAndListenersKeepTheirOrder(t *testing.T) {
	var order []string
	mark := func(name string) scheduler.Middleware {
		return func(next scheduler.Handler) scheduler.Handler {
			return func(ctx context.Context, run *scheduler.Run) error {
				order = append(order, name)
				return next(ctx, run)
			}
		}
	}
	ran := make(chan struct{})
	listen := func(name string, finished func()) scheduler.Listener {
		return scheduler.ListenerFunc(func(e scheduler.Event) {
			if _, ok := e.(scheduler.RunFinished); ok {
				order = append(order, name)
				finished()
			}
		})
	}
	none := func() {}
	st := memstore.New()
	a := fxtest.New(t, app(
		schedulerfx.Options(config(), schedulerfx.WithoutLocker(), schedulerfx.WithLogger(),
			schedulerfx.Middleware(mark("m1"), mark("m2")), schedulerfx.MiddlewareFrom(func() []scheduler.Middleware { return []scheduler.Middleware{mark("m3")} }),
			schedulerfx.Listeners(listen("l1", none), listen("l2", none)),
			schedulerfx.ListenersFrom(func() []scheduler.Listener { return []scheduler.Listener{listen("l3", func() { close(ran) })} })),
		schedulerfx.Store(func() store.Store { return st }),
		schedulerfx.Jobs(scheduler.QueueFunc("q", nothing)),
	)).RequireStart()
	enqueue(t, st)
	<-ran
	a.RequireStop()
	if got := strings.Join(order, " "); got != "m1 m2 m3 l1 l2 l3" {
		t.Error(got)
	}
}

func enqueue(t *testing.T, st store.Store) {
	t.Helper()
	if _, err := st.Enqueue(t.Context(), "test", []store.NewExecution{{Key: store.Key{Class: store.ClassKey, Job: "q", Name: t.Name()}, MaxAttempts: 1}}); err != nil {
		t.Fatal(err)
	}
}

// TestStopDrainsInsideFxsTimeout has a handler that ends only with its context.
func TestStopDrainsInsideFxsTimeout(t *testing.T) {
	st := memstore.New()
	started := make(chan struct{})
	ended := make(chan error, 1)
	a := fxtest.New(t, app(
		schedulerfx.Options(config(), schedulerfx.WithoutLocker(), schedulerfx.WithLogger()),
		schedulerfx.Store(func() *memstore.Store { return st }),
		schedulerfx.Jobs(scheduler.QueueFunc("q", func(ctx context.Context, _ *scheduler.Run) error {
			close(started)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		})),
	))
	if got, want := a.StopTimeout(), 6*time.Second; got != want {
		t.Errorf("stop timeout %v, want %v: drain timeout and 5s", got, want)
	}
	a.RequireStart()
	enqueue(t, st)
	<-started
	began := time.Now()
	a.RequireStop()
	if took := time.Since(began); took < time.Second || took > a.StopTimeout() {
		t.Errorf("stop took %v", took)
	}
	if cause := <-ended; !errors.Is(cause, scheduler.ErrDraining) {
		t.Errorf("cause %v", cause)
	}
}

// TestStartDoesNotWaitForTheStore: a store that is away delays runs only.
func TestStartDoesNotWaitForTheStore(t *testing.T) {
	a := fxtest.New(t, app(
		schedulerfx.Options(config(), schedulerfx.WithoutLocker(), schedulerfx.WithLogger(), schedulerfx.WithMigration()),
		schedulerfx.Store(func() *away { return &away{Store: memstore.New(), err: store.ErrUnavailable} }),
		schedulerfx.Jobs(scheduler.QueueFunc("q", nothing)),
	))
	began := time.Now()
	a.RequireStart()
	if took := time.Since(began); took > 10*time.Second { // the hooks have 15
		t.Errorf("start took %v", took)
	}
	a.RequireStop()
}

type away struct {
	store.Store
	err error
}

func (a *away) Migrate(context.Context) error { return a.err }
func (a *away) Register(context.Context, string, []store.JobSpec) (store.Registered, error) {
	return store.Registered{}, a.err
}

// TestDeathOfTheSchedulerEndsTheApplication: what cannot mend itself is for whoever
// restarts the process.
func TestDeathOfTheSchedulerEndsTheApplication(t *testing.T) {
	for name, opt := range map[string][]schedulerfx.Option{
		"at work":   {schedulerfx.WithoutLocker(), schedulerfx.WithLogger()},
		"migrating": {schedulerfx.WithoutLocker(), schedulerfx.WithLogger(), schedulerfx.WithMigration()},
	} {
		t.Run(name, func(t *testing.T) {
			a := fxtest.New(t, app(
				schedulerfx.Options(config(), opt...),
				schedulerfx.Store(func() *away { return &away{Store: memstore.New(), err: store.ErrSchema} }),
				schedulerfx.Jobs(scheduler.QueueFunc("q", nothing)),
			)).RequireStart()
			if sig := <-a.Wait(); sig.ExitCode != 1 {
				t.Errorf("exit code %d", sig.ExitCode)
			}
			a.RequireStop()
		})
	}
}

// TestAsInTheReadme runs the composition that the documentation shows, on SQLite.
func TestAsInTheReadme(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.db")
	newDB := func(lc fx.Lifecycle) (*gorm.DB, error) {
		db, err := sqlitedb.Open(file, nil)
		if err == nil {
			lc.Append(fx.StopHook(func() error { return sqlitedb.Close(db) }))
		}
		return db, err
	}
	ran := make(chan error, 1)
	newJob := func(guard *idempotent.Guard) scheduler.Job {
		return scheduler.QueueFunc("q", func(ctx context.Context, run *scheduler.Run) error {
			err := guard.Do(ctx, run, func(tx *gorm.DB) error { return tx.Exec("CREATE TABLE effect (x INT)").Error })
			ran <- err
			return err
		})
	}
	var st *gormstore.Store
	opts := app(
		schedulerfx.Options(config(), schedulerfx.WithLogger(), schedulerfx.WithMigration()),
		fx.Provide(newDB, idempotent.New),
		schedulerfx.Store(gormstore.New), schedulerfx.Locker(newLocker), schedulerfx.Jobs(newReport, newJob),
	)
	if err := fx.ValidateApp(opts); err != nil {
		t.Fatal(err)
	}
	a := fxtest.New(t, opts, fx.Populate(&st)).RequireStart()
	if err := st.Migrate(t.Context()); err != nil { // to enqueue before the scheduler has done it
		t.Fatal(err)
	}
	enqueue(t, st)
	if err := <-ran; err != nil {
		t.Error(err)
	}
	a.RequireStop()
}

// The switch follows the centre from start to stop, and a wrong constructor is named.
func TestSwitchCentre(t *testing.T) {
	centre := switchwatchtest.NewMemory()
	value, err := scheduler.SwitchSetting{Mode: store.ModeStoreOnly, Reason: "r", By: "ann"}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := centre.Save(t.Context(), value); err != nil {
		t.Fatal(err)
	}
	thrown := make(chan scheduler.SwitchThrown, 10)
	listen := schedulerfx.Listeners(scheduler.ListenerFunc(func(e scheduler.Event) {
		if e, ok := e.(scheduler.SwitchThrown); ok {
			thrown <- e
		}
	}))
	compose := func(ctor any) fx.Option {
		return app(schedulerfx.Options(config(), schedulerfx.WithoutLocker(), schedulerfx.WithLogger(), listen, schedulerfx.SwitchCentre(ctor)),
			schedulerfx.Store(newStore), schedulerfx.Jobs(scheduler.QueueFunc("q", nothing)))
	}
	a := fxtest.New(t, compose(func() *switchwatchtest.Memory { return centre })).RequireStart()
	if e := <-thrown; !e.Fleet || e.To == nil || e.To.Mode != store.ModeStoreOnly {
		t.Errorf("%+v", e)
	}
	if err := centre.Save(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if e := <-thrown; e.To != nil {
		t.Errorf("%+v", e)
	}
	a.RequireStop()
	for _, wrong := range []any{centre, func() string { return "" }} {
		if err := fx.New(compose(wrong), fx.NopLogger).Err(); err == nil || !strings.Contains(err.Error(), "SwitchCentre") {
			t.Errorf("%T: %v", wrong, err)
		}
	}
}
