package redisstream_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/idempotent/message"
	"github.com/solotick/solotick/idempotent/redisstream"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // the client's own log of what tests break on purpose
	// A client that was closed looks up to a second later whether it may stop dialling.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func client(t *testing.T, addr string, db int) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, DB: db, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

func publisher(t *testing.T, rdb redis.UniversalClient, cfg redisstream.Config) *redisstream.Publisher {
	t.Helper()
	p, err := redisstream.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestMessagesBecomeEntries(t *testing.T) {
	s := testenv.SharedRedis(t)
	proxy := faultproxy.Start(t, s.Addr)
	rdb := client(t, proxy.Addr(), s.DB)
	p := publisher(t, rdb, redisstream.Config{Stream: func(topic string) string { return "shop:" + topic }})
	for range 2 { // the connection is open then
		if err := errors.Join(p.Publish(t.Context(), []message.Message{{ID: "0", Topic: "warm"}})...); err != nil {
			t.Fatal(err)
		}
	}
	all := []message.Message{
		{ID: "1", Topic: "orders", Key: "käse", Payload: []byte{0, 255, '\n'}, Headers: map[string]string{"a": "ü"}},
		{ID: "2", Topic: "orders"},
		{ID: "3", Topic: "mails", Payload: []byte("x")},
		{ID: "", Topic: "mails"}, // the outbox lets none such in; here it is delivered as it is
	}
	before := proxy.Stats()
	for i, err := range p.Publish(t.Context(), all) {
		if err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got := proxy.Stats().Sub(before); got.RoundTrips != 1 || got.Conns != 0 {
		t.Errorf("%d round trips and %d new connections, want 1 and 0", got.RoundTrips, got.Conns)
	}
	entries, err := rdb.XRange(t.Context(), "shop:orders", "-", "+").Result()
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for i, e := range entries {
		m, err := redisstream.Parse(e.Values)
		want := all[i]
		if err != nil || m.ID != want.ID || m.Topic != want.Topic || m.Key != want.Key || string(m.Payload) != string(want.Payload) || !maps.Equal(m.Headers, want.Headers) {
			t.Errorf("%+v, %v, want %+v", m, err, want)
		}
	}
	entries, err = rdb.XRange(t.Context(), "shop:mails", "-", "+").Result()
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	if _, err := redisstream.Parse(entries[1].Values); err == nil {
		t.Error("an entry without an ID was read")
	}
}

func TestMaxLenBoundsAStream(t *testing.T) {
	s := testenv.SharedRedis(t)
	rdb := client(t, s.Addr, s.DB)
	p := publisher(t, rdb, redisstream.Config{MaxLen: 100})
	msgs := make([]message.Message, 500)
	for i := range msgs {
		msgs[i] = message.Message{ID: fmt.Sprint(i), Topic: "orders"}
	}
	if err := errors.Join(p.Publish(t.Context(), msgs)...); err != nil {
		t.Fatal(err)
	}
	// Redis drops whole nodes of 100 entries.
	if n := rdb.XLen(t.Context(), "orders").Val(); n < 100 || n > 300 {
		t.Errorf("%d entries, the bound is 100", n)
	}
}

// What Redis says of one entry is that entry's affair; whatever else keeps it from
// answering is not.
func TestErrorsTellWhoseFaultItIs(t *testing.T) {
	s := testenv.SharedRedis(t)
	proxy := faultproxy.Start(t, s.Addr)
	rdb := client(t, proxy.Addr(), s.DB)
	p := publisher(t, rdb, redisstream.Config{Timeout: 500 * time.Millisecond})
	if err := rdb.Set(t.Context(), "list", "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	both := []message.Message{{ID: "1", Topic: "list"}, {ID: "2", Topic: "orders"}}
	errs := p.Publish(t.Context(), both)
	if errs[0] == nil || errors.Is(errs[0], message.ErrUnavailable) || !strings.Contains(errs[0].Error(), "WRONGTYPE") || errs[1] != nil {
		t.Errorf("a key of another type: %v", errs)
	}
	for name, fault := range map[string]func() context.Context{
		"black hole": func() context.Context { proxy.BlackHole(faultproxy.ToClient); return t.Context() },
		"refused":    func() context.Context { proxy.Refuse(); return t.Context() },
		"ctx ended": func() context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx
		},
	} {
		ctx := fault()
		for i, err := range p.Publish(ctx, both) {
			if !errors.Is(err, message.ErrUnavailable) {
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		proxy.Pass()
		proxy.Reset()
	}
}

func TestServerThatTakesNothing(t *testing.T) {
	server := testenv.Redis(t, "--requirepass", "kanarienvogel-4711")
	p := publisher(t, client(t, server.Addr(), 0), redisstream.Config{})
	if errs := p.Publish(t.Context(), []message.Message{{ID: "1", Topic: "orders"}}); !errors.Is(errs[0], message.ErrUnavailable) {
		t.Errorf("without a password: %v", errs)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: "kanarienvogel-4711", MaxRetries: -1, ContextTimeoutEnabled: true})
	defer func() { _ = rdb.Close() }()
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if errs := publisher(t, rdb, redisstream.Config{}).Publish(t.Context(), []message.Message{{ID: "1", Topic: "orders"}}); !errors.Is(errs[0], message.ErrUnavailable) || !strings.Contains(errs[0].Error(), "OOM") {
		t.Errorf("out of memory: %v", errs)
	}
	for _, cfg := range []redisstream.Config{{MaxLen: -1}, {Timeout: -1}} {
		if _, err := redisstream.New(rdb, cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	if _, err := redisstream.New(nil, redisstream.Config{}); err == nil {
		t.Error("a nil client was taken")
	}
}

// FuzzValues: what is written is read back the same.
func FuzzValues(f *testing.F) {
	f.Add("id", "topic", "", []byte{}, "", "")
	f.Add("1", "t", "käse", []byte{0, 255}, "Trace-Id", "a b")
	f.Fuzz(func(t *testing.T, id, topic, key string, payload []byte, name, value string) {
		m := message.Message{ID: id, Topic: topic, Key: key, Payload: payload}
		if name != "" {
			m.Headers = map[string]string{name: value}
		}
		values, err := redisstream.Values(m)
		if m.Check() != nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		entry := map[string]any{} // as the client answers it
		for i := 0; i < len(values); i += 2 {
			text, ok := values[i+1].(string)
			if !ok {
				text = string(values[i+1].([]byte))
			}
			entry[values[i].(string)] = text
		}
		got, err := redisstream.Parse(entry)
		if err != nil || got.ID != id || got.Topic != topic || got.Key != key || string(got.Payload) != string(payload) || !maps.Equal(got.Headers, m.Headers) {
			t.Errorf("%+v was read back as %+v, %v", m, got, err)
		}
	})
}
