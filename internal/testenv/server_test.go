//go:build linux

package testenv_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/solotick/solotick/internal/testenv"
)

const (
	enough = 2 * time.Minute        // for what must happen
	brief  = 300 * time.Millisecond // for what must not
)

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Each ping does something real over its own protocol, with a client of its own.

func pingRedis(ctx context.Context, addr string) error {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1})
	return errors.Join(c.Incr(ctx, "n").Err(), c.Close())
}

func pingEtcd(ctx context.Context, addr string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	_, err = c.Put(ctx, "n", "1")
	return errors.Join(err, c.Close())
}

func pingZooKeeper(ctx context.Context, addr string) error {
	c, events, err := zk.Connect([]string{addr}, 20*time.Second, zk.WithLogger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	if err != nil {
		return err
	}
	defer func() {
		c.Close()
		for range events { // until the client's goroutines have ended
			continue
		}
	}()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				_, _, err := c.Exists("/")
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func pingSQL(driver string, dsn func(addr string) string) func(context.Context, string) error {
	return func(ctx context.Context, addr string) error {
		db, err := sql.Open(driver, dsn(addr))
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS n (id INT)")
		return errors.Join(err, db.Close())
	}
}

func TestServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every server")
	}
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(t *testing.T) (*testenv.Server, func(context.Context, string) error){
		"Redis": func(t *testing.T) (*testenv.Server, func(context.Context, string) error) {
			return testenv.Redis(t), pingRedis
		},
		"etcd": func(t *testing.T) (*testenv.Server, func(context.Context, string) error) {
			return testenv.Etcd(t, 1)[0], pingEtcd
		},
		"ZooKeeper": func(t *testing.T) (*testenv.Server, func(context.Context, string) error) {
			return testenv.ZooKeeper(t), pingZooKeeper
		},
		"PostgreSQL": func(t *testing.T) (*testenv.Server, func(context.Context, string) error) {
			d := testenv.Postgres(t)
			return d.Server, pingSQL("pgx", d.DSNAt)
		},
		"MariaDB": func(t *testing.T) (*testenv.Server, func(context.Context, string) error) {
			d := testenv.MariaDB(t)
			return d.Server, pingSQL("mysql", d.DSNAt)
		},
	}
	for name, open := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pids []int
			var addr, folder string
			t.Run("life", func(t *testing.T) {
				s, ping := open(t)
				addr, folder = s.Addr(), s.Folder()
				mustPing := func() {
					t.Helper()
					if err := ping(within(t, enough), addr); err != nil {
						t.Fatal(err)
					}
				}
				remember := func() int {
					pids = append(pids, s.Pid())
					pids = append(pids, testenv.Descendants(s.Pid())...)
					return s.Pid()
				}
				mustPing()
				first := remember()

				s.Pause()
				answer := make(chan error, 1)
				go func() { answer <- ping(within(t, enough), addr) }()
				select {
				case err := <-answer:
					t.Errorf("a paused server answered, or the client gave up: %v", err)
					answer <- nil
				case <-time.After(brief):
				}
				s.Resume()
				if err := <-answer; err != nil {
					t.Errorf("a resumed server did not answer: %v", err)
				}

				s.Kill()
				awaitGone(t, pids...)
				mustRefuse(t, addr)

				s.Restart()
				mustPing()
				if second := remember(); second == first {
					t.Errorf("process %d is the same after a restart", second)
				}

				s.Pause()
				s.Stop() // a paused one too
				awaitGone(t, pids...)
				mustRefuse(t, addr)

				s.Restart()
				s.Restart() // one that runs
				mustPing()
				remember()
				if s.Addr() != addr || s.Folder() != folder {
					t.Errorf("address %s and folder %s after restarts, want %s and %s", s.Addr(), s.Folder(), addr, folder)
				}
			})
			awaitGone(t, pids...)
			mustRefuse(t, addr)
			if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v, want it gone", folder, err)
			}
		})
	}
}

// awaitGone waits until none of the processes is there. A zombie is gone: who
// adopted it decides when to reap it.
func awaitGone(t *testing.T, pids ...int) {
	t.Helper()
	ctx := within(t, enough)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
			_, there := testenv.ParentOf(pid)
			return !there
		})
		if len(left) == 0 {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("processes %v of %v have not ended", left, pids)
		}
	}
}

func mustRefuse(t *testing.T, addr string) {
	t.Helper()
	var dialer net.Dialer
	c, err := dialer.DialContext(within(t, enough), "tcp", addr)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial %s: %v, want refused", addr, err)
	}
}

