package e2e

import (
	"fmt"
	"testing"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/store/gormstore"
)

// coordinator is what a case has of the servers that its gates ask.
type coordinator struct {
	proxies []*faultproxy.Proxy
	part    string          // of a replica's file, with the proxies in the servers' places
	server  *testenv.Server // of the case alone, where it is to be stopped
}

// coordinator starts what the case needs; nothing for locks on SQLite.
func (d degradedCase) coordinator(t *testing.T) (co coordinator) {
	t.Helper()
	var place lockPlace
	if d.fault == stopped {
		place, co.server = ownPlace(t, d.backend)
	} else {
		for _, b := range lockBackends {
			if b.name == d.backend && b.place != nil {
				place = b.place(t)
			}
		}
	}
	if place.part == nil {
		return co
	}
	var addrs []string
	for _, addr := range place.addrs {
		co.proxies = append(co.proxies, faultproxy.Start(t, addr))
		addrs = append(addrs, co.proxies[len(co.proxies)-1].Addr())
	}
	co.part = place.part(addrs)
	return co
}

// ownPlace is a server that keeps its port and its data over a stop.
func ownPlace(t *testing.T, backend string) (lockPlace, *testenv.Server) {
	t.Helper()
	one := func(s *testenv.Server, part func(addr string) string) (lockPlace, *testenv.Server) {
		return lockPlace{[]string{s.Addr()}, func(a []string) string { return part(a[0]) }}, s
	}
	dsn := func(d *testenv.Database) (lockPlace, *testenv.Server) {
		return one(d.Server, func(a string) string { return fmt.Sprintf("{dsn: %q, max_conns: 4}", d.DSNAt(a)) })
	}
	switch backend {
	case "redis":
		return one(testenv.Redis(t, "--appendonly", "yes"), func(a string) string { return fmt.Sprintf("{addrs: [%q]}", a) })
	case "etcd":
		return one(testenv.Etcd(t, 1)[0], func(a string) string { return fmt.Sprintf("{endpoints: [%q], prefix: stopped}", a) })
	case "zookeeper":
		return one(testenv.ZooKeeper(t), func(a string) string {
			return fmt.Sprintf("{servers: [%q], session_timeout: %v, prefix: /stopped}", a, lockTTL*3/2)
		})
	case "postgres":
		return dsn(testenv.Postgres(t))
	case "mariadb":
		return dsn(testenv.MariaDB(t))
	}
	t.Fatalf("no server of its own for %s", backend)
	return lockPlace{}, nil
}

// placeStore moves the store of a cluster without replicas to where the case has it.
// The replicas reach it over the line; nil for SQLite.
func (d degradedCase) placeStore(t *testing.T, c *cluster) (line *faultproxy.Proxy) {
	t.Helper()
	if d.storeOn == "" {
		return nil
	}
	space := testenv.SharedPostgres(t)
	line = faultproxy.Start(t, space.Addr)
	c.base.StoreDSN = space.DSNAt(line.Addr())
	db, closer, err := postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(space.DSN())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	})
	if err := db.AutoMigrate(&effectRow{}); err != nil {
		t.Fatal(err)
	}
	if c.store, err = gormstore.New(db); err != nil {
		t.Fatal(err)
	}
	if err := c.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.db = db
	return line
}
