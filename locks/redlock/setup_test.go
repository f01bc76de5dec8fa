package redlock_test

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
	"github.com/solotick/solotick/locks/redlock"
)

func TestBadSettingsAreRefused(t *testing.T) {
	nodes := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"}
	for want, make := range map[string]func() ([]redis.UniversalClient, []redlock.Option){
		"nodes: 4": func() ([]redis.UniversalClient, []redlock.Option) { return clients(nodes), nil },
		"nodes: 2": func() ([]redis.UniversalClient, []redlock.Option) { return clients(nodes[:2]), nil },
		"nodes: 1": func() ([]redis.UniversalClient, []redlock.Option) { return clients(nodes[:1]), nil },
		"is node 1 too": func() ([]redis.UniversalClient, []redlock.Option) {
			return clients([]string{nodes[0], nodes[1], nodes[0]}), nil
		},
		"max_ttl": func() ([]redis.UniversalClient, []redlock.Option) {
			return clients(nodes[:3]), []redlock.Option{redlock.WithMaxTTL(time.Millisecond)}
		},
		"prefix": func() ([]redis.UniversalClient, []redlock.Option) {
			return clients(nodes[:3]), []redlock.Option{redlock.WithPrefix("a b")}
		},
		"ContextTimeoutEnabled": func() ([]redis.UniversalClient, []redlock.Option) {
			return append(clients(nodes[:2]), redis.NewClient(&redis.Options{Addr: nodes[2]})), nil
		},
		"*redis.ClusterClient": func() ([]redis.UniversalClient, []redlock.Option) {
			return append(clients(nodes[:2]), redis.NewClusterClient(&redis.ClusterOptions{Addrs: nodes[2:]})), nil
		},
	} {
		cs, opts := make()
		if _, err := redlock.New(cs, nil, opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		for _, c := range cs {
			_ = c.Close()
		}
	}
	const password = "kanarienvogel-4711"
	far := []string{"a.example.org:1", "b.example.org:1", "c.example.org:1"}
	for want, cfg := range map[string]redlock.PluginConfig{
		"addrs: 0":              {},
		"plain text":            {Addrs: far, Password: secret.New(password)},
		"write it as host:port": {Addrs: []string{"a", "b", "c"}},
		"db: -1":                {Addrs: far, DB: -1},
		"max_ttl: 50ms is below 200ms, the shortest TTL, so nothing could be locked; raise it": {Addrs: far, MaxTTL: 50 * time.Millisecond},
		"max_ttl: -1s is below": {Addrs: far, MaxTTL: -time.Second},
		"max_ttl: 48h0m0s; a node that has restarted grants nothing for so long; lower it": {Addrs: far, MaxTTL: 48 * time.Hour},
		"node_timeout: -1s is negative; leave it out":                                      {Addrs: far, NodeTimeout: -time.Second},
		"node_timeout: 1m1s is beyond max_ttl, 1m0s":                                       {Addrs: far, NodeTimeout: 61 * time.Second},
		"ca_file": {Addrs: far, TLS: transport.TLS{CAFile: "/does/not/exist"}},
	} {
		_, err := redlock.Plugin().Open(t.Context(), func(into any) error { *into.(*redlock.PluginConfig) = cfg; return nil })
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprint(err, cfg), password) {
			t.Errorf("%s: %v", want, err)
		}
	}
	d := process(t, nodes[:3], redlock.WithMaxTTL(time.Minute))
	if _, err := d.Acquire(t.Context(), request("k", time.Hour)); !driver.IsNotApplied(err) || !strings.Contains(err.Error(), "max_ttl") {
		t.Errorf("a TTL beyond the longest: %v", err)
	}
}

