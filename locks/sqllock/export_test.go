package sqllock

import "github.com/fsnotify/fsnotify"

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
