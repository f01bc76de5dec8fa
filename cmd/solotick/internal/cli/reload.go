package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

const (
	settle = 200 * time.Millisecond // for that long a file must have been as it is: editors write in several steps
	glance = time.Second            // between two looks at a file that nothing was told of
)

const (
	reloadTimeout = 5 * time.Second // of the wait for the store in a reload
	reloadPause   = 5 * time.Second // before one that waits for the store is tried again
)

// reload reads the file again and takes up what can change live: all of it or, where
// something is wrong, nothing. What needs a restart is told each time. Again is true
// when the store has to answer first.
func (w *worker) reload(ctx context.Context, s *scheduler.Scheduler) (again bool) {
	next, changes, jobs, err := w.read(s)
	if err != nil {
		w.waiting = false
		w.log.ErrorContext(ctx, "the configuration file is not good: nothing was changed", "file", w.site.file, "problems", err.Error())
		s.NoteReload(scheduler.ConfigReloaded{Result: scheduler.ReloadRejected, Err: err})
		return false
	}
	w.level.Set(next.Log.SlogLevel())
	// The switch comes first, as it does not wait for the store; a mode of a job that is
	// added comes after it.
	switched := w.throw(s, next)
	within, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	_, err = s.Reconfigure(within, next.SchedulerConfig(), jobs...)
	if err == nil && switched != nil {
		err = w.throw(s, next)
	}
	switch {
	case ctx.Err() != nil:
		return false // the worker stops
	case errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded):
		w.site.loaded.Log.Level = next.Log.Level
		if !w.waiting {
			w.log.WarnContext(ctx, "changes in the configuration file wait for the store", "changed", fmt.Sprint(changes.Hot), "error", err)
		}
		w.waiting = true
		return true
	case err != nil:
		w.log.ErrorContext(ctx, "the configuration was not changed", "file", w.site.file, "error", err)
		s.NoteReload(scheduler.ConfigReloaded{Result: scheduler.ReloadRejected, Err: err})
		return false
	}
	w.site.loaded, w.waiting = next, false
	s.NoteReload(scheduler.ConfigReloaded{Result: scheduler.ReloadApplied, Changed: changes.Hot, Restart: changes.Restart})
	hot, restart := fmt.Sprint(changes.Hot), fmt.Sprint(changes.Restart)
	switch {
	case len(changes.Restart) > 0:
		w.log.WarnContext(ctx, "configuration reloaded; some changes need a restart", "changed", hot, "need_restart", restart)
	case len(changes.Hot) > 0:
		w.log.InfoContext(ctx, "configuration reloaded", "changed", hot)
	default:
		w.log.InfoContext(ctx, "configuration read again: nothing has changed")
	}
	return false
}

// read is what the file comes to now, built and checked as a whole. It changes
// nothing.
func (w *worker) read(s *scheduler.Scheduler) (*configs.Loaded, configs.Changes, []scheduler.Job, error) {
	updated, err := load(w.site.file)
	if err != nil {
		return nil, configs.Changes{}, nil, err
	}
	if len(updated.Jobs) == 0 {
		return nil, configs.Changes{}, nil, errors.New("it has no jobs: there would be nothing to run")
	}
	changes, next := configs.Diff(w.site.loaded, updated), w.site.loaded.With(updated)
	jobs, err := next.BuildJobs(w.kinds)
	if err != nil {
		return nil, changes, nil, err
	}
	for _, g := range (&site{loaded: next}).gates() {
		if !slices.Contains(w.gates, g) {
			return nil, changes, nil, fmt.Errorf("jobs have gate %s, and this worker was started without the lock backend, as none of its jobs had a gate: restart it", g)
		}
	}
	return next, changes, jobs, s.Check(next.SchedulerConfig(), jobs...)
}

// throw turns the degradation switch to what the file says, if that is news.
func (w *worker) throw(s *scheduler.Scheduler, next *configs.Loaded) error {
	if reflect.DeepEqual(w.site.loaded.Degradation.Degradation, next.Degradation.Degradation) {
		return nil
	}
	if err := s.SetDegradation(next.Degradation.Degradation); err != nil {
		return err
	}
	w.site.loaded.Degradation.Degradation = next.Degradation.Degradation
	return nil
}

// watchFile calls reload whenever the file's content is not what it was at the last
// reading, which last is the digest of, and at once for every signal on nudge, until ctx
// ends; and some time later where reload says that it must be called again. It watches
// the directory, since editors and orchestrators replace the file instead of writing
// into it, and looks now and then by itself: a link may lead to another directory, and
// the directory may be replaced as well.
func watchFile(ctx context.Context, path string, last [sha256.Size]byte, nudge <-chan os.Signal, log *slog.Logger, reload func() (again bool)) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = w.Close() }()
		if err = w.Add(filepath.Dir(path)); err == nil {
			events, errs = w.Events, w.Errors
		}
	}
	if err != nil {
		log.WarnContext(ctx, "the configuration file cannot be watched; it is looked at instead", "file", path, "every", glance.String(), "error", err)
	}
	quiet, again := time.NewTimer(0), time.NewTimer(settle)
	defer quiet.Stop()
	again.Stop()
	defer again.Stop()
	glances := time.NewTicker(glance)
	defer glances.Stop()
	seen, looking := last, true // the digest at the last look, and whether another will follow
	look := func() {
		// Other files of the directory may change all the time, so it is the content that
		// must have stayed the same, and not the directory that must have been quiet.
		if !looking {
			seen, looking = digest(path), true
			quiet.Reset(settle)
		}
	}
	call := func() {
		again.Stop()
		if reload() {
			again.Reset(backoff.Jitter(reloadPause, 0.2))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-nudge:
			last = digest(path)
			call()
		case <-events:
			look()
		case <-glances.C:
			look()
		case err := <-errs: // such as too many at a time: the next look finds what they were about
			log.DebugContext(ctx, "changes in the directory of the configuration file were not told", "error", err)
			look()
		case <-quiet.C:
			now := digest(path)
			looking = now != last && now != seen
			switch {
			case looking:
				seen = now
				quiet.Reset(settle)
			case now != last:
				last = now
				call()
			}
		case <-again.C:
			last = digest(path)
			call()
		}
	}
}

// digest is the hash of the file's content; zero if it cannot be read, or only once, as
// a pipe can.
func digest(path string) [sha256.Size]byte {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return [sha256.Size]byte{}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(data)
}
