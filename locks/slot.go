package locks

// slot is what this process knows about one key. It exists while somebody uses
// it. The Locker's mu guards it.
type slot struct {
	key     string
	refs    int
	holder  *grant        // the grant held by this process
	freed   chan struct{} // closed when holder goes; nil if nobody waits for that
	line    turn          // those who wait for the key; the first of them asks
	call    turn          // those who ask the backend
	orphans []*orphan     // of this key
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
	taken   bool
	waiting []chan error
}

// enter takes the turn, or returns a channel that tells when it has come (nil) or
// that it will not (an error).
func (t *turn) enter() <-chan error {
	if !t.taken {
		t.taken = true
		return nil
	}
	c := make(chan error, 1)
	t.waiting = append(t.waiting, c)
	return c
}

// leave passes the turn on.
func (t *turn) leave() {
	if len(t.waiting) == 0 {
		t.taken, t.waiting = false, nil
		return
	}
	t.waiting[0] <- nil
	t.waiting = t.waiting[1:]
}

// fail gives up the turn and sends everybody who waits for it away with err.
func (t *turn) fail(err error) {
	for _, c := range t.waiting {
		c <- err
	}
	t.taken, t.waiting = false, nil
}

// giveUp leaves the queue, or passes the turn on if it has just come.
func (t *turn) giveUp(c <-chan error) {
	for i, w := range t.waiting {
		if w == c {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			return
		}
	}
	if err := <-c; err == nil {
		t.leave()
	}
}
