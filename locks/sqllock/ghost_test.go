package sqllock_test

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/sqllock"
)

// The connection with the session locks goes silent, and the server does not hear that
// it was given up. A release over new connections must end it at the server before it
// says that the key is free.
func TestReleasedKeyIsFreeOfTheOldConnection(t *testing.T) {
	t.Parallel()
	p := places[0].shared(t)
	silent, healthy := faultproxy.Start(t, p.addr), faultproxy.Start(t, p.addr)
	config, err := pgx.ParseConfig(p.userDSN(p.addr))
	if err != nil {
		t.Fatal(err)
	}
	var to atomic.Pointer[faultproxy.Proxy]
	to.Store(silent)
	config.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, to.Load().Addr())
	}
	pool := sql.OpenDB(stdlib.GetConnector(*config))
	defer pool.Close()
	db, err := postgresdb.Over(pool)
	if err != nil {
		t.Fatal(err)
	}
	a, err := sqllock.NewAdvisory(db)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	other, _ := advisory(t, p, 4)
	ctx, cancel := contextWithin(t, time.Minute)
	defer cancel()
	h := hold(t, a, request("k"))
	defer silent.Pass() // what the client asks the server to end goes this way too
	silent.BlackHole(faultproxy.Both)
	to.Store(healthy)
	for out := driver.Released(0); out == 0; {
		try, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		out, _ = a.Release(try, h)
		cancel()
		if ctx.Err() != nil {
			t.Fatal("no release went through")
		}
	}
	next := hold(t, other, request("k"))
	if next.Fence <= h.Fence {
		t.Errorf("fence %d after %d", next.Fence, h.Fence)
	}
	if out, err := other.Release(ctx, next); err != nil || out != driver.ReleasedOK {
		t.Error(out, err)
	}
}
