package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/redislock"
)

// logs is a log to look at.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) option() redislock.Option {
	return redislock.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// documented is the ACL rule of the package comment.
func documented(t *testing.T) []any {
	t.Helper()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rule := []any{"ACL", "SETUSER"}
	inside := false
	for line := range strings.Lines(string(doc)) {
		text := strings.TrimSpace(strings.TrimPrefix(line, "//"))
		inside = inside && text != "" || strings.HasPrefix(text, "user solotick")
		if inside {
			for word := range strings.FieldsSeq(strings.TrimPrefix(text, "user ")) {
				rule = append(rule, word)
			}
		}
	}
	if len(rule) < 20 {
		t.Fatalf("no rule in doc.go: %v", rule)
	}
	return rule
}

func TestDocumentedPrivilegesAreEnough(t *testing.T) {
	server := testenv.Redis(t)
	admin := console(t, server.Addr(), 0)
	if err := admin.Do(t.Context(), documented(t)...).Err(); err != nil {
		t.Fatal(err)
	}
	var log logs
	user := func() *redis.Client {
		return redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "solotick", Password: "secret", MaxRetries: -1, ContextTimeoutEnabled: true})
	}
	h := harness(t, server.Addr(), 0)
	h.New = func(tb testing.TB) driver.Driver { return open(tb, user(), log.option()) }
	d := h.New(t).(closing)
	defer func() { _ = d.Close() }()
	warm(t, d)
	first := hold(t, d, request("k"))
	turns := make(chan turn, 1)
	stand(t.Context(), d, 0, request("k"), turns)
	inLine(t, admin, "k", 1)
	if errs := d.RenewBatch(t.Context(), []driver.Hold{first}); errs[0] != nil {
		t.Error(errs)
	}
	if _, err := d.Inspect(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if all, err := d.List(t.Context(), "", 10); err != nil || len(all) != 1 {
		t.Error(all, err)
	}
	released(t, d, first, driver.ReleasedOK)
	got := <-turns
	if got.err != nil {
		t.Fatal(got.err)
	}
	if out, err := d.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("warned:\n%s", &log)
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "solotick", "resetchannels", "-zadd").Err(); err != nil {
		t.Fatal(err)
	}
	poor := h.New(t).(closing)
	defer func() { _ = poor.Close() }()
	if _, err := poor.Acquire(t.Context(), request("z")); err != nil {
		t.Error(err)
	}
	poor.Checked()
	if got := log.String(); !strings.Contains(got, "PUBLISH ZADD") {
		t.Errorf("missing privileges are not told:\n%s", got)
	}
}

func TestEvictionIsWarnedAboutOnce(t *testing.T) {
	server := testenv.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	var log logs
	d := process(t, server.Addr(), 0, log.option())
	for range 3 {
		warm(t, d)
	}
	if got := log.String(); strings.Count(got, "noeviction") != 1 || !strings.Contains(got, "allkeys-lru") {
		t.Errorf("logged:\n%s", got)
	}
}

const password = "kanarienvogel-4711"

