package redislock

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/solotick/solotick/internal/lazyctx"
	"github.com/solotick/solotick/locks/driver"
)

// idleLong is how long a connection has had no request when it is looked at before the
// next one.
const idleLong = time.Second

// direct sends to a single server, over connections that its client opens and
// authenticates and then leaves to it: one, and more only while that one does not
// answer.
type direct struct {
	options *redis.Options
	ctx     context.Context // ends with stop
	stop    context.CancelFunc
	ended   sync.WaitGroup

	mu     sync.Mutex
	lanes  []*lane
	dial   *dialing // under way
	closed bool
}

// dialing is a connection being made, for all who wait for it.
type dialing struct {
	done chan struct{}
	err  error
}

// directTo returns nil where the client must send by itself: it knows which node to
// ask, or changes its credentials, or counts what it sends.
func directTo(rdb redis.UniversalClient) *direct {
	c, ok := rdb.(*redis.Client)
	if !ok {
		return nil
	}
	given := c.Options()
	if byName(rdb) || given.StreamingCredentialsProvider != nil || given.Limiter != nil {
		return nil
	}
	opt := *given
	opt.PoolSize, opt.MinIdleConns, opt.MaxRetries, opt.DialerRetries = 1, 0, -1, 1
	opt.ContextTimeoutEnabled = true
	opt.ReadBufferSize, opt.WriteBufferSize = 1024, 1024 // for the greeting only
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	d := &direct{options: &opt}
	d.ctx, d.stop = context.WithCancel(context.Background()) //nolint:forbidigo // a root of the driver's own: connections are shared by callers
	return d
}

// run has the commands answered, in one pipeline. Its own error means that there are
// no answers: marked not applied where nothing was sent.
func (d *direct) run(ctx context.Context, commands ...*command) error {
	if _, ends := ctx.Deadline(); !ends {
		limited := lazyctx.WithTimeout(ctx, unbounded)
		defer limited.Cancel()
		ctx = limited
	}
	if err := d.once(ctx, &request{commands: commands}); err != nil {
		return err
	}
	for try := 1; ; try++ {
		again, refused := errors.AsType[refusedTogether](commands[0].err)
		if !refused {
			break
		}
		if err := d.once(ctx, &request{commands: commands, apart: try > 1 || again.apart()}); err != nil {
			return err
		}
	}
	// A server that was restarted knows no scripts, and did nothing.
	var unknown []*command
	for _, c := range commands {
		if c.err != nil && redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return d.once(ctx, &request{commands: unknown, text: true})
}

func (d *direct) once(ctx context.Context, r *request) error {
	if ctx.Err() != nil {
		return driver.NotApplied(context.Cause(ctx))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l, err := d.lane(ctx)
	if err != nil {
		return driver.NotApplied(err)
	}
	if err = l.do(ctx, r); err == nil {
		err = r.err
	}
	if err != nil && !r.sent {
		return driver.NotApplied(err)
	}
	return err
}

// lane returns a connection that takes requests. The caller holds the mutex.
func (d *direct) lane(ctx context.Context) (*lane, error) {
	for {
		if d.closed {
			return nil, errClosed
		}
		now := time.Now()
		for i := 0; i < len(d.lanes); i++ {
			n := len(d.lanes)
			l := d.lanes[i]
			if l.usable(now) {
				return l, nil
			}
			i -= n - len(d.lanes) // it was found to have ended
		}
		if len(d.lanes) >= maxLanes {
			for _, l := range d.lanes {
				if !l.retired {
					return l, nil
				}
			}
		}
		if d.dial == nil {
			d.dial = &dialing{done: make(chan struct{})}
			d.ended.Go(d.open)
		}
		dial := d.dial
		d.mu.Unlock()
		var err error
		select {
		case <-dial.done:
			err = dial.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		d.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// open makes a connection.
func (d *direct) open() {
	l, err := d.connect(d.ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.closed {
		l.close()
		err = errClosed
	}
	if err == nil {
		d.lanes = append(d.lanes, l)
	}
	d.dial.err = err
	close(d.dial.done)
	d.dial = nil
}

// connect has the client open a connection, encrypt it and log in, and takes it over.
// The end of ctx ends that, also where the client does not look at it.
func (d *direct) connect(ctx context.Context) (_ *lane, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.options.DialTimeout)
	defer cancel()
	var mu sync.Mutex // the client dials in a goroutine of its own
	var conn net.Conn
	opt := *d.options
	opt.Dialer = func(dial context.Context, network, addr string) (net.Conn, error) {
		dial, cancel := context.WithCancel(dial)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		c, err := d.options.Dialer(dial, network, addr)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			conn = c
		}
		return c, err
	}
	stay := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if conn != nil {
			_ = conn.Close()
		}
	})
	client := redis.NewClient(&opt)
	pinned := client.Conn()
	defer func() {
		if err != nil {
			_ = pinned.Close()
			_ = client.Close()
		}
	}()
	if err := pinned.Ping(ctx).Err(); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, err
	}
	if !stay() {
		return nil, context.Cause(ctx)
	}
	return &lane{d: d, client: client, pinned: pinned, conn: conn, progress: time.Now(), late: make(chan struct{})}, nil
}

// remove forgets a lane. The caller holds the mutex.
func (d *direct) remove(l *lane) {
	for i, other := range d.lanes {
		if other == l {
			d.lanes = append(d.lanes[:i:i], d.lanes[i+1:]...)
			return
		}
	}
}

// gather lets those who are about to ask do so, so that they share a write. The caller
// holds the mutex.
func (d *direct) gather() {
	d.mu.Unlock()
	runtime.Gosched()
	d.mu.Lock()
}

// close ends all connections, and what waits on them.
func (d *direct) close() {
	d.stop()
	d.mu.Lock()
	d.closed = true
	for len(d.lanes) > 0 {
		d.lanes[0].fail(errClosed)
	}
	d.mu.Unlock()
	d.ended.Wait()
}
