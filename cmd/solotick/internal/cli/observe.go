package cli

import (
	"context"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/admin"
	"github.com/solotick/solotick/scheduler/metrics"
)

// stopAdmin is how long requests in progress may take at the end of a worker.
const stopAdmin = 2 * time.Second

// observe serves health, metrics and the switch of the worker, where the file says so,
// from before its servers are waited for until stop is called.
func (w *worker) observe(ctx context.Context) (stop func(), err error) {
	cfg := w.site.loaded.Admin
	if !cfg.On() {
		return func() {}, nil
	}
	w.metrics, err = metrics.New(metrics.Config{Version: readVersion().Version})
	if err != nil {
		return nil, err
	}
	w.site.observer = w.metrics.Locks(w.site.loaded.Locks.Driver)
	server, err := admin.New(cfg, admin.Deps{Scheduler: w.scheduled.Load, Metrics: w.metrics.Handler(), Logger: w.log})
	if err != nil {
		return nil, usageError(err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopAdmin)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			w.log.DebugContext(ctx, "admin server did not end in time", "error", err)
		}
	}, nil
}

// listeners are told what happens in the scheduler.
func (w *worker) listeners() []scheduler.Listener {
	if w.metrics == nil {
		return nil
	}
	return []scheduler.Listener{w.metrics}
}

// show makes the scheduler the one that is served.
func (w *worker) show(s *scheduler.Scheduler) {
	w.scheduled.Store(s)
	if w.metrics != nil {
		w.metrics.Watch(s)
	}
}
