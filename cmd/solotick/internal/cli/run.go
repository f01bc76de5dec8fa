package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/cronspec"
	"github.com/solotick/solotick/scheduler/execjob"
	"github.com/solotick/solotick/scheduler/metrics"
	"github.com/solotick/solotick/scheduler/sqljob"
	"github.com/solotick/solotick/store/gormstore"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "run (FILE | -c FILE)",
		GroupID: groupWork,
		Short:   "Run the jobs of a file",
		Long: `Run the jobs of a file: a worker, of which there may be any number. Each tick runs
on one of them.

SIGTERM or SIGINT lets the runs in progress finish, for at most
scheduler.drain_timeout; a second one ends them at once. The file is read again
when it changes and on SIGHUP: jobs, degradation modes, limits and the log level
take effect at once, what needs a restart is reported. A file that is not good
changes nothing.

A store or lock backend on a server that cannot be reached is waited for, with a
line in the log for every try.

Exit codes: 0 stopped as asked, 1 failed, or runs had to be abandoned, 2 bad
arguments or configuration.`,
		Example: `  solotick run -c solotick.yaml`,
		Args:    cobra.MaximumNArgs(1),
	}
	file := fileFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file, err := namedFile(cmd, *file, args)
		if err != nil {
			return err
		}
		ctx := context.Background()
		content := digest(file) // before it is read: a change meanwhile is seen later
		site, err := openSite(cmd, file)
		if err != nil {
			return err
		}
		defer site.close()
		if len(site.loaded.Jobs) == 0 {
			return usagef("%s has no jobs: there is nothing to run", file)
		}
		level := new(slog.LevelVar)
		level.Set(site.loaded.Log.SlogLevel())
		log := newLogger(cmd.ErrOrStderr(), site.loaded.Log, level)
		slog.SetDefault(log) // backends log there
		site.patient = true
		w := &worker{site: site, content: content, log: log, level: level}
		return w.run(ctx)
	}
	return cmd
}

func newLogger(w io.Writer, cfg configs.Log, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// worker runs the jobs of a site.
type worker struct {
	site    *site
	content [sha256.Size]byte // of the file, when it was read for the start
	log     *slog.Logger
	level   *slog.LevelVar
	kinds   configs.Kinds // set with the scheduler, as are the next
	gates   []scheduler.Gate
	waiting bool // a reload waits for the store

	metrics   *metrics.Metrics // nil where nobody can read them
	scheduled atomic.Pointer[scheduler.Scheduler]
}

func (w *worker) run(ctx context.Context) error {
	// From here on signals are ours: one that comes early ends the start.
	stop, hup := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(stop)
	defer signal.Stop(hup)

	blind, err := w.observe(ctx)
	if err != nil {
		return err
	}
	defer blind()
	s, err := w.assemble(ctx, stop)
	if s == nil || err != nil {
		return err
	}
	w.log = w.log.With("namespace", w.site.namespace(), "owner", cmp.Or(w.site.loaded.Scheduler.Label, processLabel())) // as the scheduler's lines
	w.log.InfoContext(ctx, "worker starts", "version", readVersion().Version, "file", w.site.file, "tzdata", cronspec.TZDataVersion())
	w.show(s)
	unwatch, err := w.watchSwitch(ctx, s)
	if err != nil {
		return err
	}
	defer unwatch()
	if err := s.Start(ctx); err != nil {
		return err
	}
	watching, endWatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchFile(watching, w.site.file, w.content, hup, w.log, func() bool { return w.reload(watching, s) })
	}()
	select {
	case sig := <-stop:
		w.log.InfoContext(ctx, "worker stops; a second signal ends it at once", "signal", sig.String())
	case <-s.Done():
	}
	endWatch()
	<-watched
	return errors.Join(s.Err(), w.drain(ctx, s, stop))
}

// drain stops the scheduler; a second signal ends the wait for its runs.
func (w *worker) drain(ctx context.Context, s *scheduler.Scheduler, stop <-chan os.Signal) error {
	ctx, force := context.WithCancel(ctx)
	defer force()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(ctx) }()
	for {
		select {
		case err := <-stopped:
			return err
		case sig := <-stop:
			w.log.WarnContext(ctx, "worker ends its runs", "signal", sig.String())
			force()
		}
	}
}

// scheduler builds the scheduler that the file describes.
func (w *worker) scheduler(ctx context.Context) (*scheduler.Scheduler, error) {
	st, err := w.openStore(ctx)
	if err != nil {
		return nil, err
	}
	var deps scheduler.Deps
	err = w.await(ctx, "lock backend", func() (err error) {
		deps, err = w.site.gateDeps(ctx) //nolint:contextcheck // electors get their context when they run
		return err
	})
	if err != nil {
		return nil, err
	}
	w.kinds, w.gates = jobKinds(w.site.sqlRules(), idempotent.New(st), w.log), gatesOf(deps)
	jobs, err := w.site.loaded.BuildJobs(w.kinds)
	if err != nil {
		return nil, usageError(err)
	}
	deps.Store, deps.Logger, deps.Listeners = st, w.log, w.listeners()
	s, err := scheduler.New(w.site.loaded.SchedulerConfig(), deps)
	if err != nil {
		return nil, usageError(err)
	}
	if err := s.Add(jobs...); err != nil {
		return nil, usageError(err)
	}
	return s, nil
}

// openStore is the site's, and waits for a server.
func (w *worker) openStore(ctx context.Context) (st *gormstore.Store, err error) {
	if !w.site.loaded.Store.OnServer() {
		return w.site.openStore(ctx)
	}
	err = w.await(ctx, "store", func() error {
		st, err = w.site.openStore(ctx)
		return err
	})
	return st, err
}

// jobKinds makes the handlers of jobs that need no Go. A nil guard makes handlers
// to be checked, not to be called.
func jobKinds(rules sqljob.Dialect, guard *idempotent.Guard, log *slog.Logger) configs.Kinds {
	return configs.Kinds{Exec: func(cfg execjob.Config, deps execjob.Deps) (scheduler.Handler, error) {
		deps.Logger = log
		return execjob.New(cfg, deps)
	}, SQL: func(statements string) (scheduler.Handler, error) {
		return sqljob.New(rules, statements, guard)
	}}
}
