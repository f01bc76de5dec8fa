package sqldialect

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Patient wraps a connector so that the opening of a connection outlives the
// request that began it, up to limit: the next request finds it open. Otherwise
// requests whose time is shorter than a handshake would dial for ever, and none
// would ever be answered. Closing the pool waits for what is being opened.
func Patient(inner driver.Connector, limit time.Duration) driver.Connector {
	return &patient{Connector: inner, limit: limit}
}

type patient struct {
	driver.Connector
	limit time.Duration
	all   sync.WaitGroup // of what is being opened

	mu      sync.Mutex
	opening int
	waiting []chan opened // capacity 1, in order of arrival
	spare   []opened      // that nobody waited for any more
	closed  bool
}

type opened struct {
	conn driver.Conn
	err  error
	at   time.Time
}

// errOpening marks an error as one of a request that was not sent.
type errOpening struct{ err error }

func (e *errOpening) Error() string     { return e.err.Error() }
func (e *errOpening) Unwrap() error     { return e.err }
func (e *errOpening) SafeToRetry() bool { return true }

// Connect implements [driver.Connector].
func (p *patient) Connect(ctx context.Context) (driver.Conn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	for len(p.spare) > 0 {
		last := p.spare[len(p.spare)-1]
		p.spare = p.spare[:len(p.spare)-1]
		if time.Since(last.at) < p.limit {
			p.mu.Unlock()
			return last.conn, nil
		}
		p.all.Go(func() { _ = last.conn.Close() }) // the server may have gone since
	}
	come := make(chan opened, 1)
	p.waiting = append(p.waiting, come)
	if p.opening < len(p.waiting) {
		p.opening++
		p.all.Go(func() { p.open(context.WithoutCancel(ctx)) })
	}
	p.mu.Unlock()
	var o opened
	select {
	case o = <-come:
	case <-ctx.Done():
		p.mu.Lock()
		if i := slices.Index(p.waiting, come); i >= 0 {
			p.waiting = slices.Delete(p.waiting, i, i+1)
			p.mu.Unlock()
			return nil, &errOpening{fmt.Errorf("the connection is not open yet: %w", context.Cause(ctx))}
		}
		p.mu.Unlock()
		o = <-come // it came at the same moment
	}
	if errors.Is(o.err, driver.ErrBadConn) {
		// database/sql would open another at once, and a third: of a server that is gone.
		o.err = fmt.Errorf("the server ended the connection that was being opened: %w", io.ErrUnexpectedEOF)
	}
	if o.err != nil {
		return nil, &errOpening{o.err}
	}
	return o.conn, nil
}

func (p *patient) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	o := opened{}
	o.conn, o.err = p.Connector.Connect(ctx)
	o.at = time.Now()
	p.mu.Lock()
	p.opening--
	switch {
	case len(p.waiting) > 0:
		p.waiting[0] <- o
		p.waiting = p.waiting[1:]
	case o.err == nil && !p.closed:
		p.spare = append(p.spare, o)
	case o.err == nil:
		defer func() { _ = o.conn.Close() }() // nobody has used it
	}
	p.mu.Unlock()
}

// Close implements io.Closer; the pool calls it when it is closed.
func (p *patient) Close() error {
	p.mu.Lock()
	p.closed = true
	spare := p.spare
	p.spare = nil
	p.mu.Unlock()
	for _, o := range spare {
		_ = o.conn.Close() // nobody has used it
	}
	p.all.Wait()
	return nil
}
