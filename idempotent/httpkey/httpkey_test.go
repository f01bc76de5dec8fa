package httpkey_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/idempotent/httpkey"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

type item struct {
	ID   int64
	Name string
}

// shop is a server whose orders are rows.
type shop struct {
	*testing.T
	db      *gorm.DB
	guard   *idempotent.Guard
	calls   atomic.Int64
	inside  func() // called by the handler before it writes
	status  int    // of the handler's answer
	answer  string
	handler http.Handler
}

func open(t *testing.T, change func(c *httpkey.Config)) *shop {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "store.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	st, err := gormstore.New(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.Migrate(t.Context()), db.AutoMigrate(&item{})); err != nil {
		t.Fatal(err)
	}
	s := &shop{T: t, db: db, guard: idempotent.New(st), status: http.StatusCreated, inside: func() {}}
	c := httpkey.Config{Namespace: "shop", Scope: func(r *http.Request) string { return r.Header.Get("X-Account") }, MaxBody: 1000}
	if change != nil {
		change(&c)
	}
	once, err := httpkey.New(s.guard, c)
	if err != nil {
		t.Fatal(err)
	}
	s.handler = once(http.HandlerFunc(s.order))
	return s
}

func (s *shop) order(w http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	s.inside()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.Error(err)
	}
	tx := httpkey.Tx(r.Context())
	if tx == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	row := item{Name: string(body)}
	if err := tx.Create(&row).Error; err != nil {
		s.Error(err)
	}
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", row.ID))
	w.Header().Set("Set-Cookie", "a=b")
	w.WriteHeader(s.status)
	if s.answer == "" {
		_, _ = fmt.Fprintf(w, `{"id":%d}`, row.ID)
		return
	}
	_, _ = io.WriteString(w, s.answer)
}

// send is one request; headers are "Name: value".
func (s *shop) send(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.Context(), method, path, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func (s *shop) rows() (n int64) {
	s.Helper()
	if err := s.db.Model(&item{}).Count(&n).Error; err != nil {
		s.Fatal(err)
	}
	return n
}

const key = `Idempotency-Key: "k1"`

func TestRepeatIsAnsweredWithTheStoredResponse(t *testing.T) {
	s := open(t, nil)
	first := s.send("POST", "/orders?x=1", "tea", key)
	if first.Code != http.StatusCreated || first.Body.String() != `{"id":1}` || first.Header().Get("Set-Cookie") == "" || first.Header().Get(httpkey.ReplayedHeader) != "" {
		t.Fatalf("the first: %d %s %v", first.Code, first.Body, first.Header())
	}
	// The same key without its quotes.
	again := s.send("POST", "/orders?x=1", "tea", "Idempotency-Key: k1")
	if again.Code != http.StatusCreated || again.Body.String() != `{"id":1}` || again.Header().Get("Location") != "/orders/1" ||
		again.Header().Get("Set-Cookie") != "" || again.Header().Get(httpkey.ReplayedHeader) != "true" || again.Header().Get("Content-Type") == "" {
		t.Errorf("the repeat: %d %s %v", again.Code, again.Body, again.Header())
	}
	for _, other := range []*httptest.ResponseRecorder{
		s.send("POST", "/orders?x=1", "coffee", key), s.send("POST", "/orders?x=2", "tea", key),
		s.send("POST", "/returns?x=1", "tea", key), s.send("PATCH", "/orders?x=1", "tea", key),
	} {
		if other.Code != http.StatusUnprocessableEntity || other.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("another request: %d %s", other.Code, other.Body)
		}
	}
	if n := s.rows(); n != 1 || s.calls.Load() != 1 {
		t.Errorf("%d rows after %d calls, want 1 and 1", n, s.calls.Load())
	}
	// Another account's key is another key.
	if w := s.send("POST", "/orders?x=1", "tea", key, "X-Account: 2"); w.Code != http.StatusCreated || w.Body.String() != `{"id":2}` {
		t.Errorf("another account: %d %s", w.Code, w.Body)
	}
}

