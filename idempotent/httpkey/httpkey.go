// Package httpkey answers HTTP requests that carry an Idempotency-Key once: the
// handler's writes and its response are one transaction, and a repeat of the
// request is answered with the stored response. It follows
// draft-ietf-httpapi-idempotency-key-header-07.
//
//	once, err := httpkey.New(guard, httpkey.Config{Namespace: "shop", Scope: tenantOf})
//	mux.Handle("POST /orders", once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		tx := httpkey.Tx(r.Context())
//		...
//	})))
//
// # Answers
//
//	the key                                    answer
//	is missing, or malformed                   400
//	is in progress                             409, with Retry-After
//	was used for another request               422
//	was answered with a response that is kept  that response, with Idempotent-Replayed: true
//	is new                                     the handler's
//
// # Guaranteed
//
// What the handler writes through [Tx] is committed if and only if its response is
// stored, at most once per key. The response is sent after that. A response that is
// not kept (see Config.Keep) is sent with its writes rolled back: after one below 500
// the key is as if it had never been used, after one of 500 or more the next
// request is a new attempt.
//
// # Not guaranteed
//
// Anything about what the handler does outside of the transaction. The handler is
// called again when the database refuses the transaction as busy. Responses are
// held back until the commit, so they cannot be streamed, and have at most 64 KiB.
package httpkey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/store"
)

// Header carries the key.
const Header = "Idempotency-Key"

// ReplayedHeader marks a response that an earlier request had.
const ReplayedHeader = "Idempotent-Replayed"

// Config of the middleware.
type Config struct {
	// Namespace keeps applications apart in one store. Required.
	Namespace string
	// Job is the name under which the records are kept. Default "http".
	Job string
	// Scope names the client that the key belongs to, such as the account that the
	// request is authenticated for: clients with different scopes can use one key, and
	// none of them gets another's response. Required; answer "" if all are one.
	Scope func(r *http.Request) string
	// Methods are those that need a key. Others pass untouched. Default POST and PATCH.
	Methods []string
	// Optional lets requests without the header pass, unguarded. Default false: 400.
	Optional bool
	// MaxBody bounds the request's body, in bytes. Default 1 MiB.
	MaxBody int64
	// Headers of the response that are stored and replayed. Default Content-Type,
	// Content-Language, Location and ETag. What is personal or of one connection,
	// such as Set-Cookie, does not belong there.
	Headers []string
	// Fingerprint tells requests of one key apart. Default: a SHA-256 of method, path,
	// query and body.
	Fingerprint func(r *http.Request, body []byte) idempotent.Fingerprint
	// Keep says which responses are committed and stored, by their status. Default
	// those below 400.
	Keep func(status int) bool
	// Options for every call, such as idempotent.Lease and idempotent.WithCache.
	Options []idempotent.Option
}

