//go:build linux

package faultproxy

import (
	"bytes"
	"slices"
)

// verdict is what happens to bytes when they are read.
type verdict int

const (
	forward verdict = iota
	dropRequest
	dropReply
)

// Trap is a fault that strikes once, on one connection.
type Trap struct {
	proxy *Proxy
	kind  verdict
	match []byte
	fired chan struct{}
}

// needle is how far a connection's bytes have matched a trap.
type needle struct {
	tail  []byte // may be the beginning of a match
	found bool
}

// SwallowReply arms a trap for the next bytes of the server: they are dropped and
// the client's connection is reset, while everything that had come from the
// client still reaches the server. With an empty match these are the next bytes on any
// connection, asked for or not; otherwise the next ones on the first connection
// whose client sends the match after the arming. With the match of a commit the
// client is left not knowing of a transaction that the server has committed.
func (p *Proxy) SwallowReply(match []byte) *Trap { return p.arm(dropReply, match) }

// CutRequest arms a trap for bytes of a client that contain the match: they are
// dropped and both ends are reset, so that the client knows no more than after
// SwallowReply and the server has not carried it out. Of a match in several
// packets the server may have got the beginning.
func (p *Proxy) CutRequest(match []byte) *Trap { return p.arm(dropRequest, match) }

func (p *Proxy) arm(kind verdict, match []byte) *Trap {
	t := &Trap{proxy: p, kind: kind, match: slices.Clone(match), fired: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t
}

// Fired returns a channel that is closed when the trap has struck.
func (t *Trap) Fired() <-chan struct{} { return t.fired }

// Disarm takes the trap away, where it has not struck.
func (t *Trap) Disarm() {
	t.proxy.mu.Lock()
	defer t.proxy.mu.Unlock()
	t.proxy.disarm(t)
}

// disarm forgets the trap. The caller holds p.mu.
func (p *Proxy) disarm(t *Trap) {
	p.traps = slices.DeleteFunc(p.traps, func(other *Trap) bool { return other == t })
	for _, c := range p.conns {
		delete(c.seen, t)
	}
}

// spring returns what the armed traps make of the bytes. The caller holds p.mu.
func (p *Proxy) spring(c *conn, d Direction, data []byte) verdict {
	for _, t := range p.traps {
		if d == ToServer {
			t.look(c, data)
		}
		ready := len(t.match) == 0 || c.seen[t].found
		if ready && (d == ToServer) == (t.kind == dropRequest) {
			p.disarm(t)
			close(t.fired)
			return t.kind
		}
	}
	return forward
}

// look searches the connection's bytes, also across reads. The caller holds p.mu.
func (t *Trap) look(c *conn, data []byte) {
	n := c.seen[t]
	if n.found || len(t.match) == 0 {
		return
	}
	text := slices.Concat(n.tail, data)
	n.found = bytes.Contains(text, t.match)
	n.tail = text[max(0, len(text)-len(t.match)+1):]
	if c.seen == nil {
		c.seen = map[*Trap]needle{}
	}
	c.seen[t] = n
}
