//go:build linux

package faultproxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/solotick/solotick/internal/faultproxy"
)

const (
	enough = time.Minute           // for what must happen
	brief  = 50 * time.Millisecond // for what must not
)

// backend answers each line with "re " and the line, and remembers what it got.
type backend struct {
	addr string

	mu    sync.Mutex
	lines []string
	ends  []error // how the connections ended
	news  chan struct{}
}

// greeting makes the backend speak first, where it is not empty.
func startBackend(t *testing.T, greeting string) *backend {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{addr: l.Addr().String(), news: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { b.serve(c, greeting) })
			wg.Go(func() { <-ctx.Done(); c.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		wg.Wait()
	})
	return b
}

func (b *backend) serve(c net.Conn, greeting string) {
	defer c.Close()
	_, _ = io.WriteString(c, greeting)
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		b.mu.Lock()
		if err != nil {
			b.ends = append(b.ends, err)
		} else {
			b.lines = append(b.lines, strings.TrimSpace(line))
		}
		close(b.news)
		b.news = make(chan struct{})
		b.mu.Unlock()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "re "+line) // a client that is gone shows at the next read
	}
}

// await waits until the backend got the lines, and reports whether it did in time.
func (b *backend) await(limit time.Duration, want ...string) bool {
	return b.awaitState(limit, func() bool { return slices.Equal(b.lines, want) })
}

func (b *backend) awaitState(limit time.Duration, reached func() bool) bool {
	timeout := time.After(limit)
	for {
		b.mu.Lock()
		ok, news := reached(), b.news
		b.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-news:
		case <-timeout:
			return false
		}
	}
}

func (b *backend) got() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// client is a connection through the proxy.
type client struct {
	t *testing.T
	*net.TCPConn
	in *bufio.Reader
}

func dial(t *testing.T, p *faultproxy.Proxy) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp", p.Addr(), enough)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c.(*net.TCPConn), bufio.NewReader(c)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.TCPConn, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read(limit time.Duration) (string, error) {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		c.t.Fatal(err)
	}
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

// ask sends a line and demands its answer.
func (c *client) ask(line string) {
	c.t.Helper()
	c.send(line + "\n")
	c.expect("re " + line)
}

func (c *client) expect(want string) {
	c.t.Helper()
	if got, err := c.read(enough); err != nil || got != want {
		c.t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

func (c *client) expectSilence() {
	c.t.Helper()
	if got, err := c.read(brief); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v, want nothing", got, err)
	}
}

func (c *client) expectReset() {
	c.t.Helper()
	if got, err := c.read(enough); !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("read %q, %v, want a reset", got, err)
	}
}

func start(t *testing.T) (*backend, *faultproxy.Proxy) {
	t.Helper()
	b := startBackend(t, "")
	return b, faultproxy.Start(t, b.addr)
}

func TestPassesBothWaysAndTheEnds(t *testing.T) {
	b, p := start(t)
	c := dial(t, p)
	c.ask("one")
	// The end of the client's half reaches the server, and the server's end the client.
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.read(enough); !errors.Is(err, io.EOF) {
		t.Errorf("read %q, %v, want the end", got, err)
	}
	if !b.awaitState(enough, func() bool { return len(b.ends) == 1 && errors.Is(b.ends[0], io.EOF) }) {
		t.Errorf("the server saw %v, want the end", b.ends)
	}
}

func TestPassesALot(t *testing.T) {
	_, p := start(t)
	c := dial(t, p)
	line := strings.Repeat("x", 1<<20)
	for range 4 {
		c.ask(line)
	}
}

func TestDelay(t *testing.T) {
	const by = 60 * time.Millisecond
	for name, d := range map[string]faultproxy.Direction{"to server": faultproxy.ToServer, "to client": faultproxy.ToClient} {
		t.Run(name, func(t *testing.T) {
			_, p := start(t)
			c := dial(t, p)
			c.ask("before")
			p.Delay(d, by)
			began := time.Now()
			c.ask("during")
			if took := time.Since(began); took < by {
				t.Errorf("an answer took %v, want at least %v", took, by)
			}
			p.Delay(d, time.Hour)
			c.send("late\n")
			c.expectSilence()
			p.PassTo(d)
			c.expect("re late")
		})
	}
	t.Run("both, not added up", func(t *testing.T) {
		_, p := start(t)
		c := dial(t, p)
		p.Delay(faultproxy.Both, by)
		began := time.Now()
		for i := range 100 {
			c.send(fmt.Sprintf("%d\n", i))
		}
		for i := range 100 {
			c.expect(fmt.Sprintf("re %d", i))
		}
		if took := time.Since(began); took < 2*by || took > 50*by {
			t.Errorf("100 requests at once took %v, want somewhat more than %v", took, 2*by)
		}
	})
}

