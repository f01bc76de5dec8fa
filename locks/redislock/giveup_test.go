package redislock

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/faultproxy"
	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/locks/driver"
)

const patience = time.Minute

// await waits for what other goroutines bring about.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// Connections on which somebody gave up end when the others have their answers.
func TestConnectionsGivenUpAreClosed(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := plain(t, p.Addr(), s.DB, nil)
	ask := func(ctx context.Context, key string) <-chan error {
		before, answer := p.Stats(), make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Key: key, Token: driver.NewToken(), TTL: time.Minute})
			answer <- err
		}()
		if err := p.Await(t.Context(), func(st faultproxy.Stats) bool { return st.BytesToServer > before.BytesToServer }); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for round := range 10 {
		p.BlackHole(faultproxy.ToClient)
		ctx, cancel := context.WithCancel(t.Context())
		answer := ask(t.Context(), strconv.Itoa(round))
		cancelled := ask(ctx, "cancelled"+strconv.Itoa(round))
		cancel()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		p.Pass()
		if err := <-answer; err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		if _, err := d.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrFree) { // dials
			t.Fatal(err)
		}
	}
	lanes := d.send.(*direct)
	lanes.mu.Lock()
	n := len(lanes.lanes)
	lanes.mu.Unlock()
	if n != 1 {
		t.Errorf("%d connections after ten stalls, want 1", n)
	}
}

func plain(t *testing.T, addr string, db int, dials *atomic.Int64) *Driver {
	t.Helper()
	opt := &redis.Options{Addr: addr, DB: db, MaxRetries: -1, ContextTimeoutEnabled: true}
	if dials != nil {
		opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	rdb := redis.NewClient(opt)
	d, err := NewDriver(rdb)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), rdb.Close()); err != nil {
			t.Error(err)
		}
	})
	warm := driver.Request{Key: "warm", Token: driver.NewToken(), TTL: time.Minute} // dials, and has the server looked at
	g, err := d.Acquire(t.Context(), warm)
	if err == nil {
		_, err = d.Release(t.Context(), driver.Hold{Request: warm, Fence: g.Fence})
	}
	if err != nil {
		t.Fatal(err)
	}
	d.Checked()
	return d
}

// What was told to be not applied is not sent later, and the connection goes on.
func TestGivenUpBeforeItWasSent(t *testing.T) {
	s := testenv.SharedRedis(t)
	d := plain(t, s.Addr, s.DB, nil)
	lanes := d.send.(*direct)
	lanes.mu.Lock()
	l := lanes.lanes[0]
	l.writing = true // as if a write were under way
	close(l.late)    // for long
	l.isLate = true
	lanes.mu.Unlock()
	unsent := func() int {
		lanes.mu.Lock()
		defer lanes.mu.Unlock()
		return l.unsent
	}
	ask := func(ctx context.Context, key string) <-chan error {
		answer, before := make(chan error, 1), unsent()
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Key: key, Token: driver.NewToken(), TTL: time.Minute})
			answer <- err
		}()
		await(t, "the request", func() bool { return unsent() > before })
		return answer
	}
	stays := ask(t.Context(), "stays") // reads
	ctx, cancel := context.WithCancel(t.Context())
	goes := ask(ctx, "goes")
	cancel()
	if err := <-goes; !driver.IsNotApplied(err) {
		t.Errorf("a request that was not sent: %v", err)
	}
	also := ask(t.Context(), "also")
	lanes.mu.Lock()
	l.write(time.Now())
	lanes.mu.Unlock()
	if err := errors.Join(<-stays, <-also); err != nil {
		t.Error(err)
	}
	held, err := d.List(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, h := range held {
		keys = append(keys, h.Key)
	}
	slices.Sort(keys)
	if want := []string{"also", "stays"}; !slices.Equal(keys, want) {
		t.Errorf("held: %q, want %q", keys, want)
	}
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	if len(lanes.lanes) != 1 || lanes.lanes[0] != l || l.retired || l.live != 0 {
		t.Errorf("the connection did not go on: %d of them, retired %t, %d wait", len(lanes.lanes), l.retired, l.live)
	}
}

