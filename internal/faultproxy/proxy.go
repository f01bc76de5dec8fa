//go:build linux

package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/solotick/solotick/internal/backoff"
)

// Direction names one way through the proxy, or both.
type Direction int

// The ways through the proxy.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// rule is what happens to the bytes of one direction.
type rule struct {
	delay time.Duration
	hole  bool
}

// dialTimeout bounds how long the proxy tries to reach its backend.
const dialTimeout = 5 * time.Second

// Proxy forwards connections to a backend. A new one passes everything. Its
// methods may be called by several goroutines at once.
type Proxy struct {
	backend string
	addr    string
	holder  int // a socket that keeps the port while nobody listens on it
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex
	rules    map[Direction]rule
	switched chan struct{} // closed and replaced when a rule changes
	counted  chan struct{} // closed when a counter changes; nil while nobody waits
	listener net.Listener  // nil while connections are refused
	closed   bool
	conns    []*conn // every one since New
	traps    []*Trap
}

// New starts a proxy for the backend, a host:port, on a free port of 127.0.0.1.
// The backend need not be up. The caller closes the proxy.
func New(backend string) (*Proxy, error) {
	holder, port, err := holdPort()
	if err != nil {
		return nil, fmt.Errorf("faultproxy: hold a port: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		backend:  backend,
		addr:     fmt.Sprintf("127.0.0.1:%d", port),
		holder:   holder,
		ctx:      ctx,
		cancel:   cancel,
		rules:    map[Direction]rule{},
		switched: make(chan struct{}),
	}
	p.mu.Lock()
	err = p.listen()
	p.mu.Unlock()
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Start is New for a test: what goes wrong fails it, and its end closes the proxy.
func Start(tb testing.TB, backend string) *Proxy {
	tb.Helper()
	p, err := New(backend)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// holdPort binds a socket that never listens: the kernel refuses connections to
// its port, gives the port to nobody else, and lets a socket with the same
// option listen there.
func holdPort() (fd, port int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, os.NewSyscallError("socket", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, 0, os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, 0, os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return 0, 0, fmt.Errorf("bound to %T", name)
	}
	return fd, at.Port, nil
}

// listen opens the port. The caller holds p.mu.
func (p *Proxy) listen() error {
	if p.listener != nil || p.closed {
		return nil
	}
	config := net.ListenConfig{}
	config.Control = reusePort
	l, err := config.Listen(p.ctx, "tcp4", p.addr)
	if err != nil {
		return fmt.Errorf("faultproxy: listen: %w", err)
	}
	p.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Addr returns the host:port that clients connect to. It stays the same.
func (p *Proxy) Addr() string { return p.addr }

// Close ends every connection and every goroutine of the proxy. Closing twice
// does no harm.
func (p *Proxy) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.stopListening()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	p.cancel()
	for _, c := range conns {
		c.end(false)
	}
	p.wg.Wait()
	if first {
		_ = unix.Close(p.holder)
	}
}

// stopListening makes the kernel refuse. The caller holds p.mu.
func (p *Proxy) stopListening() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// Pass ends delays, black holes and refusal: in both directions bytes pass, first
// those that were held back, in their order. Armed traps stay armed.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(Both, rule{})
	if err := p.listen(); err != nil {
		panic(err) // the port is held for this, so the machine is out of sockets
	}
}

// PassTo ends delay and black hole of the direction.
func (p *Proxy) PassTo(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(d, rule{})
}

// Delay forwards every byte of the direction this much after it came, in order and
// with any number of bytes under way.
func (p *Proxy) Delay(d Direction, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(d, rule{delay: by})
}

// BlackHole holds back everything of the direction, the end of a connection
// included, as a partition does: nobody is told, and when bytes pass again, what
// was sent meanwhile arrives late. A new connection reaches the backend only
// when both directions pass.
func (p *Proxy) BlackHole(d Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(d, rule{hole: true})
}

// set changes the rules of a direction. The caller holds p.mu.
func (p *Proxy) set(d Direction, r rule) {
	for _, one := range []Direction{ToServer, ToClient} {
		if d&one != 0 {
			p.rules[one] = r
		}
	}
	close(p.switched)
	p.switched = make(chan struct{})
}

// Reset ends every open connection with a RST to both ends. New ones are accepted.
func (p *Proxy) Reset() {
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	for _, c := range conns {
		c.end(true)
	}
}

// Refuse is Reset, and new connections are refused until Pass, as they are by a
// host whose server is down.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.stopListening()
	p.mu.Unlock()
	p.Reset()
}

// rule returns what is in force for a direction, and what is closed when it changes.
func (p *Proxy) rule(d Direction) (rule, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules[d], p.switched
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			// Anything but the end passes: given up before it was taken, out of files.
			if errors.Is(err, net.ErrClosed) || backoff.Wait(p.ctx, 10*time.Millisecond) != nil {
				return
			}
			continue
		}
		tcp, ok := client.(*net.TCPConn)
		if !ok {
			client.Close()
			continue
		}
		c := &conn{proxy: p, client: tcp, done: make(chan struct{})}
		p.mu.Lock()
		// A connection that slipped in before a refusal is refused too.
		late := p.listener != l
		if !late {
			p.conns = append(p.conns, c)
			p.count()
			p.wg.Go(c.run)
		}
		p.mu.Unlock()
		if late {
			c.end(true)
		}
	}
}