func TestBlackHole(t *testing.T) {
	t.Run("to client", func(t *testing.T) {
		b, p := start(t)
		c := dial(t, p)
		c.ask("before")
		p.BlackHole(faultproxy.ToClient)
		c.send("during\n")
		if !b.await(enough, "before", "during") {
			t.Errorf("the server got %q", b.got())
		}
		c.expectSilence()
		p.Pass()
		c.expect("re during")
	})
	t.Run("to server", func(t *testing.T) {
		b, p := start(t)
		c := dial(t, p)
		c.ask("before")
		p.BlackHole(faultproxy.ToServer)
		c.send("during\n")
		if b.await(brief, "before", "during") {
			t.Error("the server got what was sent into a black hole")
		}
		p.Pass()
		c.expect("re during")
	})
	t.Run("nobody learns of the other's end", func(t *testing.T) {
		b, p := start(t)
		c := dial(t, p)
		c.ask("before")
		p.BlackHole(faultproxy.Both)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		ended := func() bool { return len(b.ends) == 1 }
		if b.awaitState(brief, ended) {
			t.Error("the server saw the end through a black hole")
		}
		p.Pass()
		if !b.awaitState(enough, ended) {
			t.Error("the server never saw the end")
		}
	})
	t.Run("a new connection", func(t *testing.T) {
		b, p := start(t)
		for _, d := range []faultproxy.Direction{faultproxy.ToServer, faultproxy.ToClient} {
			p.BlackHole(d)
			c := dial(t, p)
			c.send("hello\n")
			c.expectSilence()
			if got := b.got(); len(got) != 0 {
				t.Fatalf("the server got %q", got)
			}
			p.Pass()
			c.expect("re hello")
			b.mu.Lock()
			b.lines = nil
			b.mu.Unlock()
		}
	})
}

func TestReset(t *testing.T) {
	b, p := start(t)
	c := dial(t, p)
	c.ask("before")
	p.Reset()
	c.expectReset()
	if !b.awaitState(enough, func() bool { return len(b.ends) == 1 && errors.Is(b.ends[0], syscall.ECONNRESET) }) {
		t.Errorf("the server saw %v, want a reset", b.ends)
	}
	dial(t, p).ask("after")
}

func TestRefuse(t *testing.T) {
	_, p := start(t)
	c := dial(t, p)
	c.ask("before")
	for range 3 {
		p.Refuse()
		if _, err := net.DialTimeout("tcp", p.Addr(), enough); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dial: %v, want refused", err)
		}
		p.Pass()
		dial(t, p).ask("after")
	}
	c.expectReset()
}

func TestBackendDown(t *testing.T) {
	p := faultproxy.Start(t, "127.0.0.1:1")
	c, err := net.DialTimeout("tcp", p.Addr(), enough)
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) { // by the time of either
		t.Errorf("%v, want a reset", err)
	}
}

func TestSwallowReply(t *testing.T) {
	t.Run("the next of all", func(t *testing.T) {
		b, p := start(t)
		c := dial(t, p)
		c.ask("before")
		trap := p.SwallowReply(nil)
		c.send("lost\n")
		c.expectReset()
		<-trap.Fired()
		if !b.await(enough, "before", "lost") {
			t.Errorf("the server got %q", b.got())
		}
		dial(t, p).ask("after") // it strikes once
	})
	t.Run("after a commit", func(t *testing.T) {
		b, p := start(t)
		c, other := dial(t, p), dial(t, p)
		trap := p.SwallowReply([]byte("COMMIT"))
		c.ask("BEGIN")
		other.ask("BEGIN")
		c.send("COM") // in two packets
		if err := p.Await(t.Context(), func(s faultproxy.Stats) bool { return s.BytesToServer == int64(len("BEGIN\nBEGIN\nCOM")) }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-trap.Fired():
			t.Fatal("fired before the match")
		default:
		}
		c.send("MIT\n")
		c.expectReset()
		<-trap.Fired()
		if !b.await(enough, "BEGIN", "BEGIN", "COMMIT") {
			t.Errorf("the server got %q", b.got())
		}
		other.ask("COMMIT")
	})
	t.Run("what was sent still arrives", func(t *testing.T) {
		b, p := start(t)
		c := dial(t, p)
		c.ask("hello") // a connection that is not through to the server yet would wait at a black hole
		came := func(toServer, toClient string) {
			t.Helper()
			if err := p.Await(t.Context(), func(s faultproxy.Stats) bool {
				return s.BytesToServer == int64(len("hello\n"+toServer)) && s.BytesToClient == int64(len("re hello\n"+toClient))
			}); err != nil {
				t.Fatal(err)
			}
		}
		p.BlackHole(faultproxy.ToClient)
		c.send("first\n")
		came("first\n", "re first\n")
		p.BlackHole(faultproxy.ToServer)
		trap := p.SwallowReply([]byte("COMMIT"))
		// The answer to "second" springs the trap, when those to the others are still to come.
		c.send("second\n")
		came("first\nsecond\n", "re first\n")
		c.send("COMMIT\n")
		came("first\nsecond\nCOMMIT\n", "re first\n")
		c.send("third\n")
		came("first\nsecond\nCOMMIT\nthird\n", "re first\n")
		p.PassTo(faultproxy.ToServer)
		<-trap.Fired()
		if !b.await(enough, "hello", "first", "second", "COMMIT", "third") {
			t.Errorf("the server got %q", b.got())
		}
	})
	t.Run("disarmed", func(t *testing.T) {
		_, p := start(t)
		c := dial(t, p)
		p.SwallowReply(nil).Disarm()
		p.SwallowReply([]byte("x")).Disarm()
		c.ask("x")
	})
}