func TestRedises(t *testing.T) {
	servers := testenv.Redises(t, 5, "--appendonly", "yes")
	seen := map[string]bool{}
	for _, s := range servers {
		seen[s.Addr()] = true
		if err := pingRedis(within(t, enough), s.Addr()); err != nil {
			t.Error(err)
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d addresses, want 5", len(seen))
	}
	// The further arguments are in force.
	servers[0].Kill()
	servers[0].Restart()
	c := redis.NewClient(&redis.Options{Addr: servers[0].Addr()})
	defer func() { _ = c.Close() }()
	if n, err := c.Get(within(t, enough), "n").Int(); n != 1 || err != nil {
		t.Errorf("after a kill: %d, %v, want 1 from the append-only file", n, err)
	}
}

func TestRedisSentinel(t *testing.T) {
	set := testenv.StartRedisSentinel(t)
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: set.Name, SentinelAddrs: set.Addrs(), MaxRetries: -1})
	defer func() { _ = c.Close() }()
	ctx := within(t, enough)
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Wait(ctx, 1, enough/2).Result(); n != 1 || err != nil {
		t.Fatalf("WAIT: %d, %v", n, err)
	}
	set.Master.Kill()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		addr, err := askMaster(ctx, set)
		if err == nil && addr == set.Replica.Addr() {
			break
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("master is %s, %v, want the replica %s", addr, err, set.Replica.Addr())
		}
	}
	r := redis.NewClient(&redis.Options{Addr: set.Replica.Addr()})
	defer func() { _ = r.Close() }()
	if got, err := r.Get(ctx, "k").Result(); got != "v" || err != nil {
		t.Errorf("the promoted replica has %q, %v", got, err)
	}
	if err := r.Set(ctx, "k", "w", 0).Err(); err != nil {
		t.Errorf("the promoted replica refuses a write: %v", err)
	}
}

func askMaster(ctx context.Context, set *testenv.RedisSentinel) (string, error) {
	s := redis.NewSentinelClient(&redis.Options{Addr: set.Sentinels[0].Addr()})
	defer func() { _ = s.Close() }()
	at, err := s.GetMasterAddrByName(ctx, set.Name).Result()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(at[0], at[1]), nil
}

func TestRedisCluster(t *testing.T) {
	nodes := testenv.RedisCluster(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr()}})
	defer func() { _ = c.Close() }()
	ctx := within(t, enough)
	for i := range 100 {
		if err := c.Set(ctx, fmt.Sprint("k", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range nodes {
		one := redis.NewClient(&redis.Options{Addr: s.Addr()})
		if n, err := one.DBSize(ctx).Result(); n == 0 || err != nil {
			t.Errorf("%s has %d keys, %v, want a share", s.Addr(), n, err)
		}
		_ = one.Close()
	}
}

func TestEtcdMembers(t *testing.T) {
	members := testenv.Etcd(t, 3)
	ctx := within(t, enough)
	// Two of three go on without the third, and it comes back.
	members[0].Kill()
	members[1].AwaitReady()
	members[2].AwaitReady()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{members[1].Addr(), members[2].Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	members[0].Restart()
	back, err := clientv3.New(clientv3.Config{Endpoints: []string{members[0].Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = back.Close() }()
	if got, err := back.Get(ctx, "k"); err != nil || got.Count != 1 {
		t.Errorf("the restarted member has %+v, %v", got, err)
	}
}

func TestWrongPasswordIsRefused(t *testing.T) {
	ctx := within(t, enough)
	for driver, space := range map[string]testenv.Space{"pgx": testenv.SharedPostgres(t), "mysql": testenv.SharedMySQL(t)} {
		wrong := func(addr string) string { return replacePassword(space.DSNAt(addr)) }
		if err := pingSQL(driver, wrong)(ctx, space.Addr); err == nil {
			t.Errorf("%s: connected with a wrong password", driver)
		}
	}
}

func TestBrokenStartShowsTheLog(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	began := time.Now()
	err := testenv.StartBroken(t)
	if err == nil || !containsAll(err.Error(), "not ready", "ended", "no-such-directive") {
		t.Errorf("error %v, want one that shows what the server printed", err)
	}
	if took := time.Since(began); took > enough {
		t.Errorf("it took %v to see that the process had ended", took)
	}
}

func TestMissingServer(t *testing.T) {
	_, err := testenv.Find("no-such-server", "/no/such/*/server")
	if err == nil || !containsAll(err.Error(), "no-such-server", "make deps") {
		t.Fatalf("error %v, want one that names the program and the remedy", err)
	}
	for require, want := range map[string]string{"1": "failed", "": "skipped"} {
		t.Setenv("SOLOTICK_REQUIRE_SERVICES", require)
		r := &recorder{TB: t}
		testenv.SkipOrFail(r, err)
		if r.outcome != want {
			t.Errorf("with %q: %q, want %q", require, r.outcome, want)
		}
	}
	r := &recorder{TB: t}
	testenv.SkipOrFail(r, io.EOF) // whatever is not a missing server fails anyway
	if r.outcome != "failed" {
		t.Errorf("a failed start %s the test", r.outcome)
	}
}

// recorder is a test that goes on.
type recorder struct {
	testing.TB
	outcome string
}

func (r *recorder) Skip(...any) { r.set("skipped") }

func (r *recorder) Fatal(...any) { r.set("failed") }

func (r *recorder) set(outcome string) {
	if r.outcome == "" {
		r.outcome = outcome
	}
}
