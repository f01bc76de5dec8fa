package schedulerfx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.uber.org/fx"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

func someLogger(l *slog.Logger) loggerPart { return loggerPart{l} }
func defaultLogger() loggerPart            { return loggerPart{slog.Default()} }

type loggerPart struct{ *slog.Logger }

type params struct {
	fx.In

	Config     Config
	Settings   settings
	Store      store.Store
	Locker     lockerPart
	Elector    electorPart
	Shares     sharesPart
	Logger     loggerPart
	Middleware []scheduler.Middleware
	Listeners  []scheduler.Listener
	Jobs       []scheduler.Job `group:"solotick.jobs"`
}

func newScheduler(p params) (*scheduler.Scheduler, error) {
	s, err := scheduler.New(p.Config.Scheduler, scheduler.Deps{
		Store:      p.Store,
		Locker:     p.Locker.Locker,
		Elector:    p.Elector.Elector,
		Shares:     p.Shares.Shares,
		Logger:     p.Logger.Logger,
		Middleware: slices.Concat(p.Settings.middleware, p.Middleware),
		Listeners:  slices.Concat(p.Settings.listeners, p.Listeners),
	})
	if err != nil {
		return nil, err
	}
	// fx hands out groups in random order; errors should not be.
	slices.SortFunc(p.Jobs, func(a, b scheduler.Job) int { return cmp.Compare(a.Name(), b.Name()) })
	if err := s.Add(p.Jobs...); err != nil {
		return nil, err
	}
	return s, nil
}

type runParams struct {
	fx.In

	Lifecycle  fx.Lifecycle
	Shutdowner fx.Shutdowner
	Settings   settings
	Store      store.Store
	Logger     loggerPart
	Scheduler  *scheduler.Scheduler
}

// run ties the scheduler to the application's start and stop.
func run(p runParams) error {
	m, ok := p.Store.(migrator)
	if p.Settings.migrate && !ok {
		return fmt.Errorf("schedulerfx: WithMigration: %T has no method Migrate(context.Context) error", p.Store)
	}
	if !p.Settings.migrate {
		m = nil
	}
	r := &runner{runParams: p, migrator: m, ended: make(chan struct{})}
	p.Lifecycle.Append(fx.StartStopHook(r.start, r.stop))
	return nil
}

type runner struct {
	runParams
	migrator migrator
	cancel   context.CancelFunc
	ended    chan struct{}
}

// start returns at once: the context of a start hook ends when all hooks have run.
func (r *runner) start(ctx context.Context) error {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if r.migrator == nil {
		if err := r.Scheduler.Start(ctx); err != nil {
			r.cancel()
			close(r.ended)
			return err
		}
	}
	go func() {
		defer close(r.ended)
		if err := r.watch(ctx); err != nil && ctx.Err() == nil {
			r.Logger.ErrorContext(ctx, "scheduler ended by itself; the application is shut down", "error", err)
			if err := r.Shutdowner.Shutdown(fx.ExitCode(1)); err != nil {
				r.Logger.ErrorContext(ctx, "application cannot be shut down", "error", err)
			}
		}
	}()
	return nil
}

// errStopped ends what waits when the application stops.
var errStopped = errors.New("schedulerfx: stopped")

// watch returns an error if the scheduler cannot go on, and nil when ctx ends.
func (r *runner) watch(ctx context.Context) error {
	if r.migrator != nil {
		if err := r.migrate(ctx); err != nil {
			return err
		}
		if err := r.Scheduler.Start(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case <-r.Scheduler.Done():
		return r.Scheduler.Err()
	}
}

// migrateTimeout bounds one try, in which other processes may migrate first.
const migrateTimeout = time.Minute

// migrate tries for as long as the store cannot answer.
func (r *runner) migrate(ctx context.Context) error {
	for n := 0; ; n++ {
		once, cancel := context.WithTimeout(ctx, migrateTimeout)
		err := r.migrator.Migrate(once)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errStopped
		case !errors.Is(err, store.ErrUnavailable):
			return err
		}
		r.Logger.WarnContext(ctx, "store's tables cannot be brought up to date yet", "error", err)
		if backoff.Wait(ctx, backoff.Policy{Base: 200 * time.Millisecond, Max: 5 * time.Second}.Delay(n)) != nil {
			return errStopped
		}
	}
}

func (r *runner) stop(ctx context.Context) error {
	r.cancel()
	<-r.ended
	return r.Scheduler.Stop(ctx)
}
