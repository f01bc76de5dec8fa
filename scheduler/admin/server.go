package admin

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/scheduler"
)

// Deps are the things passed in code.
type Deps struct {
	// Scheduler returns the scheduler, or nil while there is none yet. Required.
	Scheduler func() *scheduler.Scheduler
	// Metrics serves /metrics. Default none.
	Metrics http.Handler
	// Logger is told of every change. Default slog.Default().
	Logger *slog.Logger
}

// Server listens. Make one with New.
type Server struct {
	cfg  Config
	deps Deps
	http *http.Server
	ln   net.Listener
	done chan struct{}
}

// New checks the configuration. It opens nothing.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.On() {
		return nil, errors.New("admin: listen: is empty: give an address, such as 127.0.0.1:9464")
	}
	if deps.Scheduler == nil {
		return nil, errors.New("admin: Deps.Scheduler is nil")
	}
	if deps.Logger == nil {
		deps.Logger = slog.Default()
	}
	t, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg: cfg, deps: deps, done: make(chan struct{}),
		http: &http.Server{
			Handler: newAPI(cfg, deps), TLSConfig: t, ErrorLog: slog.NewLogLogger(deps.Logger.Handler(), slog.LevelDebug),
			ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
			IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		},
	}, nil
}

// Start listens and serves in the background; ctx bounds the call only. It is called
// once. An address that is taken is an error.
func (s *Server) Start(ctx context.Context) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("admin: listen: %w", err)
	}
	s.ln = ln
	go func() {
		defer close(s.done)
		var err error
		if s.http.TLSConfig != nil {
			err = s.http.ServeTLS(ln, "", "")
		} else {
			err = s.http.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			s.deps.Logger.Error("admin server ended", "error", err)
		}
	}()
	s.deps.Logger.Info("admin server listens", "address", ln.Addr().String())
	return nil
}

// Addr is the address that it listens at, once started.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Stop lets requests in progress end, until ctx does, and ends the server.
func (s *Server) Stop(ctx context.Context) error {
	if s.ln == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.done
	return err
}

// api is the handler of all paths.
type api struct {
	cfg  Config
	deps Deps
	one  sync.Mutex // changes are made one after the other, each by who has seen the last
	open bool       // reads need no token: only this host can reach it, or it was said to be trusted
}

func newAPI(cfg Config, deps Deps) http.Handler {
	host, _, _ := net.SplitHostPort(cfg.Listen) // Validate has looked at it
	a := &api{cfg: cfg, deps: deps, open: cfg.Token.IsZero() || loopback(host)}
	if a.deps.Logger == nil {
		a.deps.Logger = slog.Default()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", a.healthz)
	mux.HandleFunc("GET /readyz", a.readyz)
	if deps.Metrics != nil {
		mux.Handle("GET /metrics", deps.Metrics)
	}
	mux.HandleFunc("GET /api/v1/switch", a.reading(a.switchGet))
	mux.HandleFunc("PUT /api/v1/switch", a.changing(a.switchPut))
	mux.HandleFunc("DELETE /api/v1/switch", a.changing(a.switchDelete))
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusForbidden, "the request comes from a page of another site")
	}))
	return headers(guard.Handler(mux))
}

// headers are on every answer.
func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// reading lets a request in that changes nothing.
func (a *api) reading(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.open && !a.bears(r) {
			refuse(w)
			return
		}
		next(w, r)
	}
}

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// changing lets a request in that changes something, with its body.
func (a *api) changing(next func(http.ResponseWriter, *http.Request, []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); {
		case a.cfg.Token.IsZero():
			problem(w, http.StatusForbidden, "this process takes no changes: set admin.token (or token_file) in its configuration")
		case !a.bears(r):
			refuse(w)
		case strings.TrimSpace(kind) != "application/json":
			problem(w, http.StatusUnsupportedMediaType, "send the body as Content-Type: application/json")
		default:
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
				problem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", big.Limit))
				return
			}
			if err != nil {
				problem(w, http.StatusBadRequest, "the body did not arrive whole: "+err.Error())
				return
			}
			a.one.Lock() // only now: a client that is slow keeps nobody waiting
			defer a.one.Unlock()
			next(w, r, body)
		}
	}
}

// bears compares the token in a time that does not depend on it.
func (a *api) bears(r *http.Request) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return ok && strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare([]byte(token), []byte(a.cfg.Token.Reveal())) == 1
}

func refuse(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="solotick"`)
	problem(w, http.StatusUnauthorized, "send the token of this process as Authorization: Bearer TOKEN")
}

// problem answers with an error, as RFC 9457 has it.
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	write(w, map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	write(w, v)
}

// write sends JSON. An error means that the client has gone: there is nobody to tell.
func write(w http.ResponseWriter, v any) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
