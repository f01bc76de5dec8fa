package httplock_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/examples/plugin-lock/httplock"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var token = secret.New("canary4711")

// lockServer is a lock server on a SQLite file that can be restarted.
type lockServer struct {
	file, addr string

	mu     sync.Mutex
	engine *sqllock.Driver
	stop   func()
}

func newLockServer(t testing.TB) *lockServer {
	t.Helper()
	s := &lockServer{file: filepath.Join(t.TempDir(), "locks.db"), addr: "127.0.0.1:0"}
	s.start(t)
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *lockServer) start(t testing.TB) {
	t.Helper()
	db, err := sqlitedb.Open(s.file, nil)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := sqllock.NewDriver(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: httplock.NewHandler(engine, token), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.engine = listener.Addr().String(), engine
	s.stop = func() {
		_ = server.Close()
		<-served
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // waits for the handlers that Close left
		if err := sqlitedb.Close(db); err != nil {
			t.Errorf("close the file: %v", err)
		}
	}
}

func (s *lockServer) restart(t testing.TB) {
	t.Helper()
	s.stop()
	s.start(t)
}

// console is the driver behind the server, as whoever sits at it has it.
func (s *lockServer) console() *sqllock.Driver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine
}

func open(t testing.TB, addr string) *httplock.Driver {
	t.Helper()
	d, err := httplock.NewDriver(httplock.Config{URL: "http://" + addr, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestConformance is all that a backend has to prove.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	s := newLockServer(t)
	lockstest.Run(t, lockstest.Harness{
		New: func(t testing.TB) driver.Driver { return open(t, s.addr) },
		Delete: func(t testing.TB, key string) {
			if _, err := s.console().ForceRelease(t.Context(), key); err != nil {
				t.Error(err)
			}
		},
		Restart: s.restart,
		Proxied: func(t testing.TB) (d driver.Driver, cut, heal func()) {
			p, err := faultproxy.New(s.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			return open(t, p.Addr()), func() { p.BlackHole(faultproxy.Both) }, p.Pass
		},
		// Each request is a commit of the one file behind all drivers.
		TTL: 3 * time.Second, SideBySide: 16,
	})
}

// TestAnswersAreKeptApart: what certainly was not done is marked, and a refusal of
// the server is no "held".
func TestAnswersAreKeptApart(t *testing.T) {
	s := newLockServer(t)
	request := driver.Request{Key: "lock:shop:example:k", Token: driver.NewToken(), TTL: time.Minute}

	stranger, err := httplock.NewDriver(httplock.Config{URL: "http://" + s.addr, Token: secret.New("wrong4711")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	_, err = stranger.Acquire(t.Context(), request)
	if !driver.IsNotApplied(err) || strings.Contains(err.Error(), "4711") {
		t.Errorf("a wrong token: %v", err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	d := open(t, s.addr)
	t.Cleanup(func() { _ = d.Close() })
	if _, err := d.Acquire(ended, request); !driver.IsNotApplied(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if _, err := d.Inspect(t.Context(), request.Key); !errors.Is(err, driver.ErrFree) {
		t.Errorf("neither should have been granted: %v", err)
	}

	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, nobody.Addr().String()).Acquire(t.Context(), request); !driver.IsNotApplied(err) {
		t.Errorf("a refused connection: %v", err)
	}
}

func TestPluginIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  httplock.Config
		want string
	}{
		{httplock.Config{}, "url: it is empty"},
		{httplock.Config{URL: "localhost:7171"}, "url: it is none"},
		{httplock.Config{URL: "http://u:canary4711@localhost:7171"}, "url: it has a user in it"},
		{httplock.Config{URL: "http://locks.example.org", Token: token}, "url: the password would cross the network"},
		{httplock.Config{URL: "http://localhost:1", TLS: transport.TLS{Enabled: true}}, "url: it says http"},
	} {
		err := c.cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "4711") {
			t.Errorf("%+v: got %v, want %s", c.cfg, err, c.want)
		}
	}
	r, err := locks.NewRegistry(httplock.Plugin())
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Open(t.Context(), "http", func(into any) error {
		into.(*httplock.Config).URL = "http://127.0.0.1:1"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := locks.New(d, locks.Config{TTL: 50 * time.Millisecond}); !errors.Is(err, locks.ErrInvalid) {
		t.Errorf("a TTL below the limit: %v, %v", l, err)
	}
}
