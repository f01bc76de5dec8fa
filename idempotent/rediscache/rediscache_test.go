package rediscache_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/idempotent/rediscache"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect/sqlcount"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

var _ idempotent.Cache = (*rediscache.Cache)(nil)

func TestMain(m *testing.M) {
	logging.Disable() // the client's own log of what tests break on purpose
	// GORM's cache of prepared statements has a goroutine that nothing ends, and a Redis
	// client that was closed looks up to a second later whether it may stop dialling.
	goleak.VerifyTestMain(testenv.Main(m), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// effect is what calls write.
type effect struct {
	ID   int64
	Note string
}

// world is a database, and a Redis behind a line that fails on command.
type world struct {
	*testing.T
	db    *gorm.DB
	line  *faultproxy.Proxy
	redis *redis.Client // past the line
	cache *rediscache.Cache
	asked atomic.Int64 // requests of the cache
	calls atomic.Int64 // of fn

	mu   sync.Mutex
	lock string // the short lock that was asked for last, as Redis has it
}

// naming tells the world of the locks.
type naming struct {
	*rediscache.Cache
	w *world
}

func (n naming) TryLock(ctx context.Context, key string, ttl time.Duration) (func(ctx context.Context), error) {
	n.w.mu.Lock()
	n.w.lock = rediscache.DefaultPrefix + key
	n.w.mu.Unlock()
	return n.Cache.TryLock(ctx, key, ttl)
}

// take gives the short lock to a stranger, who does not give it back.
func (w *world) take() (name string) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.redis.Set(w.Context(), w.lock, "a stranger's", 0).Err(); err != nil {
		w.Error(err)
	}
	return w.lock
}

// hook counts requests.
type hook struct{ n *atomic.Int64 }

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmd)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func newWorld(t *testing.T, cfg rediscache.Config) *world {
	t.Helper()
	db, err := sqlitedb.Open(filepath.Join(t.TempDir(), "shop.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sqlitedb.Close(db); err != nil {
			t.Error(err)
		}
	})
	s := testenv.SharedRedis(t)
	w := &world{T: t, db: db, line: faultproxy.Start(t, s.Addr), redis: client(t, s.Addr, s.DB)}
	rdb := client(t, w.line.Addr(), s.DB)
	rdb.AddHook(hook{&w.asked})
	if w.cache, err = rediscache.New(rdb, cfg); err != nil {
		t.Fatal(err)
	}
	st, err := gormstore.New(db)
	if err == nil {
		err = errors.Join(st.Migrate(t.Context()), db.AutoMigrate(&effect{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
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

// process is a process of its own: a guard, and how it is called.
type process struct {
	w     *world
	guard *idempotent.Guard
	sent  *sqlcount.Counter
	cfg   idempotent.CacheConfig
}

// process has a cache that may take its time, unless cfg says otherwise: machines
// are slow.
func (w *world) process(cfg idempotent.CacheConfig) *process {
	w.Helper()
	counted, sent := sqlcount.Wrap(w.db)
	st, err := gormstore.New(counted)
	if err != nil {
		w.Fatal(err)
	}
	cfg.Cache, cfg.Secret = naming{w.cache, w}, []byte("0123456789abcdef")
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	return &process{w, idempotent.New(st), sent, cfg}
}

// call buys under the key; it answers the reply and how many statements it sent.
func (p *process) call(name string) (idempotent.Reply[int64], int) {
	p.w.Helper()
	r, n := p.callWith(name, func() {})
	return r, n
}

func (p *process) callWith(name string, inside func()) (idempotent.Reply[int64], int) {
	p.w.Helper()
	before := p.sent.Statements()
	f, err := idempotent.FingerprintOf(name)
	if err != nil {
		p.w.Error(err)
	}
	key := idempotent.Key{Namespace: "test", Job: "buy", Name: name}
	r, err := idempotent.Once(p.w.Context(), p.guard, key, f, func(tx *gorm.DB) (int64, error) {
		p.w.calls.Add(1)
		inside()
		e := effect{Note: name}
		err := tx.Create(&e).Error
		return e.ID, err
	}, idempotent.WithCache(p.cfg))
	if err != nil {
		p.w.Errorf("%s: %v", name, err)
	}
	return r, p.sent.Statements() - before
}

func (w *world) effects(note string) (n int64) {
	w.Helper()
	if err := w.db.Model(&effect{}).Where("note = ?", note).Count(&n).Error; err != nil {
		w.Fatal(err)
	}
	return n
}

// entry is the name of the only result in Redis.
func (w *world) entry() string {
	w.Helper()
	keys, err := w.redis.Keys(w.Context(), rediscache.DefaultPrefix+"*").Result()
	keys = slices.DeleteFunc(keys, func(k string) bool { return strings.HasSuffix(k, ":lock") })
	if err != nil || len(keys) != 1 {
		w.Fatalf("the keys in Redis are %v, %v", keys, err)
	}
	return keys[0]
}

func TestRepeatsCostTheDatabaseNothing(t *testing.T) {
	w := newWorld(t, rediscache.Config{})
	first, n := w.process(idempotent.CacheConfig{}).call("a")
	if first.Replayed || n == 0 {
		t.Errorf("the first: %+v with %d statements", first, n)
	}
	other := w.process(idempotent.CacheConfig{})
	for range 3 {
		r, n := other.call("a")
		if !r.Replayed || r.Value != first.Value || n != 0 {
			t.Errorf("a repeat: %+v with %d statements, want %d and none", r, n, first.Value)
		}
	}
	left := w.redis.PTTL(t.Context(), w.entry()).Val()
	if left > 24*time.Hour || left < 23*time.Hour {
		t.Errorf("the result is kept for %v", left)
	}
	if keys := w.redis.DBSize(t.Context()).Val(); keys != 1 {
		t.Errorf("%d keys: the short lock was not given back", keys)
	}
	w.redis.FlushDB(t.Context())
	w.process(idempotent.CacheConfig{TTL: time.Hour}).call("a")
	if left := w.redis.PTTL(t.Context(), w.entry()).Val(); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the result is kept for %v, want an hour", left)
	}
}

// While the first call is at work, the others wait at the cache and not at the database.
func TestShortLockSparesTheDatabase(t *testing.T) {
	w := newWorld(t, rediscache.Config{})
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	var first idempotent.Reply[int64]
	wg.Go(func() {
		first, _ = w.process(idempotent.CacheConfig{}).callWith("a", func() { close(inside); <-release })
	})
	<-inside
	// The short lock of a call that takes longer than 2 s is free again, and one who got
	// it would go to the database.
	w.take()
	for range 8 {
		wg.Go(func() {
			p := w.process(idempotent.CacheConfig{Patience: time.Minute})
			r, n := p.call("a")
			if !r.Replayed || n != 0 {
				t.Errorf("one that waited: %+v with %d statements", r, n)
			}
		})
	}
	before := w.line.Stats().RoundTrips
	if err := w.line.Await(t.Context(), func(s faultproxy.Stats) bool { return s.RoundTrips > before+40 }); err != nil {
		t.Error(err)
	}
	close(release)
	wg.Wait()
	if first.Replayed || w.calls.Load() != 1 || w.effects("a") != 1 {
		t.Errorf("the first: %+v; %d calls, %d effects", first, w.calls.Load(), w.effects("a"))
	}
}

// Whatever becomes of Redis, in the first call or in a repeat, there is one effect and
// one answer.
func TestRedisIsNeverTheDecider(t *testing.T) {
	for name, fault := range map[string]func(w *world){
		"down":       func(w *world) { w.line.Refuse() },
		"reset":      func(w *world) { w.line.Reset() },
		"black hole": func(w *world) { w.line.BlackHole(faultproxy.Both) },
		"deaf":       func(w *world) { w.line.BlackHole(faultproxy.ToServer) },
		"mute":       func(w *world) { w.line.BlackHole(faultproxy.ToClient) },
		"slow":       func(w *world) { w.line.Delay(faultproxy.ToClient, 200*time.Millisecond) },
		"flushed":    func(w *world) { w.redis.FlushDB(w.Context()) },
		"of another type": func(w *world) {
			for _, key := range w.redis.Keys(w.Context(), "*").Val() {
				w.redis.Del(w.Context(), key)
				w.redis.LPush(w.Context(), key, "x")
			}
		},
		"lying": func(w *world) {
			for _, key := range w.redis.Keys(w.Context(), "*").Val() {
				w.redis.Set(w.Context(), key, strings.Repeat("x", 64)+`{"result":"anNvbgo5OTk="}`, 0)
			}
		},
		"cut short": func(w *world) {
			for _, key := range w.redis.Keys(w.Context(), "*").Val() {
				w.redis.Set(w.Context(), key, w.redis.GetRange(w.Context(), key, 0, 40).Val(), 0)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, rediscache.Config{Pause: time.Nanosecond})
			short := idempotent.CacheConfig{Timeout: 20 * time.Millisecond, Patience: 20 * time.Millisecond}
			known, _ := w.process(idempotent.CacheConfig{}).call("known")
			// Into the first call, when it has the short lock.
			first, _ := w.process(idempotent.CacheConfig{Timeout: short.Timeout}).callWith("new", func() { fault(w) })
			p := w.process(short)
			for want, name := range map[int64]string{known.Value: "known", first.Value: "new"} {
				for range 2 {
					fault(w)
					if r, _ := p.call(name); r.Value != want || !r.Replayed {
						t.Errorf("a repeat of %s: %+v, want %d", name, r, want)
					}
				}
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			values := map[int64]bool{}
			for range 8 {
				wg.Go(func() {
					r, _ := w.process(short).call("many")
					mu.Lock()
					defer mu.Unlock()
					values[r.Value] = true
				})
			}
			fault(w)
			wg.Wait()
			for _, name := range []string{"known", "new", "many"} {
				if n := w.effects(name); n != 1 {
					t.Errorf("%d effects of %s", n, name)
				}
			}
			if len(values) != 1 || w.calls.Load() != 3 {
				t.Errorf("answers %v, %d calls", values, w.calls.Load())
			}
		})
	}
}

// An old copy of Redis, or the value of another key, is not believed.
func TestStaleValueIsNotBelieved(t *testing.T) {
	w := newWorld(t, rediscache.Config{})
	p := w.process(idempotent.CacheConfig{TTL: 50 * time.Millisecond})
	first, _ := p.call("a")
	var name string
	var old []byte
	// A machine that is slow may see the entry only when it is made again.
	for old == nil {
		if keys := w.redis.Keys(t.Context(), "*").Val(); len(keys) == 1 {
			name = keys[0]
			old, _ = w.redis.Get(t.Context(), name).Bytes()
			continue
		}
		p.call("a")
	}
	for w.redis.Exists(t.Context(), name).Val() == 1 { // until its time is over
		<-time.After(10 * time.Millisecond)
	}
	<-time.After(20 * time.Millisecond) // for clocks of two programs that differ
	if err := w.redis.Set(t.Context(), name, old, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if r, n := p.call("a"); r.Value != first.Value || n == 0 {
		t.Errorf("with an old entry: %+v with %d statements, want the database to be asked", r, n)
	}
	w.redis.FlushDB(t.Context())
	long := w.process(idempotent.CacheConfig{})
	long.call("a")
	entry := w.entry()
	second, _ := long.call("b")
	for _, key := range w.redis.Keys(t.Context(), "*").Val() {
		if key != entry { // b's becomes a's
			w.redis.Set(t.Context(), key, w.redis.Get(t.Context(), entry).Val(), 0)
		}
	}
	if r, n := long.call("b"); r.Value != second.Value || n == 0 {
		t.Errorf("with another key's value: %+v with %d statements, want %d from the database", r, n, second.Value)
	}
}

// A short lock that nobody gives back costs Patience, and no more.
func TestLockThatIsNotGivenBack(t *testing.T) {
	w := newWorld(t, rediscache.Config{})
	p := w.process(idempotent.CacheConfig{Patience: time.Millisecond})
	var name string
	p.callWith("a", func() { name = w.take() })
	w.redis.Del(t.Context(), strings.TrimSuffix(name, ":lock"))
	if r, n := p.call("a"); !r.Replayed || n == 0 || w.effects("a") != 1 {
		t.Errorf("%+v with %d statements, %d effects", r, n, w.effects("a"))
	}
	if got := w.redis.Get(t.Context(), name).Val(); got != "a stranger's" {
		t.Errorf("the stranger's lock is %q", got)
	}
}

// After a request that was not answered Redis is left alone for a while.
func TestPauseAfterSilence(t *testing.T) {
	w := newWorld(t, rediscache.Config{Pause: time.Hour})
	p := w.process(idempotent.CacheConfig{Timeout: 20 * time.Millisecond})
	w.line.BlackHole(faultproxy.Both)
	p.call("a")
	w.line.Pass()
	w.line.Reset()
	w.asked.Store(0)
	for range 5 {
		if r, n := p.call("a"); !r.Replayed || n == 0 {
			t.Errorf("%+v with %d statements", r, n)
		}
	}
	if got := w.asked.Load(); got != 0 {
		t.Errorf("%d requests to Redis, which is left alone", got)
	}
	// A caller who gives up is no silence of Redis, and an answer that is an error neither.
	if err := w.redis.LPush(t.Context(), rediscache.DefaultPrefix+"list", "x").Err(); err != nil {
		t.Fatal(err)
	}
	fresh, err := rediscache.New(w.redis, rediscache.Config{Pause: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fresh.Get(gone, "k"); err == nil {
		t.Error("no error of a context that has ended")
	}
	if _, err := fresh.Get(t.Context(), "list"); err == nil {
		t.Error("a list was read as a value")
	}
	if err := fresh.Put(t.Context(), "k", []byte("v"), time.Minute); err != nil {
		t.Error(err)
	}
	if v, err := fresh.Get(t.Context(), "k"); err != nil || string(v) != "v" {
		t.Errorf("Get = %q, %v", v, err)
	}
}

func TestNewRefuses(t *testing.T) {
	patient := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = errors.Join(patient.Close(), cluster.Close(), ring.Close()) }()
	for _, rdb := range []redis.UniversalClient{nil, patient, cluster, ring} {
		if _, err := rediscache.New(rdb, rediscache.Config{}); err == nil {
			t.Errorf("%T was taken", rdb)
		}
	}
	if _, err := rediscache.New(client(t, "127.0.0.1:1", 0), rediscache.Config{Pause: -1}); err == nil {
		t.Error("a negative pause was taken")
	}
}
