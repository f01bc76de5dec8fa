//go:build linux

package storeswitch_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/storeswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/switchwatchtest"
	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/gormstore"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
	"github.com/solotick/solotick/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

func faults(p *faultproxy.Proxy) switchwatchtest.Faults {
	return switchwatchtest.Faults{Silence: func() { p.BlackHole(faultproxy.Both) }, Reset: p.Reset, Heal: p.Pass}
}

func centre(tb testing.TB, board store.Switchboard) *storeswitch.Centre {
	tb.Helper()
	c, err := storeswitch.New(board, "shop", nil)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func on(tb testing.TB, db *gorm.DB, prefix string) *storeswitch.Centre {
	tb.Helper()
	s, err := gormstore.New(db, gormstore.WithPrefix(prefix))
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return centre(tb, s)
}

func TestMemory(t *testing.T) {
	t.Parallel()
	switchwatchtest.Run(t, func(*testing.T) switchwatchtest.Harness {
		s := memstore.New()
		return switchwatchtest.Harness{Open: func(tb testing.TB) switchwatch.Centre { return centre(tb, s) }}
	})
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	switchwatchtest.Run(t, func(t *testing.T) switchwatchtest.Harness {
		path := filepath.Join(t.TempDir(), "store.db")
		return switchwatchtest.Harness{Open: func(tb testing.TB) switchwatch.Centre {
			db, err := sqlitedb.Open(path, nil)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() {
				if err := sqlitedb.Close(db); err != nil {
					tb.Error(err)
				}
			})
			return on(tb, db, "")
		}}
	})
}

func postgres(tb testing.TB, dsn, prefix string) switchwatch.Centre {
	tb.Helper()
	db, closer, err := postgresdb.Open(sqldialect.ServerConfig{DSN: secret.New(dsn), MaxConns: 2})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := closer(); err != nil {
			tb.Error(err)
		}
	})
	return on(tb, db, prefix)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	switchwatchtest.Run(t, func(t *testing.T) switchwatchtest.Harness {
		s := testenv.SharedPostgres(t)
		return switchwatchtest.Harness{
			Open: func(tb testing.TB) switchwatch.Centre { return postgres(tb, s.DSN(), "") },
			Proxied: func(tb testing.TB) (switchwatch.Centre, switchwatchtest.Faults) {
				p := faultproxy.Start(tb, s.Addr)
				return postgres(tb, s.DSNAt(p.Addr()), ""), faults(p)
			},
		}
	})
}

// The row is the audit: who, why, from and to; a refused value is in it, too.
func TestThrowIsTheAudit(t *testing.T) {
	s := memstore.New()
	c := centre(t, s)
	first, err := c.Throw(t.Context(), store.SwitchChange{Source: "cli", By: "ann", Reason: "odd", To: "{}"})
	if err != nil || !first.Fleet || first.From != "" {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := c.Throw(t.Context(), store.SwitchChange{Source: "cli", By: "bob", Reason: "over"})
	if err != nil || again.From != "{}" || again.To != "" || again.ID <= first.ID {
		t.Fatalf("%+v, %v", again, err)
	}
}

// A change whose answer is lost is repeated, and stands once.
func TestThrowAgainAfterALostAnswer(t *testing.T) {
	s := &forgetful{Store: memstore.New(), lost: 2}
	c := centre(t, s)
	if _, err := c.Throw(t.Context(), store.SwitchChange{By: "ann", To: "{}"}); err != nil {
		t.Fatal(err)
	}
	got, _, err := s.SwitchChanges(t.Context(), "shop", true, 10)
	if err != nil || len(got) != 1 || s.lost != 0 {
		t.Errorf("%d lost answers to come, changes %+v, %v", s.lost, got, err)
	}
}

type forgetful struct {
	*memstore.Store
	lost int
}

func (f *forgetful) ThrowSwitch(ctx context.Context, ns string, c store.SwitchChange) (store.SwitchChange, error) {
	got, err := f.Store.ThrowSwitch(ctx, ns, c)
	if err == nil && f.lost > 0 {
		f.lost--
		return store.SwitchChange{}, errors.Join(store.ErrUnavailable, errors.New("no answer"))
	}
	return got, err
}

func TestNegativeOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]storeswitch.Options{"Poll: -1s is negative": {Poll: -time.Second}, "Timeout: -1s is negative": {Timeout: -time.Second}} {
		if _, err := storeswitch.New(memstore.New(), "shop", &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