func (c *Config) defaults() error {
	switch {
	case c.Namespace == "":
		return errors.New("httpkey: Config.Namespace is empty: name the application")
	case c.Scope == nil:
		return errors.New("httpkey: Config.Scope is missing: tell whose keys they are, or no client's key is safe from another's")
	case c.MaxBody < 0:
		return fmt.Errorf("httpkey: Config.MaxBody is %d: use bytes, or 0 for 1 MiB", c.MaxBody)
	}
	if c.Job == "" {
		c.Job = "http"
	}
	if c.Methods == nil {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if c.MaxBody == 0 {
		c.MaxBody = 1 << 20
	}
	if c.Headers == nil {
		c.Headers = []string{"Content-Type", "Content-Language", "Location", "ETag"}
	}
	if c.Fingerprint == nil {
		c.Fingerprint = fingerprint
	}
	if c.Keep == nil {
		c.Keep = func(status int) bool { return status < http.StatusBadRequest }
	}
	return nil
}

func fingerprint(r *http.Request, body []byte) idempotent.Fingerprint {
	h := store.HashOf("http", r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(body))
	return idempotent.Fingerprint(h)
}

// New makes the middleware. It is safe for concurrent use.
func New(g *idempotent.Guard, c Config) (func(http.Handler) http.Handler, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	c.Options = append([]idempotent.Option{idempotent.Reject()}, c.Options...)
	return func(next http.Handler) http.Handler { return &handler{guard: g, config: c, next: next} }, nil
}

type txKey struct{}

// Tx is the transaction of the request; nil if the request is not guarded.
func Tx(ctx context.Context) *gorm.DB {
	tx, _ := ctx.Value(txKey{}).(*gorm.DB)
	return tx
}

type handler struct {
	guard  *idempotent.Guard
	config Config
	next   http.Handler
}

// notKept is the error of a handler whose response is sent and not stored.
type notKept struct{ status int }

func (n *notKept) Error() string { return "httpkey: answered " + strconv.Itoa(n.status) }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	values := r.Header.Values(Header)
	if !slices.Contains(h.config.Methods, r.Method) || len(values) == 0 && h.config.Optional {
		h.next.ServeHTTP(w, r)
		return
	}
	name, err := parse(values)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.config.MaxBody))
	if err != nil {
		if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", large.Limit))
			return
		}
		refuse(w, http.StatusBadRequest, "the body could not be read")
		return
	}
	key := idempotent.Key{Namespace: h.config.Namespace, Job: h.config.Job, Name: nameOf(h.config.Scope(r), name)}
	var made *recorder
	reply, err := h.guard.Once(r.Context(), key, h.config.Fingerprint(r, body), func(tx *gorm.DB) ([]byte, error) {
		made = &recorder{header: http.Header{}}
		inner := r.Clone(context.WithValue(tx.Statement.Context, txKey{}, tx))
		inner.Body = io.NopCloser(bytes.NewReader(body))
		h.next.ServeHTTP(made, inner)
		switch status := made.code(); {
		case made.over:
			return nil, idempotent.ErrTooLarge
		case h.config.Keep(status):
			return made.encode(h.config.Headers)
		case status < http.StatusInternalServerError:
			return nil, idempotent.Refuse(&notKept{status})
		default:
			return nil, &notKept{status}
		}
	}, h.config.Options...)
	var rolledBack *notKept
	switch {
	case err == nil && reply.Replayed:
		replay(w, reply.Value)
	case err == nil, errors.As(err, &rolledBack):
		made.send(w)
	default:
		fail(w, err)
	}
}

// scoped is how the name of a key in a scope begins.
var scoped = regexp.MustCompile(`^[0-9a-fA-F]{64}/`)

// nameOf keeps the keys of different scopes apart. That without a name has the keys as
// they are sent, but for those that would pass for another scope's.
func nameOf(scope, key string) string {
	if scope == "" && !scoped.MatchString(key) {
		return key
	}
	sum := sha256.Sum256([]byte(scope))
	return fmt.Sprintf("%x/%s", sum, key)
}

const maxKey = 255

var (
	errMissing   = errors.New("this operation needs the header " + Header)
	errMalformed = errors.New("the header " + Header + ` has to be one string of 1 to 255 visible characters, such as "8e03978e-40d5-43e8-bc93-6894a57f9324"`)
)

