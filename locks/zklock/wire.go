package zklock

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/leaseclock"
)

// wire makes the client library's connections and looks at what passes on them,
// because the library tells neither the session timeout that the server agreed to
// nor when its pings were sent. It is also the library's host provider, so that
// one server is not waited for longer than the session allows.
type wire struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	tls  *tls.Config
	ctx  context.Context // ends when the driver closes
	end  context.CancelFunc

	mu       sync.Mutex
	servers  []string
	next     int
	failures int           // connections since one that answered a request
	asked    time.Duration // session timeout
	timeout  time.Duration // as negotiated; 0 before that
	session  int64
	// contact is when the latest request of this session that was answered left us.
	contact leaseclock.Instant
	current *watchedConn
	creates map[string]chan struct{} // by path: closed when the request to make it leaves
}

func (w *wire) Init(servers []string) error { w.servers = servers; return nil }
func (w *wire) Len() int                    { return len(w.servers) }
func (w *wire) Connected()                  {}

// Next returns the next server. Only when the driver closes does it say that all
// have been tried, which makes the library look whether it should end: its pause of
// a second before another round is too long for a short session.
func (w *wire) Next() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	server := w.servers[w.next%len(w.servers)]
	w.next++
	return server, w.ctx.Err() != nil
}

// patience bounds the dialing of one server, and then its greeting, such that all
// can be tried in a third of the session.
func (w *wire) patience() time.Duration {
	s := max(w.asked, w.timeout)
	return min(max(s/time.Duration(3*len(w.servers)), 200*time.Millisecond), 3*time.Second)
}

// Dial is the library's dialer. It is called again and again while there is no
// connection, by one goroutine.
func (w *wire) Dial(network, address string, _ time.Duration) (net.Conn, error) {
	w.mu.Lock()
	failures, patience := w.failures, w.patience()
	slowest := min(max(w.asked/10, 20*time.Millisecond), time.Second)
	w.failures++
	w.mu.Unlock()
	if failures > 0 {
		retry := backoff.Policy{Base: 10 * time.Millisecond, Max: slowest}
		if err := backoff.Wait(w.ctx, retry.Delay(failures-1)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	raw, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if w.tls != nil {
		if raw, err = w.secure(ctx, raw, address); err != nil {
			return nil, err
		}
	}
	if err := raw.SetReadDeadline(time.Now().Add(patience)); err != nil {
		raw.Close()
		return nil, err
	}
	c := &watchedConn{Conn: raw, w: w, received: time.Now()}
	w.mu.Lock()
	w.current = c
	w.mu.Unlock()
	if w.ctx.Err() != nil { // closed meanwhile
		raw.Close()
	}
	return c, nil
}

func (w *wire) secure(ctx context.Context, raw net.Conn, address string) (net.Conn, error) {
	cfg := w.tls
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			raw.Close()
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// cut closes the connection; the library then makes another, unless the driver
// is closing.
func (w *wire) cut() {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// cutIfSilent closes a connection on which nothing has come for so long, though
// something was asked: the next server may answer.
func (w *wire) cutIfSilent(for_ time.Duration) {
	w.mu.Lock()
	c := w.current
	w.mu.Unlock()
	if c != nil && c.silentFor(for_) {
		c.Close()
	}
}

// greeted takes the server's answer to the connect request sent at sent.
func (w *wire) greeted(timeout time.Duration, session int64, sent leaseclock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session = session
	if session != 0 {
		w.timeout, w.contact = timeout, sent
	}
}

func (w *wire) answered(sent leaseclock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = 0
	if sent.Since(w.contact) > 0 {
		w.contact = sent
	}
}

// terms are what is agreed with the server, and when it last proved to be there.
func (w *wire) terms() (session int64, timeout time.Duration, contact leaseclock.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session, w.timeout, w.contact
}

// leaving returns what is closed when the library sends the request to make the node:
// what is asked of it from then on goes behind that. It is kept until left.
func (w *wire) leaving(path string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{})
	if w.creates == nil {
		w.creates = make(map[string]chan struct{})
	}
	w.creates[path] = c
	return c
}

// left forgets what leaving waited for.
func (w *wire) left(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.creates, path)
}

// leaves takes a request of the library: length, xid, operation, and of a create the
// path, after its length.
func (w *wire) leaves(b []byte) {
	const opCreate, head = 1, 16
	if len(b) < head || binary.BigEndian.Uint32(b[8:]) != opCreate {
		return
	}
	path := b[head:]
	path = path[:min(len(path), int(binary.BigEndian.Uint32(b[12:])))]
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.creates[string(path)]; c != nil {
		delete(w.creates, string(path))
		close(c)
	}
}

// stamp is a request that has not been answered.
type stamp struct {
	xid  int32
	sent leaseclock.Instant
}

// greetingHead is what is needed of a frame: of the greeting protocol version,
// timeout and session, of an answer its xid.
const greetingHead = 16

// watchedConn is a connection whose frames are followed. The library writes one
// frame at a time.
type watchedConn struct {
	net.Conn
	w *wire

	mu       sync.Mutex
	greeted  bool
	sent     []stamp
	received time.Time

	// The reading side alone uses these.
	head  [4 + greetingHead]byte
	have  int
	skip  int
	whole int
}

func (c *watchedConn) Write(b []byte) (int, error) {
	if len(b) >= 8 {
		c.mu.Lock()
		c.sent = append(c.sent, stamp{int32(binary.BigEndian.Uint32(b[4:])), leaseclock.Now()})
		c.mu.Unlock()
		c.w.leaves(b)
	}
	return c.Conn.Write(b)
}

// SetReadDeadline leaves the deadline of the greeting alone: the library would
// wait for it for almost seven session timeouts.
func (c *watchedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	greeted := c.greeted
	c.mu.Unlock()
	if !greeted {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.mu.Lock()
		c.received = time.Now()
		c.mu.Unlock()
		c.follow(b[:n])
	}
	return n, err
}

// follow finds the heads of the frames in what was read.
func (c *watchedConn) follow(b []byte) {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(b))
			b, c.skip = b[n:], c.skip-n
			continue
		}
		want := 4
		if c.have >= 4 {
			want = 4 + min(c.whole, greetingHead)
		}
		n := copy(c.head[c.have:want], b)
		b, c.have = b[n:], c.have+n
		if c.have == 4 && want == 4 {
			c.whole = int(binary.BigEndian.Uint32(c.head[:4]))
			if c.whole > 0 {
				continue
			}
		}
		if c.have < want {
			continue
		}
		c.frame(c.head[4:want])
		c.have, c.skip = 0, c.whole-(want-4)
	}
}

func (c *watchedConn) frame(head []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.greeted {
		c.greeted = true
		if len(head) == greetingHead && len(c.sent) > 0 {
			timeout := time.Duration(int32(binary.BigEndian.Uint32(head[4:]))) * time.Millisecond
			c.w.greeted(timeout, int64(binary.BigEndian.Uint64(head[8:])), c.sent[0].sent)
		}
		c.sent = nil
		return
	}
	if len(head) < 4 {
		return
	}
	xid := int32(binary.BigEndian.Uint32(head))
	i := slices.IndexFunc(c.sent, func(s stamp) bool { return s.xid == xid })
	if i >= 0 { // else an event
		c.w.answered(c.sent[i].sent)
		c.sent = slices.Delete(c.sent, i, i+1)
	}
}

// silentFor reports whether a request has waited for at least d during which
// nothing came.
func (c *watchedConn) silentFor(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent) > 0 && time.Since(c.received) >= d && c.sent[0].sent.Elapsed() >= d
}
