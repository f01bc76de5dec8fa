package schedulerfx

import (
	"context"
	"fmt"
	"reflect"

	"go.uber.org/fx"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
)

var centreType = reflect.TypeFor[switchwatch.Centre]()

// SwitchCentre keeps the scheduler's degradation switch in step with a configuration
// centre, from start to stop. ctor is func(deps...) that returns a switchwatch.Centre, as
// it is or as a type of its own such as *redisswitch.Centre, and perhaps an error. What
// the centre is made of belongs to whoever made it, and is closed there.
func SwitchCentre(ctor any) Option { return func(s *settings) { s.switchCentre = ctor } }

// switchCentre provides the centre, to the module only, and watches it.
func switchCentre(ctor any) fx.Option {
	t, err := result(ctor)
	switch {
	case err != nil:
		return fx.Error(fmt.Errorf("schedulerfx: SwitchCentre: %w", err))
	case !t.Implements(centreType):
		return fx.Error(fmt.Errorf("schedulerfx: SwitchCentre: %s returns %v, which is no switchwatch.Centre", name(ctor), t))
	}
	return fx.Options(fx.Provide(fx.Private, fx.Annotate(ctor, fx.As(new(switchwatch.Centre)))), fx.Invoke(watchSwitch))
}

type centreParams struct {
	fx.In

	Lifecycle fx.Lifecycle
	Logger    loggerPart
	Scheduler *scheduler.Scheduler
	Centre    switchwatch.Centre
}

// watchSwitch runs beside the scheduler. A centre that is away holds nothing up.
func watchSwitch(p centreParams) error {
	w, err := switchwatch.New(p.Centre, p.Scheduler.Switch(), &switchwatch.Options{Logger: p.Logger.Logger})
	if err != nil {
		return err
	}
	var cancel context.CancelFunc
	ended := make(chan struct{})
	p.Lifecycle.Append(fx.StartStopHook(func(ctx context.Context) {
		ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
		go func() {
			defer close(ended)
			w.Run(ctx)
		}()
	}, func() {
		cancel()
		<-ended
	}))
	return nil
}
