package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ear is the subscription to a single server. As on a lane, no goroutine reads it: of
// those who wait for messages the one that has taken from turn does, so that the only
// waiter of a process, which is the common case, hears of its grant at once.
type ear struct {
	h      *hub
	l      *lane
	turn   chan struct{} // to read
	failed chan error
	heard  atomic.Int64 // when there was something to read, in ns since born
	born   time.Time
	in     []byte // read, and no whole message yet: the reader's
}

// open subscribes over a connection of its own.
func (h *hub) open() (*ear, error) {
	l, err := h.direct.connect(h.ctx)
	if err != nil {
		return nil, err
	}
	e := &ear{h: h, l: l, turn: make(chan struct{}, 1), failed: make(chan error, 1), born: time.Now()}
	h.mu.Lock()
	h.ear = e
	closed := h.closed
	h.mu.Unlock()
	request := appendText(appendText([]byte("*2\r\n"), "subscribe"), h.channel)
	if closed {
		err = errClosed
	} else if err = l.conn.SetDeadline(time.Now().Add(unbounded)); err == nil {
		_, err = l.conn.Write(request)
	}
	for confirmed := false; err == nil && !confirmed; {
		confirmed, err = e.receive()
	}
	if err != nil {
		h.shut(e)
		return nil, err
	}
	return e, nil
}

// shut ends a subscription.
func (h *hub) shut(e *ear) {
	h.mu.Lock()
	if h.ear == e {
		h.ear = nil
	}
	h.mu.Unlock()
	e.l.close()
}

// tend keeps the subscription until it fails, or nobody needs it (no error).
func (e *ear) tend() error {
	e.h.inForce()
	e.turn <- struct{}{}
	t := time.NewTicker(quiet)
	defer t.Stop()
	for {
		select {
		case <-e.h.ctx.Done():
			return nil
		case err := <-e.failed:
			return err
		case <-t.C:
		}
		if e.h.idle() {
			return nil
		}
		if since := time.Since(e.born) - time.Duration(e.heard.Load()); since < quiet {
			continue
		}
		before := e.heard.Load()
		err := e.l.conn.SetWriteDeadline(time.Now().Add(pong))
		if err == nil {
			_, err = e.l.conn.Write(appendText([]byte("*1\r\n"), "ping"))
		}
		if err != nil {
			return err
		}
		select {
		case <-e.h.ctx.Done():
		case err := <-e.failed:
			return err
		case <-time.After(pong):
			if e.heard.Load() == before {
				return errSilent
			}
		}
	}
}

var errSilent = errors.New("the subscription is silent")

// read delivers messages until there is one in own, ctx ends, or it is time. The caller
// has the turn, and read gives it back.
func (e *ear) read(ctx context.Context, until time.Time, own <-chan push) {
	defer context.AfterFunc(ctx, func() { _ = e.l.conn.SetReadDeadline(time.Unix(1, 0)) })()
	for len(own) == 0 && time.Now().Before(until) {
		err := e.l.conn.SetReadDeadline(until)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			_, err = e.receive()
		}
		if err != nil && !errTimeout(err) {
			select {
			case e.failed <- err:
			default:
			}
			return // nobody shall read what has failed
		}
	}
	e.turn <- struct{}{}
}

// receive reads and delivers what there is. It reports whether that confirms the
// subscription.
func (e *ear) receive() (confirmed bool, err error) {
	if cap(e.in)-len(e.in) < 512 {
		e.in = append(make([]byte, 0, max(4096, 2*cap(e.in))), e.in...)
	}
	n, err := e.l.conn.Read(e.in[len(e.in):cap(e.in)])
	if n == 0 {
		return false, err
	}
	e.in = e.in[:len(e.in)+n]
	used := 0
	for used < len(e.in) {
		val, n, err := readReply(e.in[used:], 0)
		if err != nil {
			return false, err
		}
		if n == 0 {
			break
		}
		used += n
		switch m := val.(type) {
		case serverError:
			return false, fmt.Errorf("subscribe: %w", m)
		case []any:
			kind, payload := message(m)
			confirmed = confirmed || kind == "subscribe"
			if kind == "message" {
				e.h.deliver(payload)
			}
		}
	}
	e.in = e.in[:copy(e.in, e.in[used:])]
	e.heard.Store(int64(time.Since(e.born)))
	return confirmed, nil
}

func message(m []any) (kind, payload string) {
	if len(m) == 3 {
		kind, _ = m[0].(string)
		payload, _ = m[2].(string)
	}
	return kind, payload
}