// Who has no account sends as a key what the store calls the key of one who has.
func TestNoKeyPassesForAnotherScopes(t *testing.T) {
	s := open(t, nil)
	if w := s.send("POST", "/orders", "tea", key, "X-Account: alice"); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	forged := fmt.Sprintf("%x/k1", sha256.Sum256([]byte("alice")))
	for i, k := range []string{forged, strings.ToUpper(forged), "k1"} {
		for _, replayed := range []string{"", "true"} {
			w := s.send("POST", "/orders", "tea", "Idempotency-Key: "+k)
			if w.Code != http.StatusCreated || w.Body.String() != fmt.Sprintf(`{"id":%d}`, i+2) || w.Header().Get(httpkey.ReplayedHeader) != replayed {
				t.Errorf("%s: %d %s, replayed %q", k, w.Code, w.Body, w.Header().Get(httpkey.ReplayedHeader))
			}
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	s := open(t, nil)
	for _, c := range []struct {
		headers []string
		body    string
		want    int
	}{
		{nil, "tea", 400},
		{[]string{"Idempotency-Key: "}, "tea", 400},
		{[]string{`Idempotency-Key: ""`}, "tea", 400},
		{[]string{`Idempotency-Key: "a`}, "tea", 400},
		{[]string{`Idempotency-Key: a b`}, "tea", 400},
		{[]string{`Idempotency-Key: "a\b"`}, "tea", 400},
		{[]string{`Idempotency-Key: "a"b"`}, "tea", 400},
		{[]string{"Idempotency-Key: \"\xc3\xa9\""}, "tea", 400},
		{[]string{"Idempotency-Key: a", "Idempotency-Key: b"}, "tea", 400},
		{[]string{"Idempotency-Key: " + strings.Repeat("x", 256)}, "tea", 400},
		{[]string{key}, strings.Repeat("x", 1001), 413},
	} {
		if w := s.send("POST", "/orders", c.body, c.headers...); w.Code != c.want || !strings.Contains(w.Body.String(), `"status":`+strconv.Itoa(c.want)) {
			t.Errorf("%q: %d %s, want %d", c.headers, w.Code, w.Body, c.want)
		}
	}
	if s.calls.Load() != 0 {
		t.Errorf("the handler was called %d times", s.calls.Load())
	}
	for _, good := range []string{`Idempotency-Key: "a \"b\" \\"`, "Idempotency-Key: " + strings.Repeat("x", 255)} {
		if w := s.send("POST", "/orders", "tea", good); w.Code != http.StatusCreated {
			t.Errorf("%s: %d", good, w.Code)
		}
	}
	if w := s.send("GET", "/orders", ""); w.Code != http.StatusNoContent {
		t.Errorf("GET: %d, want it untouched", w.Code)
	}
	optional := open(t, func(c *httpkey.Config) { c.Optional = true })
	if w := optional.send("POST", "/orders", ""); w.Code != http.StatusNoContent {
		t.Errorf("POST without the optional key: %d, want it untouched", w.Code)
	}
}

func TestRequestInProgress(t *testing.T) {
	s := open(t, func(c *httpkey.Config) {
		c.Fingerprint = func(*http.Request, []byte) idempotent.Fingerprint { return idempotent.Fingerprint{} }
	})
	busy := idempotent.Key{Namespace: "shop", Job: "http", Name: "k1"}
	var during *httptest.ResponseRecorder
	_, err := s.guard.Once(t.Context(), busy, idempotent.Fingerprint{}, func(*gorm.DB) ([]byte, error) { return nil, errors.New("no") },
		idempotent.Lease(time.Minute), idempotent.Before(func(context.Context, *idempotent.Attempt) error {
			during = s.send("POST", "/orders", "tea", key)
			return nil
		}))
	if err == nil || during == nil {
		t.Fatal(err)
	}
	wait, _ := strconv.Atoi(during.Header().Get("Retry-After"))
	if during.Code != http.StatusConflict || wait < 1 || wait > 60 || s.calls.Load() != 0 {
		t.Errorf("in progress: %d, Retry-After %d after %d calls, want 409 and the rest of the lease", during.Code, wait, s.calls.Load())
	}
	if w := s.send("POST", "/orders", "tea", key); w.Code != http.StatusCreated {
		t.Errorf("after it failed: %d %s", w.Code, w.Body)
	}
}

func TestResponseThatIsNotKeptIsRolledBack(t *testing.T) {
	s := open(t, nil)
	s.status = http.StatusUnprocessableEntity
	if w := s.send("POST", "/orders", "te", key); w.Code != http.StatusUnprocessableEntity || w.Header().Get("Set-Cookie") == "" || s.rows() != 0 {
		t.Errorf("a validation error: %d with %d rows", w.Code, s.rows())
	}
	s.status = http.StatusInternalServerError // of the corrected request, with the same key
	if w := s.send("POST", "/orders", "tea", key); w.Code != http.StatusInternalServerError || s.rows() != 0 {
		t.Errorf("an error: %d with %d rows", w.Code, s.rows())
	}
	s.status = http.StatusCreated
	if w := s.send("POST", "/orders", "tea", key); w.Code != http.StatusCreated || s.rows() != 1 || s.calls.Load() != 3 {
		t.Errorf("the next request: %d with %d rows after %d calls", w.Code, s.rows(), s.calls.Load())
	}
	s.answer = strings.Repeat("x", idempotent.MaxResult+1)
	if w := s.send("POST", "/orders", "tea", "Idempotency-Key: large"); w.Code != http.StatusInternalServerError || s.rows() != 1 {
		t.Errorf("a large response: %d with %d rows", w.Code, s.rows())
	}
}

func TestConfigIsChecked(t *testing.T) {
	scope := func(*http.Request) string { return "" }
	for want, c := range map[string]httpkey.Config{
		"Config.Namespace is empty": {Scope: scope},
		"Config.Scope is missing":   {Namespace: "shop"},
		"Config.MaxBody is -1":      {Namespace: "shop", Scope: scope, MaxBody: -1},
	} {
		if _, err := httpkey.New(nil, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %q", err, want)
		}
	}
}
