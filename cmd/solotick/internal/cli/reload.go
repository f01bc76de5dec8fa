package cli

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file must have been left alone before it is read: editors
// write in several steps.
const settle = 200 * time.Millisecond

// watchFile calls reload whenever the file's content has changed, and at once for
// every signal on nudge, until ctx ends. It watches the directory, since editors
// and orchestrators replace the file, or a link on the way to it, instead of
// writing into it. Where the directory cannot be watched, the signals remain.
func watchFile(ctx context.Context, path string, nudge <-chan os.Signal, log *slog.Logger, reload func()) {
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
		log.WarnContext(ctx, "the configuration file cannot be watched; send SIGHUP after a change", "file", path, "error", err)
	}
	last := digest(path)
	quiet := time.NewTimer(settle) // once at the start: it may have changed since it was read
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-nudge:
			last = digest(path)
			reload()
		case <-events:
			quiet.Reset(settle)
		case err := <-errs:
			log.WarnContext(ctx, "a change of the configuration file may have been overlooked", "error", err)
			quiet.Reset(settle)
		case <-quiet.C:
			if now := digest(path); now != last {
				last = now
				reload()
			}
		}
	}
}

// digest is the hash of the file's content; zero if it cannot be read.
func digest(path string) [sha256.Size]byte {
	data, err := os.ReadFile(path)
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(data)
}
