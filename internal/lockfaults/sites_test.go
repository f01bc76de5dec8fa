package lockfaults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
)

// shortTTL is the TTL of all. A process of a loaded machine still renews in time.
const shortTTL = 2 * time.Second

// site is a backend with its servers, and what can be done to them.
type site struct {
	driver string
	ttl    time.Duration
	addrs  []string // of the servers; none where a backend is a file
	part   func(addrs []string) string
	broken string // given to the processes, see broken

	down, up func() // kill the servers (as many as it takes), and start them again
	restart  func() // kill and start one
	remove   func(tb testing.TB, key string)
	flush    func(tb testing.TB) // nil: there is no such thing
	// leftovers are what is at the servers of locks that are held or waited for, also
	// what List does not know of.
	leftovers func(tb testing.TB) []string
	lingers   time.Duration // a dead process's traces outlast its TTL by as much at most
	// keepsFrozen says that a frozen holder's key is nobody else's for longer than its
	// TTL, as a session lock is.
	keepsFrozen bool
	// blocked says that nobody can write, because a frozen process is in the middle of it.
	// Nil where that cannot be.
	blocked func() bool
}

// config is what a process's configuration file says.
func (s site) config(addrs []string) string {
	// A release may take its time: who gives back at the end of a test is not in a hurry.
	timing := fmt.Sprintf("{ttl: %v, margin: %v, renew_interval: %v, release_timeout: %v}", s.ttl, s.ttl/5, min(s.ttl/4, time.Second), patience/3)
	if os.Getenv("LOCKFAULTS_MARGIN") == "default" {
		timing = fmt.Sprintf("{ttl: %v}", s.ttl)
	}
	return fmt.Sprintf("driver: %s\nlocks: %s\npart: %s\n", s.driver, timing, s.part(addrs))
}

// interval is that of renewals at the latest.
func (s site) interval() time.Duration { return s.ttl/3 + s.ttl/30 }

// sites are the backends. Mode row of the SQL ones is not among them: its locks end
// with their connection, and so before the holder can know.
var sites = []struct {
	name string
	open func(t *testing.T) site
}{
	// Those that take longest begin.
	{"postgres advisory", func(t *testing.T) site { return postgresSite(t, "advisory") }},
	{"mariadb advisory", func(t *testing.T) site { return mariadbSite(t, "advisory") }},
	{"etcd", etcdSite},
	{"zookeeper", zookeeperSite},
	{"redlock", redlockSite},
	{"sqlite", sqliteSite},
	{"postgres lease", func(t *testing.T) site { return postgresSite(t, "lease") }},
	{"mariadb lease", func(t *testing.T) site { return mariadbSite(t, "lease") }},
	{"redis", func(t *testing.T) site { return redisSite(t, false) }},
	{"redis fair", func(t *testing.T) site { return redisSite(t, true) }},
}

// servers fills in what every kind of server can do.
func (s site) servers(quorum int, servers ...*testenv.Server) site {
	for _, one := range servers {
		s.addrs = append(s.addrs, one.Addr())
	}
	s.down = func() {
		for _, one := range servers[:quorum] {
			one.Kill()
		}
	}
	s.up = func() {
		for _, one := range servers[:quorum] {
			one.Restart()
		}
	}
	s.restart = func() { servers[0].Kill(); servers[0].Restart() }
	return s
}

