package sqllock

import (
	"context"
	"errors"

	"github.com/fsnotify/fsnotify"

	"github.com/solotick/solotick/locks/driver"
)

// Impatient has PostgreSQL end the transaction of the hold soon, which the driver is not
// told.
func (r *Row) Impatient(ctx context.Context, h driver.Hold) error {
	s := r.enter(ctx, grant{h.Key, h.Token})
	if s == nil {
		return errors.New("not held")
	}
	defer s.leave()
	_, err := s.conn.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 1")
	return err
}

// Written is the sign of a write.
const Written = fsnotify.Write

// Log is a watch of a write-ahead log.
type Log struct{ logWatch }

// WatchLog returns a watch of the file, before it watches.
func WatchLog(path string) *Log { return &Log{logWatch{path: path}} }

// Watch watches the file that there is.
func (l *Log) Watch() bool { return l.watch() }

// Events are the signs.
func (l *Log) Events() <-chan fsnotify.Event { return l.events }

// Close ends the watch.
func (l *Log) Close() { l.close() }
