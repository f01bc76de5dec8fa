package gormstore_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
)

// Ten replicas that start at once on an empty database all come up.
func TestTenReplicasMigrateAnEmptyDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, srv server) {
		var replicas [10]*gormstore.Store
		for i := range replicas {
			var err error
			if replicas[i], err = gormstore.New(srv.db(t, 2)); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for i, s := range replicas {
			wg.Go(func() {
				if err := s.Migrate(t.Context()); err != nil {
					t.Errorf("replica %d: %v", i, err)
					return
				}
				if _, err := s.Register(t.Context(), space, []store.JobSpec{{Job: "job", Spec: "x", Hash: "h"}}); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		st, err := replicas[0].MigrationStatus(t.Context())
		if err != nil || st.Current != st.Latest || len(st.Applied) != st.Latest {
			t.Errorf("status %+v, %v", st, err)
		}
	})
}

// The script for those who run migrations by hand makes the tables as well.
func TestMigrationSQL(t *testing.T) {
	onServers(t, func(t *testing.T, srv server) {
		db := srv.db(t, 2)
		s, err := gormstore.New(db)
		if err != nil {
			t.Fatal(err)
		}
		for stmt := range strings.SplitSeq(strings.TrimSpace(s.MigrationSQL()), ";\n") {
			if err := db.Exec(strings.TrimSuffix(stmt, ";")).Error; err != nil {
				t.Fatalf("%v\n%s", err, stmt)
			}
		}
		if err := s.CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// userDSN is how a user whose password is "secret" connects.
func (s server) userDSN(tb testing.TB, user string) string {
	tb.Helper()
	if s.name == "mariadb" {
		c, err := mysql.ParseDSN(s.dsnAt(s.addr))
		if err != nil {
			tb.Fatal(err)
		}
		c.User, c.Passwd = user, "secret"
		return c.FormatDSN()
	}
	u, err := url.Parse(s.dsnAt(s.addr))
	if err != nil {
		tb.Fatal(err)
	}
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

// One user migrates, and one works with the tables and can do nothing else.
func TestLeastGrants(t *testing.T) {
	onServers(t, func(t *testing.T, srv server) {
		admin := srv.db(t, 2)
		run := func(statements ...string) {
			t.Helper()
			for _, stmt := range statements {
				if err := admin.Exec(stmt).Error; err != nil {
					t.Fatalf("%v\n%s", err, stmt)
				}
			}
		}
		var name string
		query := "SELECT current_database()"
		if srv.name == "mariadb" {
			query = "SELECT DATABASE()"
		}
		if err := admin.Raw(query).Row().Scan(&name); err != nil {
			t.Fatal(err)
		}
		migrator, worker := "m_"+name, "w_"+name
		grant := map[string][]string{
			"postgres": {
				"GRANT USAGE, CREATE ON SCHEMA public TO " + migrator, "GRANT USAGE ON SCHEMA public TO " + worker,
				"ALTER DEFAULT PRIVILEGES FOR ROLE " + migrator + " GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO " + worker,
			},
			"mariadb": {
				"GRANT CREATE, ALTER, INDEX, SELECT, INSERT ON " + name + ".* TO " + migrator,
				"GRANT SELECT, INSERT, UPDATE, DELETE ON " + name + ".* TO " + worker,
			},
		}[srv.name]
		for _, user := range []string{migrator, worker} {
			if srv.name == "mariadb" {
				run("CREATE USER " + user + " IDENTIFIED BY 'secret'")
			} else {
				run("CREATE ROLE "+user+" LOGIN PASSWORD 'secret'", "GRANT CONNECT ON DATABASE "+name+" TO "+user)
			}
		}
		run(grant...)
		open := func(user string) *gorm.DB { return srv.open(t, srv.userDSN(t, user), 4) }

		refused, err := gormstore.New(open(worker))
		if err != nil {
			t.Fatal(err)
		}
		if err := refused.Migrate(t.Context()); err == nil {
			t.Error("the user who works could migrate an empty database")
		}
		newStore(t, open(migrator))
		if srv.name == "postgres" {
			run("REVOKE UPDATE, DELETE ON solotick_switch_changes FROM " + worker)
		}
		p := placeOn(t, func(testing.TB) *gorm.DB { return open(worker) }) // finds nothing to migrate
		tick := p.register("job", "mail")
		x := p.started(cron("job", tick))
		keyed := queued("mail", "1")
		keyed.LockKey = "ann"
		_, err = p.s.Enqueue(p.ctx, space, []store.NewExecution{keyed, queued("mail", "2")})
		p.must(err)
		if n := len(p.fetch(10, "mail").Runs); n != 2 {
			t.Errorf("fetched %d", n)
		}
		_, err = p.s.Heartbeat(p.ctx, store.HeartbeatRequest{Namespace: space, Owner: p.owner, Lease: 1e6, Beats: []store.Beat{{ID: x.ID, Attempt: 1}}})
		p.must(err)
		x = p.takenOver()
		p.must(p.db.Transaction(func(tx *gorm.DB) error { return p.s.FinishTx(p.ctx, tx, done(x)) }))
		if c, err := p.s.ThrowSwitch(p.ctx, space, store.SwitchChange{Fleet: true, By: "ann", Token: store.NewID(tick)}); err != nil || c.ID == 0 {
			t.Errorf("throw: %+v, %v", c, err)
		}
		if err := p.db.Exec("CREATE TABLE own (a INTEGER)").Error; err == nil {
			t.Error("the user who works could create a table")
		}
		if err := p.db.Exec("DROP TABLE solotick_fences").Error; err == nil {
			t.Error("the user who works could drop a table")
		}
		for _, user := range []string{worker, migrator} {
			t.Cleanup(func() { dropUser(t, srv, user) })
		}
	})
}

// dropUser ends a user, which belongs to the server and not to the test's database.
func dropUser(t *testing.T, srv server, user string) {
	t.Helper()
	db := srv.db(t, 1)
	statements := []string{"DROP USER " + user}
	if srv.name == "postgres" {
		statements = []string{"DROP OWNED BY " + user + " CASCADE", "DROP ROLE " + user}
	}
	for _, stmt := range statements {
		if err := db.Exec(stmt).Error; err != nil {
			t.Error(fmt.Errorf("%s: %w", stmt, err))
		}
	}
}