func TestPasswordIsNotPrinted(t *testing.T) {
	server := testenv.Redis(t, "--requirepass", "another")
	var log logs
	cfg := redislock.PluginConfig{Addrs: []string{server.Addr()}, Password: secret.New(password)}
	d, err := openPlugin(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := locker(t, d, locks.Config{})
	_, err = l.TryAcquire(t.Context(), "k")
	if !errors.Is(err, locks.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("a wrong password: %v", err)
	}
	_, err2 := l.List(t.Context(), "", 1)
	if text := fmt.Sprintf("%v %+v %#v %v %v %s", err, cfg, cfg, cfg, err2, &log); strings.Contains(text, password) {
		t.Errorf("printed: %s", text)
	}
}

func openPlugin(cfg redislock.PluginConfig) (driver.Driver, error) {
	r, err := locks.NewRegistry(redislock.Plugin())
	if err != nil {
		return nil, err
	}
	return r.Open(context.Background(), "redis", func(into any) error {
		*into.(*redislock.PluginConfig) = cfg
		return nil
	})
}

func TestBadSettingsAreRefused(t *testing.T) {
	here := []string{"127.0.0.1:6379"}
	for want, cfg := range map[string]redislock.PluginConfig{
		"addrs: there are none":            {},
		"addrs: several":                   {Addrs: []string{"a:1", "b:1"}},
		"write it as host:port":            {Addrs: []string{"localhost"}},
		"plain text":                       {Addrs: []string{"redis.example.org:6379"}, Password: secret.New(password)},
		"10.0.0.1":                         {Addrs: []string{"10.0.0.1:6379"}, SentinelMaster: "m", SentinelPassword: secret.New(password)},
		"sentinel_master: a cluster":       {Addrs: here, Cluster: true, SentinelMaster: "m"},
		"db: 3":                            {Addrs: here, Cluster: true, DB: 3},
		"db: -1":                           {Addrs: here, DB: -1},
		"cert_file and key_file":           {Addrs: here, TLS: transport.TLS{CertFile: "x"}},
		"tls.ca_file":                      {Addrs: here, TLS: transport.TLS{CAFile: "/does/not/exist"}},
		"prefix":                           {Addrs: here, Prefix: "{a}"},
		"WAIT cannot be sent to the right": {Addrs: here, Cluster: true, Replicas: 1},
		"replicas: -1":                     {Addrs: here, Replicas: -1},
	} {
		d, err := openPlugin(cfg)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", want, err)
		}
		if d != nil {
			t.Errorf("%s: a driver came with the error", want)
		}
	}
	for _, cfg := range []redislock.PluginConfig{
		{Addrs: []string{"redis.example.org:6379"}, Password: secret.New(password), AllowPlaintext: true},
		{Addrs: []string{"redis.example.org:6379"}, Password: secret.New(password), TLS: transport.TLS{Enabled: true}},
		{Addrs: []string{"localhost:6379"}, Password: secret.New(password)},
		{Addrs: []string{"[::1]:6379"}, Password: secret.New(password)},
	} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := redislock.NewDriver(nil); err == nil {
		t.Error("a nil client was taken")
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	if _, err := redislock.New(ring, nil); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a ring: %v", err)
	}
	rdb := client("127.0.0.1:1", 0)
	defer func() { _ = rdb.Close() }()
	if _, err := redislock.New(rdb, &locks.Config{TTL: 10 * time.Millisecond}); !errors.Is(err, locks.ErrInvalid) {
		t.Errorf("a TTL of 10 ms: %v", err)
	}
}

func TestUnreachableServerIsUnavailableSoon(t *testing.T) {
	d, err := openPlugin(redislock.PluginConfig{Addrs: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	l := locker(t, d, locks.Config{})
	start := time.Now()
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("told after %v", took)
	}
}

func TestKeysInRedis(t *testing.T) {
	s := testenv.SharedRedis(t)
	d := process(t, s.Addr, s.DB, redislock.WithPrefix("a*[b]?\\:"))
	admin := console(t, s.Addr, s.DB)
	names := []string{"lock:{x}", "lock:%7Bx%7D", "lock:}x{", "lock:*", "lock:a b"}
	for _, name := range names {
		hold(t, d, request(name))
		if n := admin.Exists(t.Context(), redislock.RedisKey("a*[b]?\\:", name)).Val(); n != 1 {
			t.Errorf("%q has no record", name)
		}
	}
	all, err := d.List(t.Context(), "lock:", 10)
	if err != nil || len(all) != len(names) {
		t.Errorf("List = %v, %v", all, err)
	}
	if all, err = d.List(t.Context(), "lock:{", 10); err != nil || len(all) != 1 || all[0].Key != "lock:{x}" {
		t.Errorf("List = %v, %v", all, err)
	}
	turns := make(chan turn, 1)
	stand(t.Context(), d, 0, request("lock:{x}"), turns)
	inLineOf(t, admin, redislock.RedisKey("a*[b]?\\:", "lock:{x}"), 1)
	if _, err := d.ForceRelease(t.Context(), "lock:{x}"); err != nil {
		t.Fatal(err)
	}
	if got := <-turns; got.err != nil {
		t.Error(got.err)
	}
}