func TestCutRequest(t *testing.T) {
	b, p := start(t)
	c := dial(t, p)
	trap := p.CutRequest([]byte("COMMIT"))
	c.ask("BEGIN")
	c.send("COMMIT\n")
	c.expectReset()
	<-trap.Fired()
	if !b.awaitState(enough, func() bool { return len(b.ends) == 1 }) {
		t.Error("the server's connection has not ended")
	}
	if got := b.got(); !slices.Equal(got, []string{"BEGIN"}) {
		t.Errorf("the server got %q", got)
	}
	dial(t, p).ask("COMMIT")
}

func TestStats(t *testing.T) {
	b := startBackend(t, "welcome\n")
	p := faultproxy.Start(t, b.addr)
	c := dial(t, p)
	c.expect("welcome")
	if got, want := p.Stats(), (faultproxy.Stats{Conns: 1, Open: 1, BytesToClient: 8, Pushes: 1}); got != want {
		t.Errorf("after the greeting: %+v, want %+v", got, want)
	}
	before := p.Stats()
	c.ask("a")
	c.ask("b")
	c.send("c\nd\n") // one trip, however many answers
	c.expect("re c")
	c.expect("re d")
	if got, want := p.Stats().Sub(before), (faultproxy.Stats{Open: 1, BytesToServer: 8, BytesToClient: 20, RoundTrips: 3}); got != want {
		t.Errorf("after three trips: %+v, want %+v", got, want)
	}
	other := dial(t, p)
	other.expect("welcome")
	other.ask("e")
	per := p.ConnStats()
	if len(per) != 2 || per[0].RoundTrips != 3 || per[1].RoundTrips != 1 {
		t.Errorf("per connection: %+v, want 3 and 1 round trips", per)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Await(t.Context(), func(s faultproxy.Stats) bool { return s.Open == 1 && s.Conns == 2 }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	if err := p.Await(ctx, func(faultproxy.Stats) bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Await: %v, want the context's end", err)
	}
}

// In every mode, with connections and their bytes in all states, Close ends all
// of it; TestMain finds what it leaves.
func TestCloseEndsEverything(t *testing.T) {
	modes := map[string]func(*faultproxy.Proxy){
		"pass":    func(*faultproxy.Proxy) {},
		"delay":   func(p *faultproxy.Proxy) { p.Delay(faultproxy.Both, time.Hour) },
		"hole":    func(p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both) },
		"refused": func(p *faultproxy.Proxy) { p.Refuse() },
		"armed":   func(p *faultproxy.Proxy) { p.SwallowReply(nil) },
	}
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			_, p := start(t)
			c := dial(t, p)
			c.ask("before")
			set(p)
			_, _ = io.WriteString(c, "during\n") // refused or not
			if name == "hole" {
				dial(t, p).send("waits to be dialed\n")
			}
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(p.Close)
			}
			wg.Wait()
			if got, err := c.read(enough); err == nil && got != "re during" || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read %q, %v, want the end", got, err)
			}
			if _, err := net.DialTimeout("tcp", p.Addr(), enough); err == nil {
				t.Error("connected to a closed proxy")
			}
			if open := p.Stats().Open; open != 0 {
				t.Errorf("%d connections are open", open)
			}
		})
	}
}

// Modes may be switched while bytes pass; what passes stays in order.
func TestSwitchedLive(t *testing.T) {
	_, p := start(t)
	c := dial(t, p)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			switch i % 3 {
			case 0:
				p.BlackHole(faultproxy.Both)
			case 1:
				p.Delay(faultproxy.Both, time.Microsecond)
			case 2:
				p.Pass()
			}
			runtime.Gosched() // the bytes are to pass on one core too
		}
	})
	for i := range 300 {
		c.ask(fmt.Sprint(i))
	}
	close(stop)
	wg.Wait()
}