func TestPasswordIsNotPrintedAndPluginWorks(t *testing.T) {
	const password = "kanarienvogel-4711"
	servers := testenv.Redises(t, 3, "--requirepass", password)
	for _, given := range []string{password, "wrong-" + password} {
		const ttl = 2 * time.Second
		d, err := redlock.Plugin().Open(t.Context(), func(into any) error {
			*into.(*redlock.PluginConfig) = redlock.PluginConfig{Addrs: addrs(servers), Password: secret.New(given), MaxTTL: ttl}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		answered := func(err error) bool {
			if given == password {
				return err == nil
			}
			return err == nil || strings.Contains(err.Error(), "WRONGPASS")
		}
		_, err = d.Acquire(t.Context(), request("k", ttl))
		// The nodes are young, so the right password is refused too at first. A slow one
		// is asked again.
		for end := time.Now().Add(patience); !answered(err) && time.Now().Before(end); <-time.After(50 * time.Millisecond) {
			if strings.Contains(err.Error(), password) {
				break
			}
			_, err = d.Acquire(t.Context(), request("k", ttl))
		}
		if given == password && err != nil || given != password && (err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), password)) {
			t.Errorf("%v", err)
		}
		if err := d.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	}
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
		inside = inside && strings.HasPrefix(text, "+") || strings.HasPrefix(text, "user solotick")
		if inside {
			for word := range strings.FieldsSeq(strings.TrimPrefix(text, "user ")) {
				rule = append(rule, word)
			}
		}
	}
	if len(rule) < 12 {
		t.Fatalf("no rule in doc.go: %v", rule)
	}
	return rule
}

func TestDocumentedPrivilegesAreEnough(t *testing.T) {
	servers := testenv.Redises(t, 3)
	rule := documented(t)
	for _, admin := range admins(t, addrs(servers)) {
		if err := admin.Do(t.Context(), rule...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var log logs
	nodes := make([]redis.UniversalClient, len(servers))
	for i, s := range servers {
		nodes[i] = redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "solotick", Password: "secret", MaxRetries: -1, ContextTimeoutEnabled: true})
	}
	d, err := redlock.NewDriver(nodes, redlock.TrustFirstSight(), redlock.WithNodeTimeout(patience), log.option())
	if err != nil {
		t.Fatal(err)
	}
	c := closing{d, nodes}
	defer func() { _ = c.Close() }()
	h := hold(t, c, request("k", time.Minute))
	if _, err := d.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
	if x, err := d.Inspect(t.Context(), "k"); err != nil || x.Fence != h.Fence {
		t.Error(x, err)
	}
	if all, err := d.List(t.Context(), "", 10); err != nil || len(all) != 1 {
		t.Error(all, err)
	}
	hint, stop, err := d.Wake(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-hint:
		case <-time.After(patience):
			t.Errorf("no hint after %s", what)
		}
	}
	if out, err := d.Release(t.Context(), h); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	told("a release")
	defer stop()
	hold(t, c, request("k", time.Minute))
	if out, err := d.ForceRelease(t.Context(), "k"); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
	told("a forced release")
	d.Checked()
	if log.String() != "" {
		t.Errorf("warned:\n%s", &log)
	}
}

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

func (l *logs) option() redlock.Option {
	return redlock.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

func TestEvictionIsWarnedAboutOnce(t *testing.T) {
	servers := testenv.Redises(t, 3)
	admin := admins(t, addrs(servers))[1]
	for name, value := range map[string]string{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"} {
		if err := admin.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var log logs
	d := process(t, addrs(servers), redlock.WithNodeTimeout(patience), log.option())
	for i := range 3 {
		hold(t, d, request(fmt.Sprint("k", i), time.Minute))
	}
	d.Checked()
	if got := log.String(); strings.Count(got, "noeviction") != 1 || !strings.Contains(got, "allkeys-lru") || !strings.Contains(got, "node=2") {
		t.Errorf("logged:\n%s", got)
	}
}

func TestUnreachableNodesAreUnavailableSoon(t *testing.T) {
	d := open(t, []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"})
	l, err := locks.New(d, locks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.Background()) }()
	start := time.Now()
	if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, locks.ErrUnavailable) {
		t.Error(err)
	}
	if took := time.Since(start); took > patience/2 {
		t.Errorf("told after %v", took)
	}
}
