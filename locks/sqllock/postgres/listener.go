package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/backoff"
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

	mu     sync.Mutex
	subs   map[string][]chan struct{}
	up     chan struct{} // closed while listening
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended; nil before its first start
	closed bool
}

func newListener(db *gorm.DB, channel string) *listener {
	return &listener{db: db, channel: channel, subs: map[string][]chan struct{}{}, up: make(chan struct{})}
}

// Wake implements [driver.Waker].
func (l *listener) Wake(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	hint := make(chan struct{}, 1)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, nil, errors.New("sqllock: the driver is closed")
	}
	l.subs[key] = append(l.subs[key], hint)
	if l.cancel == nil {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		before := l.done
		l.cancel, l.done, l.up = cancel, make(chan struct{}), make(chan struct{})
		go l.run(running, before, l.done)
	}
	up := l.up
	l.mu.Unlock()

	stop := sync.OnceFunc(func() { l.remove(key, hint) })
	select {
	case <-up:
		return hint, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, context.Cause(ctx)
	}
}

func (l *listener) remove(key string, hint chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := slices.DeleteFunc(l.subs[key], func(c chan struct{}) bool { return c == hint })
	if len(left) > 0 {
		l.subs[key] = left
		return
	}
	delete(l.subs, key)
	if len(l.subs) == 0 && l.cancel != nil {
		// The next one to wait may come soon.
		time.AfterFunc(linger, l.rest)
	}
}

// linger is how long the connection stays when nobody waits any more.
const linger = time.Second

// rest ends the connection if nobody waits.
func (l *listener) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.subs) == 0 && l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
}

// end ends the listening and waits for it.
func (l *listener) end() {
	l.mu.Lock()
	l.closed = true
	if l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
	done := l.done
	l.mu.Unlock()
	if done != nil {
		<-done
	}
}

// run listens until ctx ends. It begins when the one before has ended.
func (l *listener) run(ctx context.Context, before, done chan struct{}) {
	defer close(done)
	if before != nil {
		<-before
	}
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
	for _, subs := range l.subs {
		hintAll(subs)
	}
	l.mu.Unlock()
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
			l.mu.Lock()
			hintAll(l.subs[n.Payload])
			l.mu.Unlock()
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

func hintAll(subs []chan struct{}) {
	for _, c := range subs {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
