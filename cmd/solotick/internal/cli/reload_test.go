package cli

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// watched is a file under watch, and what was read at each call for a reload.
type watched struct {
	t     *testing.T
	nudge chan os.Signal
	seen  chan string
}

// watch watches the file as a worker does that has read last.
func watch(t *testing.T, path string, last [sha256.Size]byte) *watched {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w, done := &watched{t, make(chan os.Signal), make(chan string, 1)}, make(chan struct{})
	go func() {
		defer close(done)
		watchFile(ctx, path, last, w.nudge, slog.New(slog.DiscardHandler), func() bool {
			text, err := os.ReadFile(path)
			if err != nil {
				text = []byte(err.Error())
			}
			w.seen <- string(text)
			return false
		})
	}()
	t.Cleanup(func() {
		stop()
		<-done
		select {
		case got := <-w.seen:
			t.Errorf("reloaded %q without a change", got)
		default:
		}
	})
	return w
}

func (w *watched) expect(want string) {
	w.t.Helper()
	select {
	case got := <-w.seen:
		if got != want {
			w.t.Errorf("reloaded %q, want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		w.t.Fatalf("not reloaded, want %q", want)
	}
}

// put writes a file and names it.
func put(t *testing.T, text string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchSeesEveryWayAFileChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := put(t, "one", dir, "solotick.yaml")
	w := watch(t, path, digest(path))
	w.nudge <- syscall.SIGHUP // it is watching once this is taken
	w.expect("one")
	put(t, "two", path)
	w.expect("two")
	must(t, os.Rename(put(t, "three", dir, "new"), path))
	w.expect("three")
	// The way of mounted configuration: the file is a link that goes to another.
	must(t, os.Symlink(put(t, "four", dir, "v4"), filepath.Join(dir, "link")))
	must(t, os.Rename(filepath.Join(dir, "link"), path))
	w.expect("four")
	w.nudge <- syscall.SIGHUP
	w.expect("four")
}

// What no event of the file's directory tells of is seen as well.
func TestWatchSeesChangesElsewhere(t *testing.T) {
	t.Parallel()
	t.Run("behind a link", func(t *testing.T) {
		t.Parallel()
		target := put(t, "one", t.TempDir(), "solotick.yaml")
		path := filepath.Join(t.TempDir(), "solotick.yaml")
		must(t, os.Symlink(target, path))
		w := watch(t, path, digest(path))
		put(t, "two", target)
		w.expect("two")
	})
	t.Run("a link on the way", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for _, release := range []string{"1", "2"} {
			must(t, os.Mkdir(filepath.Join(dir, release), 0o700))
			put(t, release, dir, release, "solotick.yaml")
		}
		must(t, os.Symlink("1", filepath.Join(dir, "current")))
		path := filepath.Join(dir, "current", "solotick.yaml")
		w := watch(t, path, digest(path))
		must(t, os.Symlink("2", filepath.Join(dir, "next")))
		must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")))
		w.expect("2")
	})
	t.Run("another directory of that name", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "etc")
		must(t, os.Mkdir(dir, 0o700))
		path := put(t, "one", dir, "solotick.yaml")
		w := watch(t, path, digest(path))
		must(t, os.Rename(dir, dir+".old"))
		w.expect("open " + path + ": no such file or directory")
		must(t, os.Mkdir(dir, 0o700))
		put(t, "two", path)
		w.expect("two")
	})
	t.Run("while the worker started", func(t *testing.T) {
		t.Parallel()
		path := put(t, "one", t.TempDir(), "solotick.yaml")
		last := digest(path)
		put(t, "two", path)
		watch(t, path, last).expect("two")
	})
}

// The store's own file, or a log, may lie beside the configuration and change all the
// time.
func TestWatchSeesAChangeInABusyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := put(t, "one", dir, "solotick.yaml")
	w := watch(t, path, digest(path))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(settle / 8):
				_ = os.WriteFile(filepath.Join(dir, "solotick.db-wal"), []byte("busy"), 0o600)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	put(t, "two", path)
	w.expect("two")
}
