package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWatchSeesEveryWayAFileChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "solotick.yaml")
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("solotick.yaml", "one")
	ctx, stop := context.WithCancel(t.Context())
	nudge, seen, done := make(chan os.Signal), make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		watchFile(ctx, path, nudge, slog.New(slog.DiscardHandler), func() bool {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			seen <- string(text)
			return false
		})
	}()
	expect := func(want string) {
		t.Helper()
		if got := <-seen; got != want {
			t.Errorf("reloaded %q, want %q", got, want)
		}
	}
	nudge <- syscall.SIGHUP // it is watching once this is taken
	expect("one")
	write("solotick.yaml", "two")
	expect("two")
	if err := os.Rename(write("new", "three"), path); err != nil {
		t.Fatal(err)
	}
	expect("three")
	// The way of mounted configuration: the file is a link that goes to another.
	if err := os.Symlink(write("v4", "four"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "link"), path); err != nil {
		t.Fatal(err)
	}
	expect("four")
	nudge <- syscall.SIGHUP
	expect("four")
	stop()
	<-done
	select {
	case got := <-seen:
		t.Errorf("reloaded %q without a change", got)
	default:
	}
}
