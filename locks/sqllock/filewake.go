package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/hint"
	"github.com/solotick/solotick/locks/driver"
)

const (
	// burst is how often the rows are looked at after a sign of a commit, with longer and
	// longer pauses: the sign comes when the log is written, and the commit can be read
	// only when that is on the disk.
	burst     = 6
	firstLook = 5 * time.Millisecond
	nextLook  = 10 * time.Millisecond
	// lookEvery bounds the looks of a driver, however busy the file is: they are 20 a
	// second, and looksAtOnce more after a pause.
	lookEvery   = 50 * time.Millisecond
	looksAtOnce = 4
	// lookShare bounds the part of the time that they take, where thousands of keys are
	// waited for; mostRest is for one that the machine has held up.
	lookShare = 20
	mostRest  = 500 * time.Millisecond
	// rewatch is how often the log is looked for, which may be removed and made anew.
	rewatch = time.Second
	// fileLinger is how long the log is watched when nobody waits any more.
	fileLinger = time.Second
)

// fileWaker hints to those who wait for keys in a SQLite database. Of what this driver
// frees it is told. Of what others free it hears as the operating system tells that the
// database's write-ahead log was written to; then it reads the rows that are waited for,
// over one statement that writes nothing and so is no sign to anybody, and hints where a
// key is free. What it misses is found by the waiters' own looks.
type fileWaker struct {
	rows  *rows
	hints hint.Source
	come  chan struct{} // somebody waits who may have missed something
}

func newFileWaker(r *rows) *fileWaker {
	w := &fileWaker{rows: r, come: make(chan struct{}, 1)}
	w.hints.Listen, w.hints.Linger = w.listen, fileLinger
	return w
}

// Wake implements [driver.Waker] on SQLite.
func (d *Driver) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	if d.files == nil {
		return nil, nil, errors.New("sqllock: the database does not tell of keys that were freed")
	}
	told, stop, _, err := d.files.hints.Add(ctx, key)
	if err != nil {
		return nil, nil, errors.New("sqllock: the driver is closed")
	}
	select {
	case d.files.come <- struct{}{}:
	default:
	}
	return told, stop, nil
}

// freed hints that this driver has freed a key, if it has.
func (d *Driver) freed(key string, out driver.Released, err error) (driver.Released, error) {
	if d.files != nil && err == nil && out == driver.ReleasedOK {
		d.files.hints.Tell(key)
	}
	return out, err
}

// listen looks at the rows after every sign of a commit, until ctx ends.
func (w *fileWaker) listen(ctx context.Context) {
	log := logWatch{path: w.logPath(ctx)}
	defer log.close()
	log.watch() // before the first look: a commit is seen by one or the other
	again := time.NewTimer(rewatch)
	defer again.Stop()

	look := time.NewTimer(0)
	look.Stop()
	defer look.Stop()
	var due time.Time // of the next look; zero if there is none
	looks := 0        // since the last sign
	plan := func(pause time.Duration) {
		if at := time.Now().Add(pause); due.IsZero() || at.Before(due) {
			due = at
			look.Reset(pause)
		}
	}
	var pace pace
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			again.Reset(backoff.Jitter(rewatch, 0.2))
			if begun := log.watch(); !begun {
				continue
			}
		case <-look.C:
			// What the system tells meanwhile is one sign, and not a queue of them.
			if pace.wait(ctx) != nil {
				return
			}
			due = time.Time{}
			began := time.Now()
			w.look(ctx)
			pace.looked(began)
			if looks++; looks < burst {
				plan(backoff.Jitter(nextLook<<(looks-1), 0.5))
			}
			continue
		case <-w.come:
		case <-log.events:
		case <-log.overlooked: //nolint:errcheck // that some were overlooked is a sign as well
		}
		looks = 0
		plan(rand.N(firstLook)) // not all processes at once
	}
}

// look hints to who waits for a key that is free.
func (w *fileWaker) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for keys := range slices.Chunk(w.hints.Keys(), batchMax(w.rows.conn.Dialect)) {
		holders, err := w.rows.Survey(ctx, keys)
		if err != nil {
			return // the waiters look for themselves
		}
		held := make(map[string]bool, len(holders))
		for _, h := range holders {
			held[h.Key] = true
		}
		for _, key := range keys {
			if !held[key] {
				w.hints.Tell(key)
			}
		}
	}
}

// logPath is that of the write-ahead log; empty where there can be none.
func (w *fileWaker) logPath(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var file sql.NullString
	const query = "SELECT file FROM pragma_database_list WHERE name = 'main'"
	if err := w.rows.conn.QueryRow(ctx, query, nil, &file); err != nil || file.String == "" {
		return "" // in memory, or away: waiters look
	}
	return file.String + "-wal"
}

// logWatch is what the operating system tells of the log. Nothing but the log is watched:
// some systems open what they watch, and to close the database file or its -shm drops
// the locks that SQLite has on it. Where the system refuses, as at its limit of watches,
// nothing is told.
type logWatch struct {
	path       string
	on         bool // the last try worked
	w          *fsnotify.Watcher
	events     <-chan fsnotify.Event
	overlooked <-chan error
}

// watch watches the file of that name from now on, if there is one, and reports whether
// it did not before.
func (l *logWatch) watch() (begun bool) {
	if l.path == "" {
		return false
	}
	if l.w == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return false
		}
		l.w, l.events, l.overlooked = w, w.Events, w.Errors
	}
	before := l.on
	l.on = l.w.Add(l.path) == nil
	return l.on && !before
}

func (l *logWatch) close() {
	if l.w != nil {
		_ = l.w.Close() // it was only listened to
	}
}

// pace bounds how often something is done, and what part of the time it takes.
type pace struct {
	next time.Time // when it would be done next if it were done evenly
	rest time.Time // nothing before this
}

// wait waits until it may be done again, or ctx ends.
func (p *pace) wait(ctx context.Context) error {
	at := p.next.Add(-(looksAtOnce - 1) * lookEvery)
	if p.rest.After(at) {
		at = p.rest
	}
	return backoff.Wait(ctx, time.Until(at))
}

// looked notes that it was done, from began until now.
func (p *pace) looked(began time.Time) {
	now := time.Now()
	if now.After(p.next) {
		p.next = now
	}
	p.next = p.next.Add(lookEvery)
	p.rest = now.Add(min((lookShare-1)*now.Sub(began), mostRest))
}
