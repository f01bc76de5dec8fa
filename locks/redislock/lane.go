package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// lane is a connection on which requests are written while answers to earlier ones
// are still to come. No goroutine belongs to it: of those who wait for answers one
// reads them all and passes that on when it has its own. So a lone request is written
// and answered on its caller's goroutine, without a hop between goroutines.
//
// All lanes of a driver share the mutex of direct, which guards everything but in.
type lane struct {
	d      *direct
	client *redis.Client // made the connection
	pinned *redis.Conn   // keeps it out of the client's hands
	conn   net.Conn

	out      []byte           // what was written last: the writer's
	batch    []*request       // the same: the writer's
	queue    []*request       // not answered, in order
	unsent   int              // of queue, its last
	knows    map[*script]bool // whether the server has the script for several locks
	live     int              // of queue: those whose callers still wait
	writing  bool
	reading  bool
	retired  bool          // takes no more: somebody gave up waiting on it
	err      error         // why it has ended
	progress time.Time     // when there was an answer, or a request after none
	late     chan struct{} // closed for those who have waited about a glance
	lateFrom time.Time     // when that was made
	isLate   bool
	readBy   time.Time // the deadlines of the connection
	writeBy  time.Time

	in []byte // read, and no whole answer yet: the reader's
}

const (
	// glance is how long a reader reads before it looks at its context. To set a
	// deadline for each answer, and be told of the context's end, costs as much as the
	// rest of a request.
	glance = 4 * time.Millisecond
	// writeLimit bounds a write, which waits only where the peer takes nothing in.
	writeLimit = time.Second
)

// request is what one caller has answered.
type request struct {
	commands []*command
	text     bool // with the text of the scripts
	apart    bool // not as one script with others
	shared   int  // requests that are sent as one script with this, which is the first
	led      bool // sent behind a ping
	drop     bool // the next answer, which is the ping's
	got      int
	done     bool
	sent     bool
	waiting  bool          // in signal
	reader   bool          // told to read
	given    bool          // up by its caller
	signal   chan struct{} // done, or reader; made by who waits
	err      error         // of the connection
}