// slowLane is a lane to a server of the test's, which answers OK to each ping as often as
// it is told to.
func slowLane(t *testing.T) (lanes *direct, l *lane, answer func()) {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _ = there.Close() })
	go func() { _, _ = io.Copy(io.Discard, bufio.NewReader(there)) }()
	lanes = &direct{}
	unused := redis.NewClient(&redis.Options{})
	l = &lane{d: lanes, client: unused, pinned: unused.Conn(), conn: here, late: make(chan struct{}), progress: time.Now()}
	t.Cleanup(func() {
		lanes.ended.Wait()
		_ = unused.Close() // also by the lane, where that has failed
	})
	return lanes, l, func() {
		if _, err := there.Write([]byte("+OK\r\n")); err != nil {
			t.Error(err)
		}
	}
}

func ping() *request {
	return &request{commands: []*command{{script: &script{}}}}
}

// Whose time is over is told, also while answers to others come one after the other.
func TestSlowAnswersHideNoDeadline(t *testing.T) {
	for _, reads := range []bool{true, false} {
		t.Run(map[bool]string{true: "who reads", false: "who waits"}[reads], func(t *testing.T) {
			lanes, l, answer := slowLane(t)
			const others = 300
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			queued := func() int {
				lanes.mu.Lock()
				defer lanes.mu.Unlock()
				return len(l.queue)
			}
			lanes.mu.Lock()
			for range others { // before it, of callers who do not wait here
				l.queue = append(l.queue, &request{commands: ping().commands, sent: true, given: true})
			}
			l.live++ // somebody's
			lanes.mu.Unlock()
			told := make(chan error, 2)
			ask := func(ctx context.Context) {
				before := queued()
				go func() {
					lanes.mu.Lock()
					defer lanes.mu.Unlock()
					told <- l.do(ctx, ping())
				}()
				await(t, "the request", func() bool { return queued() > before })
			}
			if !reads {
				ask(t.Context())
			}
			ask(ctx)
			cancel()
			answered := 0
			for ; answered < others; answered++ {
				select {
				case err := <-told:
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					if answered > others/2 {
						t.Errorf("told after %d answers to others", answered)
					}
					_ = l.conn.Close()
					return
				case <-time.After(glance / 2):
					answer()
				}
			}
			t.Errorf("not told during %d answers to others", answered)
			_ = l.conn.Close()
		})
	}
}

// What was answered before an answer that is none stays answered.
func TestAnswersBeforeNonsenseCount(t *testing.T) {
	lanes, l, _ := slowLane(t)
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	first, second := ping(), ping()
	first.sent, second.sent = true, true
	l.queue, l.live = []*request{first, second}, 2
	l.in = []byte("+OK\r\n?\r\n")
	l.deliver()
	if !first.done || first.err != nil || !second.done || second.err == nil || l.live != 0 {
		t.Errorf("first: %t, %v; second: %t, %v; %d wait", first.done, first.err, second.done, second.err, l.live)
	}
}

// A grant finds its waiter, however much else it was told and did not take.
func TestGrantIsNeverDropped(t *testing.T) {
	h := &hub{lines: map[string]chan push{"t": make(chan push, 4)}}
	for range 6 {
		h.tell("t", push{kind: pushBehind})
	}
	h.tell("t", push{pushGranted, 7})
	h.tell("nobody", push{pushGranted, 7})
	kinds := map[byte]int{}
	for len(h.lines["t"]) > 0 {
		kinds[(<-h.lines["t"]).kind]++
	}
	if kinds[pushGranted] != 1 || kinds[pushAgain] == 0 {
		t.Errorf("pushes: %v, want the grant, and that something was missed", kinds)
	}
}

// To close does not wait for a server that is silent while the subscription is made, and
// nothing dials when nobody waits any more.
func TestSilentServerKeepsNoSubscription(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	var dials atomic.Int64
	d := plain(t, p.Addr(), s.DB, &dials)
	p.BlackHole(faultproxy.Both)
	before := dials.Load()
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, _, err := d.hub.line(ctx, "waiter")
		waited <- err
	}()
	await(t, "the subscription's connection", func() bool { return dials.Load() > before })
	cancel()
	<-waited
	start := time.Now()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// Without waiters a subscription that failed is not made again.
func TestNobodyKeepsNoSubscription(t *testing.T) {
	s := testenv.SharedRedis(t)
	p := faultproxy.Start(t, s.Addr)
	d := plain(t, p.Addr(), s.DB, nil)
	p.Refuse()
	if _, _, err := d.hub.line(t.Context(), "waiter"); err == nil {
		t.Error("a subscription with a server that refuses")
	}
	await(t, "the end of the tries", func() bool {
		d.hub.mu.Lock()
		defer d.hub.mu.Unlock()
		return !d.hub.running
	})
}
