package schedulerfx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"time"

	"go.uber.org/fx"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

var (
	errorType      = reflect.TypeFor[error]()
	storeType      = reflect.TypeFor[store.Store]()
	jobType        = reflect.TypeFor[scheduler.Job]()
	jobsType       = reflect.TypeFor[[]scheduler.Job]()
	pluginType     = reflect.TypeFor[locks.Plugin]()
	pluginsType    = reflect.TypeFor[[]locks.Plugin]()
	lockerType     = reflect.TypeFor[*locks.Locker]()
	electorType    = reflect.TypeFor[*leader.Elector]()
	sharesType     = reflect.TypeFor[*leader.Shares]()
	middlewareType = reflect.TypeFor[[]scheduler.Middleware]()
	listenersType  = reflect.TypeFor[[]scheduler.Listener]()
)

// The groups are keyed by name, so that their order does not matter.
const (
	jobsGroup    = `group:"solotick.jobs"`
	pluginsGroup = `group:"solotick.lock_plugins"`
)

// Jobs gives jobs to the scheduler. Each is a scheduler.Job, a []scheduler.Job, or a
// constructor: func(deps...) that returns one of these, and perhaps an error. All
// constructors are called; what is anything else is an error that names it.
func Jobs(jobs ...any) fx.Option { return group("Jobs", jobsGroup, jobType, jobsType, jobs) }

// LockPlugins provides the *locks.Locker: that of the plugin which Config.Locks
// names, closed when the application stops. Each argument is a locks.Plugin, a slice
// of them, or a constructor of one of these.
func LockPlugins(plugins ...any) fx.Option {
	return fx.Options(
		group("LockPlugins", pluginsGroup, pluginType, pluginsType, plugins),
		fx.Provide(openLocker))
}

// Store provides the store.Store: ctor is func(deps...) that returns one, as it is or
// as a type of its own such as *gormstore.Store (which is provided as well), and
// perhaps an error.
func Store(ctor any) fx.Option {
	t, err := result(ctor)
	switch {
	case err != nil:
		return fx.Error(fmt.Errorf("schedulerfx: Store: %w", err))
	case t == storeType:
		return fx.Provide(ctor)
	case !t.Implements(storeType):
		return fx.Error(fmt.Errorf("schedulerfx: Store: %s returns %v, which is no store.Store", name(ctor), t))
	}
	return fx.Provide(fx.Annotate(ctor, fx.As(fx.Self()), fx.As(new(store.Store))))
}

// Locker provides the *locks.Locker and closes it when the application stops, after
// the scheduler. ctor is func(deps...) *locks.Locker, or the same and an error.
func Locker(ctor any) fx.Option {
	if err := returns(ctor, lockerType); err != nil {
		return fx.Error(fmt.Errorf("schedulerfx: Locker: %w", err))
	}
	return fx.Provide(fx.Annotate(ctor, fx.OnStop(closeLocker)))
}

// Elector provides the *leader.Elector for WithElector. ctor is
// func(deps...) *leader.Elector, or the same and an error.
func Elector(ctor any) fx.Option {
	if err := returns(ctor, electorType); err != nil {
		return fx.Error(fmt.Errorf("schedulerfx: Elector: %w", err))
	}
	return fx.Provide(ctor)
}

// Shares provides the *leader.Shares for WithShares. ctor is
// func(deps...) *leader.Shares, or the same and an error.
func Shares(ctor any) fx.Option {
	if err := returns(ctor, sharesType); err != nil {
		return fx.Error(fmt.Errorf("schedulerfx: Shares: %w", err))
	}
	return fx.Provide(ctor)
}

func closeLocker(ctx context.Context, l *locks.Locker) error { return l.Close(ctx) }

type pluginParams struct {
	fx.In

	Lifecycle fx.Lifecycle
	Config    Config
	Plugins   []locks.Plugin `group:"solotick.lock_plugins"`
}

// openTimeout bounds the making of a driver, which need not reach its backend.
const openTimeout = 10 * time.Second

func openLocker(p pluginParams) (*locks.Locker, error) {
	registry, err := locks.NewRegistry(p.Plugins...)
	if err != nil {
		return nil, err
	}
	//nolint:forbidigo // fx gives constructors no context
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	d, err := registry.Open(ctx, p.Config.Locks.Driver, p.Config.Locks.Decode)
	if err != nil {
		return nil, err
	}
	closer, _ := d.(io.Closer)
	l, err := locks.New(d, p.Config.Locks.Config)
	if err != nil {
		if closer != nil {
			err = errors.Join(err, closer.Close())
		}
		return nil, err
	}
	p.Lifecycle.Append(fx.StopHook(l.Close))
	return l, nil
}

// group puts values, or what constructors return, into a value group.
func group(helper, tag string, one, many reflect.Type, values []any) fx.Option {
	opts := make([]fx.Option, 0, len(values))
	for i, v := range values {
		switch reflect.TypeOf(v) {
		case one:
			opts = append(opts, fx.Supply(fx.Annotate(v, fx.ResultTags(tag))))
			continue
		case many:
			for n := range reflect.ValueOf(v).Len() {
				opts = append(opts, fx.Supply(fx.Annotate(reflect.ValueOf(v).Index(n).Interface(), fx.ResultTags(tag))))
			}
			continue
		}
		t, err := result(v)
		switch {
		case err != nil:
			err = fmt.Errorf("schedulerfx: %s: argument %d: %w", helper, i+1, err)
		case t == one:
			opts = append(opts, fx.Provide(fx.Annotate(v, fx.ResultTags(tag))))
		case t == many:
			opts = append(opts, fx.Provide(fx.Annotate(v, fx.ResultTags(strings.TrimSuffix(tag, `"`)+`,flatten"`))))
		default:
			err = fmt.Errorf("schedulerfx: %s: argument %d: %s returns %v: make it return %v or %v", helper, i+1, name(v), t, one, many)
		}
		if err != nil {
			opts = append(opts, fx.Error(err))
		}
	}
	return fx.Options(opts...)
}

// oneOf provides what ctor or, if that is nil, otherwise returns, to the module only.
func oneOf(ctor, otherwise any, helper string, want reflect.Type) fx.Option {
	if ctor == nil {
		ctor = otherwise
	}
	if err := returns(ctor, want); err != nil {
		return fx.Error(fmt.Errorf("schedulerfx: %s: %w", helper, err))
	}
	return fx.Provide(fx.Private, ctor)
}

func returns(ctor any, want reflect.Type) error {
	t, err := result(ctor)
	if err == nil && t != want {
		err = fmt.Errorf("%s returns %v: make it return %v", name(ctor), t, want)
	}
	return err
}

// result is the type that a constructor returns, beside an error.
func result(ctor any) (reflect.Type, error) {
	t := reflect.TypeOf(ctor)
	if t == nil || t.Kind() != reflect.Func {
		return nil, fmt.Errorf("a %T is no constructor: pass a function, without calling it", ctor)
	}
	if reflect.ValueOf(ctor).IsNil() {
		return nil, fmt.Errorf("a nil %v is no constructor", t)
	}
	if t.NumOut() == 1 && t.Out(0) != errorType || t.NumOut() == 2 && t.Out(1) == errorType {
		return t.Out(0), nil
	}
	return nil, fmt.Errorf("%s is a %v: a constructor returns one value, or one and an error", name(ctor), t)
}

// name says which function it is, and where it stands.
func name(ctor any) string {
	f := runtime.FuncForPC(reflect.ValueOf(ctor).Pointer())
	file, line := f.FileLine(f.Entry())
	return fmt.Sprintf("%s (%s:%d)", f.Name(), file, line)
}
