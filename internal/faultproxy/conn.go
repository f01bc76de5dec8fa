//go:build linux

package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// held bounds the chunks of one direction that are under way. A sender that goes
// on beyond that is slowed by TCP, as it is by a full network. Room for them is made
// with every connection: clients that connect again and again must not be slowed by it.
const held = 256

// conn is one connection of a client and the one to the backend that it goes to.
type conn struct {
	proxy  *Proxy
	client *net.TCPConn
	done   chan struct{} // closed by end

	// The rest is guarded by proxy.mu.
	server  *net.TCPConn // nil until dialed
	ended   bool
	cutting bool // the client is gone by our doing; the server still gets what was sent
	stats   Stats
	last    Direction        // which way the last bytes went; 0 before any
	seen    map[*Trap]needle // what each armed trap saw of this connection
}

// chunk is what was read at once; data is nil where the sender ended.
type chunk struct {
	data  []byte
	at    time.Time
	reset bool // the sender ended with a RST
}

// run serves the connection until it has ended.
func (c *conn) run() {
	defer c.end(false)
	server, err := c.dial()
	if err != nil {
		c.end(true)
		return
	}
	c.proxy.mu.Lock()
	ended := c.ended
	c.server = server
	c.proxy.mu.Unlock()
	if ended {
		closeTCP(server, true)
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { c.pump(ToServer, c.client, server) })
	pumps.Go(func() { c.pump(ToClient, server, c.client) })
	pumps.Wait()
}

// dial connects to the backend when both directions pass.
func (c *conn) dial() (*net.TCPConn, error) {
	for _, d := range []Direction{ToServer, ToClient} {
		if !c.passes(d, chunk{}) {
			return nil, net.ErrClosed
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	server, err := dialer.DialContext(c.proxy.ctx, "tcp", c.proxy.backend)
	if err != nil {
		return nil, err
	}
	tcp, ok := server.(*net.TCPConn)
	if !ok {
		server.Close()
		return nil, errors.New("faultproxy: the backend is not reached by TCP")
	}
	return tcp, nil
}

// pump carries one direction until its sender ended or the connection did. Reading
// and writing are apart, so that bytes are counted and timed when they come.
func (c *conn) pump(d Direction, from, to *net.TCPConn) {
	queue := make(chan chunk, held)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(queue)
		c.read(d, from, queue)
	})
	for next := range queue {
		if !c.passes(d, next) {
			break
		}
		if next.reset {
			c.end(true)
			break
		}
		if next.data == nil {
			// The other direction may go on; a failure shows there.
			_ = to.CloseWrite()
			break
		}
		if _, err := to.Write(next.data); err != nil {
			c.end(true)
			break
		}
	}
	reader.Wait()
}

// read queues what comes, until the sender ends or the connection is cut.
func (c *conn) read(d Direction, from *net.TCPConn, queue chan<- chunk) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			data := append([]byte(nil), buffer[:n]...)
			switch c.proxy.note(c, d, data) {
			case dropRequest:
				c.end(true)
				return
			case dropReply:
				c.cut(from)
				return
			case forward:
			}
			if !c.queue(queue, chunk{data: data, at: time.Now()}) {
				return
			}
		}
		if err != nil {
			c.proxy.mu.Lock()
			reset := !errors.Is(err, io.EOF) && !c.cutting
			c.proxy.mu.Unlock()
			c.queue(queue, chunk{at: time.Now(), reset: reset})
			return
		}
	}
}

func (c *conn) queue(queue chan<- chunk, next chunk) bool {
	select {
	case queue <- next:
		return true
	case <-c.done:
		return false
	}
}

// passes waits until the rule of the direction lets the chunk pass; false means
// that the connection ended before.
func (c *conn) passes(d Direction, next chunk) bool {
	for {
		r, switched := c.proxy.rule(d)
		wait := r.delay - time.Since(next.at)
		if !r.hole && wait <= 0 {
			return true
		}
		var due <-chan time.Time
		if !r.hole {
			due = time.After(wait)
		}
		select {
		case <-switched:
		case <-due:
		case <-c.done:
			return false
		}
	}
}

// cut resets the client and lets the server finish: what the client had sent
// still goes to it, before the end of the stream, and is carried out.
func (c *conn) cut(server *net.TCPConn) {
	c.proxy.mu.Lock()
	c.cutting = true
	c.proxy.mu.Unlock()
	closeTCP(c.client, true) // the other pump takes it for the end of the client's stream
	_, _ = io.Copy(io.Discard, server)
	c.end(false)
}

// end closes both sides, with a RST where reset says so.
func (c *conn) end(reset bool) {
	c.proxy.mu.Lock()
	if c.ended {
		c.proxy.mu.Unlock()
		return
	}
	c.ended = true
	server := c.server
	c.proxy.count()
	c.proxy.mu.Unlock()
	close(c.done)
	closeTCP(c.client, reset)
	if server != nil {
		closeTCP(server, reset)
	}
}

func closeTCP(c *net.TCPConn, reset bool) {
	if reset {
		_ = c.SetLinger(0) // closing then sends RST; a closed one needs none
	}
	_ = c.Close() // an error means that it is closed
}

func reusePort(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, failed)
}
