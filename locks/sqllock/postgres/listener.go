package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/hint"
	"github.com/solotick/solotick/internal/sqldialect/postgresdb"
)

const (
	// quiet is how long the connection may say nothing before it is asked.
	quiet = 10 * time.Second
	// patience bounds what is asked.
	patience = 5 * time.Second
)

var redial = backoff.Policy{Base: 50 * time.Millisecond, Max: 2 * time.Second}

// listener is the one connection that listens for all waiters of a driver. It is
// there while somebody waits. A lost connection is a hint for everybody, when it
// is back: what was sent meanwhile is lost.
type listener struct {
	db      *gorm.DB
	channel string
	hints   hint.Source

	mu sync.Mutex
	up chan struct{} // closed while listening
}

func newListener(db *gorm.DB, channel string) *listener {
	l := &listener{db: db, channel: channel}
	l.hints.Listen, l.hints.Linger = l.run, linger
	return l
}

// Wake implements [driver.Waker].
func (l *listener) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	l.mu.Lock()
	told, stop, started, err := l.hints.Add(ctx, key)
	if started {
		l.up = make(chan struct{})
	}
	up := l.up
	l.mu.Unlock()
	if err != nil {
		return nil, nil, errors.New("sqllock: the driver is closed")
	}
	select {
	case <-up:
		return told, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, context.Cause(ctx)
	}
}

// linger is how long the connection stays when nobody waits any more.
const linger = time.Second

// run listens until ctx ends.
func (l *listener) run(ctx context.Context) {
	var cfg *pgx.ConnConfig
	for n := 0; ctx.Err() == nil; n++ {
		conn, err := l.connect(ctx, &cfg)
		if err == nil {
			n = 0
			l.listen(ctx, conn)
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(closing) // it is given up anyway
			cancel()
		}
		if backoff.Wait(ctx, redial.Delay(n)) != nil {
			return
		}
	}
}

func (l *listener) connect(ctx context.Context, cfg **pgx.ConnConfig) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if *cfg == nil {
		c, err := postgresdb.ConfigOf(ctx, l.db)
		if err != nil {
			return nil, err
		}
		*cfg = c
	}
	conn, err := pgx.ConnectConfig(ctx, *cfg)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{l.channel}.Sanitize()); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return conn, nil
}

// listen passes notifications on until the connection fails or ctx ends.
func (l *listener) listen(ctx context.Context, conn *pgx.Conn) {
	l.mu.Lock()
	up := l.up
	close(up)
	l.mu.Unlock()
	l.hints.TellAll()
	defer func() {
		l.mu.Lock()
		if l.up == up { // else somebody waits for the next one already
			l.up = make(chan struct{})
		}
		l.mu.Unlock()
	}()
	for {
		wait, cancel := context.WithTimeout(ctx, quiet)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			l.hints.Tell(n.Payload)
		case ctx.Err() != nil || conn.IsClosed():
			return
		default:
			ask, cancel := context.WithTimeout(ctx, patience)
			err = conn.Ping(ask)
			cancel()
			if err != nil {
				return
			}
		}
	}
}