func within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// database is an administrator's connection.
func database(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func execute(tb testing.TB, db *sql.DB, statement string, args ...any) {
	tb.Helper()
	// The first statement after a restart of the server meets a dead connection.
	if err := db.PingContext(within(tb)); err != nil {
		tb.Fatal(err)
	}
	if _, err := db.ExecContext(within(tb), statement, args...); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

func sqliteSite(t *testing.T) site {
	path := filepath.Join(t.TempDir(), "locks.db")
	db := database(t, "sqlite", path+"?_pragma=busy_timeout(30000)")
	var lock *sql.Conn
	return site{
		driver: "sqlite", ttl: shortTTL,
		part: func([]string) string { return fmt.Sprintf("{dsn: %q}", path) },
		// Somebody keeps the file locked: the nearest thing to a server that is away.
		down: func() {
			var err error
			if lock, err = db.Conn(context.Background()); err == nil {
				_, err = lock.ExecContext(context.Background(), "BEGIN EXCLUSIVE")
			}
			if err != nil {
				t.Error(err)
			}
		},
		up: func() {
			if _, err := lock.ExecContext(context.Background(), "ROLLBACK"); err != nil {
				t.Error(err)
			}
			_ = lock.Close()
		},
		blocked: func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			conn, err := db.Conn(ctx)
			if err == nil {
				defer func() { _ = conn.Close() }()
				_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
			}
			if err == nil {
				_, err = conn.ExecContext(context.Background(), "ROLLBACK")
			}
			return err != nil
		},
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			execute(tb, db, "DELETE FROM solotick_locks WHERE name = ?", key)
		},
	}
}

func postgresSite(t *testing.T, mode string) site {
	server := testenv.Postgres(t)
	db := database(t, "pgx", server.DSN())
	return site{
		driver: "postgres", ttl: shortTTL,
		part: func(addrs []string) string {
			return fmt.Sprintf("{dsn: %q, mode: %s}", server.DSNAt(addrs[0]), mode)
		},
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			execute(tb, db, "DELETE FROM solotick_locks WHERE name = $1", key)
		},
		keepsFrozen: mode == "advisory",
	}.servers(1, server.Server)
}

func mariadbSite(t *testing.T, mode string) site {
	server := testenv.MariaDB(t)
	db := database(t, "mysql", server.DSN())
	return site{
		driver: "mariadb", ttl: shortTTL,
		part: func(addrs []string) string {
			return fmt.Sprintf("{dsn: %q, mode: %s}", server.DSNAt(addrs[0]), mode)
		},
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			execute(tb, db, "DELETE FROM solotick_locks WHERE name = ?", []byte(key))
		},
		keepsFrozen: mode == "advisory",
	}.servers(1, server.Server)
}

// redisClient is an administrator's.
func redisClient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// redisKeys are the keys, but for counters of fences, which stay for a day, and the
// line of a fair lock, which goes by itself when nobody has been heard of for a while.
func redisKeys(tb testing.TB, rdbs ...*redis.Client) (all []string) {
	tb.Helper()
	for _, rdb := range rdbs {
		keys, err := rdb.Keys(within(tb), "*").Result()
		if err != nil {
			tb.Fatal(err)
		}
		for _, key := range keys {
			kind := key[len(key)-2:]
			if kind == ":f" || kind == "\x00f" {
				continue
			}
			left, err := rdb.PTTL(within(tb), key).Result()
			if err != nil {
				tb.Fatal(err)
			}
			if (kind != ":q" && kind != ":h") || left < 0 || left > time.Minute {
				all = append(all, fmt.Sprintf("%s for %v", key, left))
			}
		}
	}
	return all
}

func redisSite(t *testing.T, fair bool) site {
	server := testenv.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := redisClient(t, server.Addr())
	return site{
		driver: "redis", ttl: shortTTL,
		part: func(addrs []string) string { return fmt.Sprintf("{addrs: [%q], fair: %v}", addrs[0], fair) },
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			k := redislock.RedisKey(redislock.DefaultPrefix, key)
			if err := rdb.Del(within(tb), k, k+":f").Err(); err != nil {
				tb.Fatal(err)
			}
		},
		flush: func(tb testing.TB) {
			tb.Helper()
			if err := rdb.FlushAll(within(tb)).Err(); err != nil {
				tb.Fatal(err)
			}
		},
		leftovers: func(tb testing.TB) []string { tb.Helper(); return redisKeys(tb, rdb) },
	}.servers(1, server)
}

