package sqldialect_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
)

// slow is a server whose handshake takes a second.
type slow struct{ dials int }

func (s *slow) Driver() driver.Driver { return nil }

func (s *slow) Connect(ctx context.Context) (driver.Conn, error) {
	s.dials++
	select {
	case <-time.After(time.Second):
		return &idle{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type idle struct{}

func (*idle) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (*idle) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (*idle) Close() error                        { return nil }

func TestRequestsShorterThanAHandshakeGetAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slow{}
		c := sqldialect.Patient(server, 5*time.Second)
		tries := 0
		for ; tries < 10; tries++ {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err := c.Connect(ctx)
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || !sqldialect.Postgres().NotApplied(err) {
				t.Fatal(err)
			}
		}
		if tries != 3 || server.dials != 1 {
			t.Errorf("%d tries in vain, %d dials", tries, server.dials)
		}
		if err := c.(interface{ Close() error }).Close(); err != nil {
			t.Error(err)
		}
	})
}

// gone is a server whose port answers and whose process does not, as behind a proxy.
type gone struct{ dials int }

func (g *gone) Driver() driver.Driver { return nil }

func (g *gone) Connect(context.Context) (driver.Conn, error) {
	g.dials++
	return nil, driver.ErrBadConn
}

func TestServerThatIsGoneIsDialledOnce(t *testing.T) {
	server := &gone{}
	pool := sql.OpenDB(sqldialect.Patient(server, 5*time.Second))
	err := pool.PingContext(t.Context())
	if d := sqldialect.MySQL(); err == nil || d.Classify(err) != sqldialect.Unavailable || !d.NotApplied(err) || server.dials != 1 {
		t.Errorf("%d dials, %v", server.dials, err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}
