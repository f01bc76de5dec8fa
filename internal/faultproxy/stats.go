//go:build linux

package faultproxy

import "context"

// Stats counts what came to the proxy, whether or not it was let through. Bytes
// are counted before they are forwarded, so a client that has read an answer
// finds it counted.
type Stats struct {
	Conns         int   // connections accepted
	Open          int   // of these, not ended
	BytesToServer int64 // sent by clients
	BytesToClient int64 // sent by the server
	// RoundTrips counts the bursts of clients that bytes of the server followed
	// on the same connection. A pipeline that is sent at once is one.
	RoundTrips int
	// Pushes counts the bursts of the server that no bytes of the client came
	// before: greetings. What follows an answer without being asked for cannot be
	// told from more of the answer.
	Pushes int
}

// Sub returns what was counted since before, a reading of the same counters. Open
// stays what it is now.
func (s Stats) Sub(before Stats) Stats {
	s.Conns -= before.Conns
	s.BytesToServer -= before.BytesToServer
	s.BytesToClient -= before.BytesToClient
	s.RoundTrips -= before.RoundTrips
	s.Pushes -= before.Pushes
	return s
}

// Stats returns the counters over all connections since New.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total()
}

// ConnStats returns the counters of each connection in the order of acceptance.
func (p *Proxy) ConnStats() []Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	stats := make([]Stats, len(p.conns))
	for i, c := range p.conns {
		stats[i] = c.current()
	}
	return stats
}

// Await waits until the counters satisfy the condition, which is asked at every
// change of them, or until ctx ends, and then returns its error.
func (p *Proxy) Await(ctx context.Context, condition func(Stats) bool) error {
	for {
		p.mu.Lock()
		if p.counted == nil {
			p.counted = make(chan struct{})
		}
		stats, counted := p.total(), p.counted
		p.mu.Unlock()
		if condition(stats) {
			return nil
		}
		select {
		case <-counted:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// total adds up the connections. The caller holds p.mu.
func (p *Proxy) total() Stats {
	var sum Stats
	for _, c := range p.conns {
		s := c.current()
		sum.Conns += s.Conns
		sum.Open += s.Open
		sum.BytesToServer += s.BytesToServer
		sum.BytesToClient += s.BytesToClient
		sum.RoundTrips += s.RoundTrips
		sum.Pushes += s.Pushes
	}
	return sum
}

// current returns the connection's counters. The caller holds proxy.mu.
func (c *conn) current() Stats {
	s := c.stats
	s.Conns = 1
	if !c.ended {
		s.Open = 1
	}
	return s
}

// note counts bytes and returns what is to happen to them.
func (p *Proxy) note(c *conn, d Direction, data []byte) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d == ToServer {
		c.stats.BytesToServer += int64(len(data))
	} else {
		c.stats.BytesToClient += int64(len(data))
		if c.last == ToServer {
			c.stats.RoundTrips++
		} else if c.last != ToClient {
			c.stats.Pushes++
		}
	}
	c.last = d
	p.count()
	return p.spring(c, d, data)
}

// count wakes whoever waits for a counter. The caller holds p.mu.
func (p *Proxy) count() {
	if p.counted != nil {
		close(p.counted)
		p.counted = nil
	}
}