// parse reads a string of RFC 8941, with its quotes or, as many clients send it,
// without.
func parse(values []string) (string, error) {
	if len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "" {
		return "", errMissing
	}
	if len(values) > 1 {
		return "", errMalformed
	}
	text := strings.Trim(values[0], " \t")
	quoted := strings.HasPrefix(text, `"`)
	if quoted {
		if len(text) < 2 || !strings.HasSuffix(text, `"`) {
			return "", errMalformed
		}
		text = text[1 : len(text)-1]
	}
	var key strings.Builder
	for i := 0; i < len(text); i++ {
		b := text[i]
		switch {
		case b < ' ' || b > '~', quoted && b == '"', !quoted && strings.IndexByte(` ",;\`, b) >= 0:
			return "", errMalformed
		case quoted && b == '\\':
			if i++; i == len(text) || text[i] != '"' && text[i] != '\\' {
				return "", errMalformed
			}
			b = text[i]
		}
		key.WriteByte(b)
	}
	if key.Len() == 0 || key.Len() > maxKey {
		return "", errMalformed
	}
	return key.String(), nil
}

// fail answers an error of the guard. It tells the client nothing of its text, which
// may speak of the database.
func fail(w http.ResponseWriter, err error) {
	var progress *idempotent.InProgressError
	var failed *idempotent.Failure
	switch {
	case errors.Is(err, idempotent.ErrMismatch):
		refuse(w, http.StatusUnprocessableEntity, "this key was used for another request")
	case errors.As(err, &progress):
		retryAfter(w, progress.RetryAfter)
		refuse(w, http.StatusConflict, "a request with this key is in progress")
	case errors.Is(err, idempotent.ErrFenced):
		retryAfter(w, time.Second)
		refuse(w, http.StatusConflict, "another request with this key took over")
	case errors.Is(err, idempotent.ErrIndeterminate):
		refuse(w, http.StatusConflict, "whether an earlier request with this key had its effect is not known")
	case errors.Is(err, idempotent.ErrForgotten):
		refuse(w, http.StatusConflict, "a request with this key succeeded, and its response is no longer kept")
	case errors.As(err, &failed):
		refuse(w, http.StatusInternalServerError, "an earlier request with this key failed for good")
	case errors.Is(err, store.ErrUnavailable):
		retryAfter(w, time.Second)
		refuse(w, http.StatusServiceUnavailable, "the request may be sent again, with the same key")
	default:
		refuse(w, http.StatusInternalServerError, "the request failed, and nothing of it was kept")
	}
}

func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// refuse answers with a problem of RFC 9457.
func refuse(w http.ResponseWriter, status int, detail string) {
	text, err := json.Marshal(map[string]any{
		"type":  "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07",
		"title": Header + ": " + http.StatusText(status), "status": status, "detail": detail,
	})
	if err != nil {
		status, text = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client has gone
}

// recorder holds a response back.
type recorder struct {
	header http.Header
	status int
	sent   http.Header // as it was when the status was written
	body   bytes.Buffer
	over   bool
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK { // informational ones are dropped
		r.status, r.sent = status, maps.Clone(r.header)
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(p) > idempotent.MaxResult {
		r.over = true
		return 0, idempotent.ErrTooLarge
	}
	return r.body.Write(p)
}

func (r *recorder) code() int {
	r.WriteHeader(http.StatusOK)
	return r.status
}

func (r *recorder) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.sent)
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // the client has gone
}

// response is one in the store: this as a line of JSON, then the body.
type response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
}

func (r *recorder) encode(headers []string) ([]byte, error) {
	kept := response{Status: r.code(), Header: http.Header{}}
	for _, name := range headers {
		if v := r.sent.Values(name); len(v) > 0 {
			kept.Header[http.CanonicalHeaderKey(name)] = v
		}
	}
	if kept.Header.Get("Content-Type") == "" && r.body.Len() > 0 && slices.Contains(headers, "Content-Type") {
		kept.Header.Set("Content-Type", http.DetectContentType(r.body.Bytes()))
	}
	line, err := json.Marshal(kept)
	return slices.Concat(line, []byte("\n"), r.body.Bytes()), err
}

func replay(w http.ResponseWriter, stored []byte) {
	line, body, ok := bytes.Cut(stored, []byte("\n"))
	var kept response
	if !ok || json.Unmarshal(line, &kept) != nil || kept.Status < http.StatusOK {
		fail(w, errors.New("httpkey: the stored response cannot be read"))
		return
	}
	maps.Copy(w.Header(), kept.Header)
	w.Header().Set(ReplayedHeader, "true")
	w.WriteHeader(kept.Status)
	_, _ = w.Write(body) // the client has gone
}
