package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is what a part of the program printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{} // filled at every line
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.news <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) await(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		o.mu.Lock()
		all := o.text.String()
		o.mu.Unlock()
		if strings.Contains(all, text) {
			return all
		}
		select {
		case <-o.news:
		case <-timeout:
			t.Fatalf("no %q in %q", text, all)
		}
	}
}

// running is a part of the program until it is stopped.
type running struct {
	*output
	stop context.CancelFunc
	done chan error
}

func begin(t *testing.T, part func(context.Context, *output) error) running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := running{&output{news: make(chan struct{}, 1)}, stop, make(chan error, 1)}
	go func() { r.done <- part(ctx, r.output) }()
	t.Cleanup(stop)
	return r
}

func (r running) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}

// TestStory goes through README.md: a server, a holder, one that is refused, and the
// server restarted under the holder.
func TestStory(t *testing.T) {
	dir := t.TempDir()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := port.Addr().String()
	if err := port.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOCK_TOKEN", "open sesame")
	sample, err := os.ReadFile("lock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "lock.yaml")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(string(sample), "127.0.0.1:7171", address)), 0o600); err != nil {
		t.Fatal(err)
	}
	serving := func(ctx context.Context, out *output) error {
		return serve(ctx, filepath.Join(dir, "locks.db"), address, out)
	}
	holding := func(ctx context.Context, out *output) error { return hold(ctx, config, "nightly", out) }

	server := begin(t, serving)
	server.await(t, "locks of ")
	first := begin(t, holding)
	first.await(t, "lock:shop:example:nightly is mine under fence ")
	if err := hold(t.Context(), config, "nightly", new(output)); !errors.Is(err, locks.ErrHeld) {
		t.Errorf("the second: %v", err)
	}
	server.end(t)
	server = begin(t, serving)
	server.await(t, "locks of ")
	if err := hold(t.Context(), config, "nightly", new(output)); !errors.Is(err, locks.ErrHeld) {
		t.Errorf("after a restart of the server: %v", err)
	}
	first.end(t) // released: the lease outlived the restart
	next := begin(t, holding)
	next.await(t, "is mine")
	next.end(t)
	server.end(t)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"hold"}, {"hold", "x"}, {"serve", "a", "b"}} {
		if err := run(t.Context(), args, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "usage: ") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
