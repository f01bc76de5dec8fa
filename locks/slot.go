package locks

import "slices"

// slot is what this process knows about one key. It exists while somebody uses
// it. The Locker's mu guards it.
type slot struct {
	key     string
	refs    int32
	orphans int32         // of this key, among the Locker's
	holder  *grant        // the grant held by this process
	freed   chan struct{} // closed when holder goes; nil if nobody waits for that
	line    turn          // those who wait for the key; the first of them asks
	call    turn          // those who ask the backend
}

// use returns the slot of key for as long as the caller needs it.
func (l *Locker) use(key string) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[key]
	if s == nil {
		s = &slot{key: key}
		l.slots[key] = s
	}
	s.refs++
	return s
}

// drop ends one use. The caller holds mu.
func (l *Locker) drop(s *slot) {
	if s.refs--; s.refs == 0 {
		delete(l.slots, s.key)
	}
}

func (l *Locker) unuse(s *slot) {
	l.mu.Lock()
	l.drop(s)
	l.mu.Unlock()
}

// vacate lets the next one of this process have the key. The caller holds mu.
func (l *Locker) vacate(g *grant) {
	s := g.s
	if s.holder != g {
		return
	}
	s.holder = nil
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
	l.drop(s)
}

// turn is a mutex that is taken in order of arrival and whose waiters can give
// up. The Locker's mu guards it.
type turn struct {
	waiting *[]chan error // nil where the turn is free
}

// nobody waits: what the turns have that are taken by one alone. It never changes.
var nobody = new([]chan error)

func (t *turn) taken() bool { return t.waiting != nil }

// enter takes the turn, or returns a channel that tells when it has come (nil) or
// that it will not (an error).
func (t *turn) enter() <-chan error {
	if !t.taken() {
		t.waiting = nobody
		return nil
	}
	if t.waiting == nobody {
		t.waiting = new([]chan error)
	}
	c := make(chan error, 1)
	*t.waiting = append(*t.waiting, c)
	return c
}

// leave passes the turn on.
func (t *turn) leave() {
	if len(*t.waiting) == 0 {
		t.waiting = nil
		return
	}
	(*t.waiting)[0] <- nil
	*t.waiting = (*t.waiting)[1:]
}

// fail gives up the turn and sends everybody who waits for it away with err.
func (t *turn) fail(err error) {
	for _, c := range *t.waiting {
		c <- err
	}
	t.waiting = nil
}

// giveUp leaves the queue, or passes the turn on if it has just come.
func (t *turn) giveUp(c <-chan error) {
	if t.taken() {
		for i, w := range *t.waiting {
			if w == c {
				*t.waiting = slices.Delete(*t.waiting, i, i+1)
				return
			}
		}
	}
	if err := <-c; err == nil {
		t.leave()
	}
}