// do sends r and waits until it is answered, the lane fails (r.err), or ctx ends. The
// caller holds the mutex, before and after.
func (l *lane) do(ctx context.Context, r *request) error {
	now := time.Now()
	if len(l.queue) == 0 {
		l.progress = now
	}
	l.unsent++
	l.queue = append(l.queue, r)
	l.live++
	if !l.writing {
		l.write(now)
	}
	for !r.done {
		if !l.reading {
			l.reading = true
			r.reader = true
		}
		if r.reader {
			err := l.read(ctx, r)
			r.reader = false
			l.passOn()
			if err != nil {
				return l.giveUp(r, err)
			}
			continue
		}
		if r.signal == nil {
			r.signal = make(chan struct{}, 1)
		}
		r.waiting = true
		late := l.late
		l.d.mu.Unlock()
		// Whoever reads finds out that nothing comes, so that an answer which comes at
		// once costs no timer.
		var err error
		select {
		case <-r.signal:
		case <-late:
			select {
			case <-r.signal:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		l.d.mu.Lock()
		r.waiting = false
		if err != nil && !r.done {
			if r.reader {
				r.reader = false
				l.passOn()
			}
			return l.giveUp(r, err)
		}
	}
	return nil
}

// write sends what there is until there is no more. The caller holds the mutex.
func (l *lane) write(now time.Time) {
	l.writing = true
	for l.unsent > 0 && l.err == nil {
		if len(l.queue) > 1 {
			l.d.gather()
			if l.err != nil {
				break
			}
		}
		batch := l.queue[len(l.queue)-l.unsent:]
		l.merge(batch)
		for _, r := range batch {
			r.sent = true
		}
		for rest := batch; len(rest) > 0; rest = rest[max(rest[0].shared, 1):] {
			rest[0].led = rest[0].commands[0].script.hands
			rest[0].drop = rest[0].led
		}
		l.batch, l.unsent = append(l.batch[:0], batch...), 0
		renew := l.writeBy.Sub(now) < writeLimit/2
		if renew {
			l.writeBy = now.Add(writeLimit)
		}
		by := l.writeBy
		l.d.mu.Unlock()
		var err error
		if renew {
			err = l.conn.SetWriteDeadline(by)
		}
		if err == nil {
			l.out = encodeAll(l.out[:0], l.batch)
			_, err = l.conn.Write(l.out)
		}
		clear(l.batch)
		l.d.mu.Lock()
		if err != nil {
			l.fail(err)
		}
		now = time.Now()
	}
	l.writing = false
}

// read reads answers until r has its own. An error is that of ctx. The caller holds
// the mutex, and the right to read.
func (l *lane) read(ctx context.Context, r *request) error {
	for fast := true; !r.done && l.err == nil; {
		l.d.mu.Unlock()
		n, err := l.receive(ctx, fast)
		l.d.mu.Lock()
		if n > 0 {
			l.deliver()
			fast = true
			// Others' answers keep nobody from seeing that its own time is over.
			if slow := len(l.queue) > 0 && l.progress.Sub(l.lateFrom) > glance; slow || l.isLate {
				l.nextGlance(l.progress)
				if slow && !r.done && ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			continue
		}
		if errTimeout(err) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			fast = false
			if !l.isLate {
				l.isLate = true
				close(l.late)
			}
			continue
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		l.fail(err)
	}
	return nil
}

// nextGlance has those who wait look at their contexts from now on. The caller holds
// the mutex.
func (l *lane) nextGlance(now time.Time) {
	if !l.isLate {
		close(l.late)
	}
	l.late, l.lateFrom, l.isLate = make(chan struct{}), now, false
}

// receive reads what there is. It times out after a glance if fast, else when ctx
// ends, and now and then before.
func (l *lane) receive(ctx context.Context, fast bool) (n int, err error) {
	if fast {
		if now := time.Now(); l.readBy.Sub(now) < glance/2 {
			l.readBy = now.Add(glance)
			err = l.conn.SetReadDeadline(l.readBy)
		}
	} else {
		l.readBy = time.Time{}
		err = l.conn.SetReadDeadline(l.readBy)
		defer context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })()
	}
	if err != nil {
		return 0, err
	}
	if cap(l.in)-len(l.in) < 512 {
		l.in = append(make([]byte, 0, max(4096, 2*cap(l.in))), l.in...)
	}
	n, err = l.conn.Read(l.in[len(l.in):cap(l.in)])
	l.in = l.in[:len(l.in)+n]
	return n, err
}

func errTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// deliver gives the answers that are there to those who asked. The caller holds the
// mutex, and the right to read.
func (l *lane) deliver() {
	used, answered := 0, 0
	var failure error
	for used < len(l.in) && failure == nil {
		push := l.in[used] == '>'
		val, n, err := readReply(l.in[used:], 0)
		if failure = err; err != nil || n == 0 {
			break
		}
		used += n
		if push {
			continue // to nobody who asked
		}
		if answered == len(l.queue)-l.unsent {
			failure = fmt.Errorf("%w: an answer to no request", errProtocol)
			break
		}
		r := l.queue[answered]
		if r.drop {
			r.drop = false // also where it is refused, as by an ACL
			continue
		}
		if r.shared > 1 {
			if !l.share(l.queue[answered:answered+r.shared], val) {
				failure = fmt.Errorf("%w: not an answer for each of %d locks", errProtocol, r.shared)
				break
			}
			answered += r.shared
			continue
		}
		r.commands[r.got].answer(val)
		if r.got++; r.got == len(r.commands) {
			answered++
			l.finish(r)
		}
	}
	l.keep(used, answered)
	if failure != nil {
		l.fail(failure)
	}
}

// keep drops what was used up.
func (l *lane) keep(used, answered int) {
	l.in = l.in[:copy(l.in, l.in[used:])]
	if answered > 0 {
		left := copy(l.queue, l.queue[answered:])
		clear(l.queue[left:])
		l.queue = l.queue[:left]
		l.progress = time.Now()
	}
}

// finish tells the caller of r. The caller holds the mutex.
func (l *lane) finish(r *request) {
	r.done = true
	if !r.given {
		l.live--
	}
	if r.waiting {
		r.waiting = false
		r.signal <- struct{}{}
	}
}

// passOn lets another one read. Who has not begun to wait will see by itself that
// nobody reads. The caller holds the mutex.
func (l *lane) passOn() {
	l.reading = false
	switch {
	case l.err != nil:
		return
	case l.retired && l.live == 0:
		l.fail(errGivenUp)
		return
	}
	for _, r := range l.queue {
		if r.waiting {
			l.reading, r.reader, r.waiting = true, true, false
			r.signal <- struct{}{}
			return
		}
	}
}

// giveUp leaves r without an answer, and unsent where it is. Answers come in order, so
// that nobody can go on using the lane before that to r has come: it takes no more
// requests, and ends when nobody waits for one. The caller holds the mutex.
func (l *lane) giveUp(r *request, err error) error {
	l.live--
	if !r.sent {
		if at := slices.Index(l.queue, r); at >= 0 {
			l.queue = slices.Delete(l.queue, at, at+1)
			l.unsent--
		}
		return err
	}
	r.given = true
	l.retired = true
	if l.live == 0 {
		l.fail(errGivenUp)
	}
	return err
}

var errGivenUp = errors.New("nobody waits for the connection any more")

// fail ends the lane. The caller holds the mutex.
func (l *lane) fail(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	for _, r := range l.queue {
		r.err = err
		l.finish(r)
	}
	l.queue, l.unsent = nil, 0
	l.d.remove(l)
	l.d.ended.Go(l.close)
}

func (l *lane) close() {
	_ = l.conn.Close()
	_ = l.pinned.Close()
	_ = l.client.Close() // both only tidy up
}

// usable reports whether the lane may take another request. The caller holds the
// mutex.
func (l *lane) usable(now time.Time) bool {
	if l.retired || l.err != nil {
		return false
	}
	if len(l.queue) > 0 {
		return now.Sub(l.progress) < stall
	}
	if now.Sub(l.progress) > idleLong {
		l.readBy = time.Time{} // the look takes the deadline away
		if !quietConn(l.conn) {
			l.fail(net.ErrClosed)
			return false
		}
	}
	return true
}