func redlockSite(t *testing.T) site {
	nodes := testenv.Redises(t, 3, "--appendonly", "yes", "--appendfsync", "always")
	rdbs := make([]*redis.Client, len(nodes))
	for i, node := range nodes {
		rdbs[i] = redisClient(t, node.Addr())
	}
	return site{
		driver: "redlock", ttl: 2 * shortTTL,
		part: func(addrs []string) string {
			// A node that has just started grants nothing for as long as max_ttl.
			return fmt.Sprintf("{addrs: [%q, %q, %q], max_ttl: 4s}", addrs[0], addrs[1], addrs[2])
		},
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			for _, rdb := range rdbs {
				if err := rdb.Del(within(tb), redlock.DefaultPrefix+key, redlock.DefaultPrefix+key+"\x00f").Err(); err != nil {
					tb.Fatal(err)
				}
			}
		},
		flush: func(tb testing.TB) {
			tb.Helper()
			for _, rdb := range rdbs {
				if err := rdb.FlushAll(within(tb)).Err(); err != nil {
					tb.Fatal(err)
				}
			}
		},
		leftovers: func(tb testing.TB) []string { tb.Helper(); return redisKeys(tb, rdbs...) },
		lingers:   2 * time.Second,
	}.servers(2, nodes...)
}

func etcdSite(t *testing.T) site {
	server := testenv.Etcd(t, 1)[0]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, DialTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	const prefix = "solotick/locks/"
	return site{
		driver: "etcd", ttl: shortTTL, // the server raises shorter ones to that
		part: func(addrs []string) string { return fmt.Sprintf("{endpoints: [%q]}", addrs[0]) },
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			// The first of those in line is the holder.
			all, err := client.Get(within(tb), prefix+key+"/", clientv3.WithFirstCreate()...)
			if err != nil || len(all.Kvs) == 0 {
				tb.Fatalf("no key of %s: %v", key, err)
			}
			if _, err := client.Delete(within(tb), string(all.Kvs[0].Key)); err != nil {
				tb.Fatal(err)
			}
		},
		leftovers: func(tb testing.TB) (all []string) {
			tb.Helper()
			keys, err := client.Get(within(tb), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				tb.Fatal(err)
			}
			for _, kv := range keys.Kvs {
				all = append(all, string(kv.Key))
			}
			leases, err := client.Leases(within(tb))
			if err != nil {
				tb.Fatal(err)
			}
			for _, l := range leases.Leases {
				all = append(all, fmt.Sprintf("lease %x", l.ID))
			}
			return all
		},
		lingers: 2 * time.Second, // a restart starts the TTL of a lease anew
	}.servers(1, server)
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func zookeeperSite(t *testing.T) site {
	server := testenv.ZooKeeper(t)
	conn, events, err := zk.Connect([]string{server.Addr()}, 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		for range events {
			continue
		}
	})
	const prefix = "/solotick/locks"
	children := func(tb testing.TB, path string) []string {
		tb.Helper()
		for end := time.Now().Add(patience); ; {
			names, _, err := conn.Children(path)
			if err == nil || errors.Is(err, zk.ErrNoNode) {
				return names
			}
			if time.Now().After(end) {
				tb.Fatal(err)
			}
		}
	}
	return site{
		driver: "zookeeper", ttl: shortTTL, // two thirds of the session's timeout
		part: func(addrs []string) string {
			return fmt.Sprintf("{servers: [%q], session_timeout: 3s}", addrs[0])
		},
		remove: func(tb testing.TB, key string) {
			tb.Helper()
			names := children(tb, prefix+"/"+key)
			if len(names) == 0 {
				tb.Fatalf("no node of %s", key)
			}
			// The counter of ten digits at the end says who is the first in line.
			slices.SortFunc(names, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
			if err := conn.Delete(prefix+"/"+key+"/"+names[0], -1); err != nil {
				tb.Fatal(err)
			}
		},
		leftovers: func(tb testing.TB) (all []string) {
			tb.Helper()
			for _, key := range children(tb, prefix) {
				all = append(all, children(tb, prefix+"/"+key)...)
			}
			return all
		},
		lingers: 4 * time.Second, // the rest of the session's timeout, and the server's ticks
	}.servers(1, server)
}
