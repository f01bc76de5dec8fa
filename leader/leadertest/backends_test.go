package leadertest_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	leaderdriver "github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/redlock"
	"github.com/solotick/solotick/locks/sqllock/mysql"
	"github.com/solotick/solotick/locks/sqllock/postgres"
	"github.com/solotick/solotick/locks/zklock"
)

// backend is a lock backend on real servers.
type backend struct {
	ttl      time.Duration
	handover time.Duration
	plugin   func() locks.Plugin
	// place is what a test has of the servers: their addresses, and what a process's
	// configuration says with proxies in their places.
	place func(t *testing.T) place
}

type place struct {
	addrs  []string
	config func(addrs []string) string
}

var backends = map[string]backend{
	"redis": {2 * time.Second, time.Second, redislock.Plugin, func(t *testing.T) place {
		space := testenv.SharedRedis(t)
		return place{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{addrs: [%q], db: %d}", a[0], space.DB) }}
	}},
	"redlock": {4 * time.Second, 2 * time.Second, redlock.Plugin, func(t *testing.T) place {
		var addrs []string
		for _, node := range testenv.Redises(t, 3, "--save", "") {
			addrs = append(addrs, node.Addr())
		}
		return place{addrs, func(a []string) string {
			return fmt.Sprintf("{addrs: [%q, %q, %q], max_ttl: 4s}", a[0], a[1], a[2])
		}}
	}},
	"etcd": {2 * time.Second, time.Second, etcdlock.Plugin, func(t *testing.T) place {
		space := testenv.SharedEtcd(t)
		return place{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{endpoints: [%q], prefix: %q}", a[0], space.Name) }}
	}},
	"zookeeper": {2 * time.Second, time.Second, zklock.Plugin, func(t *testing.T) place {
		space := testenv.SharedZooKeeper(t)
		return place{[]string{space.Addr}, func(a []string) string {
			return fmt.Sprintf("{servers: [%q], session_timeout: 3s, prefix: %q}", a[0], "/"+space.Name)
		}}
	}},
	"postgres": {4 * time.Second, time.Second, postgres.Plugin, func(t *testing.T) place {
		space := testenv.SharedPostgres(t)
		return place{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{dsn: %q, max_conns: 4}", space.DSNAt(a[0])) }}
	}},
	"mariadb": {4 * time.Second, time.Second, func() locks.Plugin { return mysql.Plugins()[0] }, func(t *testing.T) place {
		space := testenv.SharedMySQL(t)
		return place{[]string{space.Addr}, func(a []string) string { return fmt.Sprintf("{dsn: %q, max_conns: 4}", space.DSNAt(a[0])) }}
	}},
}

// openAt opens the backend as a process of its own would, through proxies. Cut makes
// them swallow everything.
func (b backend) openAt(t *testing.T, at place) (d driver.Driver, cut func() (heal func())) {
	t.Helper()
	var proxies []*faultproxy.Proxy
	var addrs []string
	for _, addr := range at.addrs {
		p := faultproxy.Start(t, addr)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	doc := strictyaml.Parse([]byte("part: "+at.config(addrs)), strictyaml.Options{})
	var c struct {
		Part strictyaml.Raw `yaml:"part"`
	}
	doc.Decode(&c)
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	d, err := b.plugin().Open(t.Context(), c.Part.Decode)
	if err != nil {
		t.Fatal(err)
	}
	return d, func() func() {
		for _, p := range proxies {
			p.BlackHole(faultproxy.Both)
		}
		return func() {
			for _, p := range proxies {
				p.Pass()
			}
		}
	}
}

func (b backend) locker(t *testing.T, at place, ttl time.Duration) (*locks.Locker, func() func()) {
	t.Helper()
	d, cut := b.openAt(t, at)
	l, err := locks.New(d, locks.Config{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLocker(t, l) })
	return l, cut
}

func (b backend) depose(t *testing.T, at place, election string) {
	t.Helper()
	l, _ := b.locker(t, at, b.ttl)
	if _, err := l.ForceRelease(t.Context(), election); err != nil {
		t.Fatal(err)
	}
}

func TestLocksOnServers(t *testing.T) {
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := b.place(t)
			leadertest.Run(t, leadertest.Harness{
				TTL: b.ttl, Handover: b.handover, Priorities: true,
				New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
					l, cut := b.locker(t, at, cfg.TTL)
					e, err := leader.FromLocks(l, election, cfg)
					if err != nil {
						t.Fatal(err)
					}
					return leadertest.Candidate{Elector: e, Cut: cut}
				},
				Depose: func(t *testing.T, election string) { b.depose(t, at, election) },
			})
		})
	}
}

// The elections that etcdleader and zkleader make: of the drivers with a queue.
func TestElectionsOnServers(t *testing.T) {
	for _, name := range []string{"etcd", "zookeeper"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := backends[name]
			at := b.place(t)
			leadertest.Run(t, leadertest.Harness{
				TTL: b.ttl, Handover: b.handover, Pushed: true,
				New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate {
					d, cut := b.openAt(t, at)
					t.Cleanup(func() { _ = d.(io.Closer).Close() }) // one that is cut off cannot end its session
					e, err := leader.New(leaderdriver.FromQueue(d.(leaderdriver.QueueLock)), election, cfg)
					if err != nil {
						t.Fatal(err)
					}
					return leadertest.Candidate{Elector: e, Cut: cut}
				},
				Depose: func(t *testing.T, election string) { b.depose(t, at, election) },
			})
		})
	}
}

func TestSharesOnServers(t *testing.T) {
	for name, b := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := b.place(t)
			leadertest.RunShares(t, leadertest.SharesHarness{
				TTL: b.ttl, Short: name != "redis", Pushed: name == "etcd" || name == "zookeeper",
				Locker: func(t *testing.T) (*locks.Locker, func() func()) { return b.locker(t, at, b.ttl) },
			})
		})
	}
}
