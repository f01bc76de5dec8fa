package schedulerfx

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/fx"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/scheduler"
)

// Config is what an operator wrote, as far as the wiring needs it.
type Config struct {
	Scheduler scheduler.Config
	// Locks is needed by LockPlugins only.
	Locks Locks
}

// Locks chooses among lock plugins.
type Locks struct {
	// Driver is the name of the plugin.
	Driver string
	// Config of the leases.
	Config locks.Config
	// Decode gives the plugin its own part of the file, see locks.Plugin. Default:
	// there is none.
	Decode func(into any) error
}

// Option adjusts what Options composes.
type Option func(*settings)

type settings struct {
	elector, shares, noLocker, logger, migrate bool

	middleware     []scheduler.Middleware
	listeners      []scheduler.Listener
	middlewareFrom any
	listenersFrom  any
	switchCentre   any
}

// WithElector takes a *leader.Elector from the graph, for gate leader. The scheduler
// runs it.
func WithElector() Option { return func(s *settings) { s.elector = true } }

// WithShares takes a *leader.Shares from the graph, for gate leader that is shared out.
// The scheduler runs it.
func WithShares() Option { return func(s *settings) { s.shares = true } }

// WithoutLocker takes no *locks.Locker from the graph: no job has gate lock.
func WithoutLocker() Option { return func(s *settings) { s.noLocker = true } }

// WithLogger takes a *slog.Logger from the graph. Default slog.Default().
func WithLogger() Option { return func(s *settings) { s.logger = true } }

// WithMigration brings the store's tables up to date before the scheduler starts,
// in the background and for as long as it takes. The store must have a method
// Migrate(context.Context) error, as a *gormstore.Store has.
func WithMigration() Option { return func(s *settings) { s.migrate = true } }

// Middleware wraps every handler, the first one outermost.
func Middleware(ms ...scheduler.Middleware) Option {
	return func(s *settings) { s.middleware = append(s.middleware, ms...) }
}

// MiddlewareFrom adds, inside of what Middleware gives, what a constructor returns:
// func(deps...) []scheduler.Middleware, or the same and an error.
func MiddlewareFrom(ctor any) Option { return func(s *settings) { s.middlewareFrom = ctor } }

// Listeners are told every event, in order.
func Listeners(ls ...scheduler.Listener) Option {
	return func(s *settings) { s.listeners = append(s.listeners, ls...) }
}

// ListenersFrom adds, after those of Listeners, what a constructor returns:
// func(deps...) []scheduler.Listener, or the same and an error.
func ListenersFrom(ctor any) Option { return func(s *settings) { s.listenersFrom = ctor } }

// stopMargin is what a drain may take beyond its timeout: the last grace of runs and
// the release of what they held.
const stopMargin = 5 * time.Second

// Options is Module with its configuration, adjusted, and the stop timeout it needs.
// It stands at the top of fx.New, since fx takes no timeouts inside a module.
func Options(cfg Config, opts ...Option) fx.Option {
	var s settings
	for _, o := range opts {
		o(&s)
	}
	drain := cmp.Or(cfg.Scheduler.DrainTimeout, 10*time.Second)
	return fx.Options(fx.Supply(cfg), module(s), fx.StopTimeout(drain+stopMargin))
}

// Module makes a *scheduler.Scheduler from a Config, a store.Store, a *locks.Locker
// and what Jobs gave, and runs it from start to stop. Use Options where possible:
// with Module alone fx's stop timeout of 15 s applies.
var Module = module(settings{})

func module(s settings) fx.Option {
	parts := []fx.Option{
		fx.Supply(fx.Private, s),
		fx.Provide(newScheduler),
		fx.Invoke(run),
	}
	private := func(ctor any) { parts = append(parts, fx.Provide(fx.Private, ctor)) }
	if s.noLocker {
		private(noLocker)
	} else {
		private(someLocker)
	}
	if s.elector {
		private(someElector)
	} else {
		private(noElector)
	}
	if s.shares {
		private(someShares)
	} else {
		private(noShares)
	}
	if s.logger {
		private(someLogger)
	} else {
		private(defaultLogger)
	}
	parts = append(parts,
		oneOf(s.middlewareFrom, noMiddleware, "MiddlewareFrom", middlewareType),
		oneOf(s.listenersFrom, noListeners, "ListenersFrom", listenersType))
	if s.switchCentre != nil {
		parts = append(parts, switchCentre(s.switchCentre))
	}
	return fx.Module("solotick", parts...)
}

// What is there or not, as types of our own, so that no dependency is optional.
type (
	lockerPart  struct{ *locks.Locker }
	electorPart struct{ *leader.Elector }
	sharesPart  struct{ *leader.Shares }
)

func someLocker(l *locks.Locker) lockerPart     { return lockerPart{l} }
func noLocker() lockerPart                      { return lockerPart{} }
func someElector(e *leader.Elector) electorPart { return electorPart{e} }
func noElector() electorPart                    { return electorPart{} }
func someShares(s *leader.Shares) sharesPart    { return sharesPart{s} }
func noShares() sharesPart                      { return sharesPart{} }
func noMiddleware() []scheduler.Middleware      { return nil }
func noListeners() []scheduler.Listener         { return nil }

// migrator is a store that can make its tables.
type migrator interface {
	Migrate(ctx context.Context) error
}
