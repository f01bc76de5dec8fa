package locks

import "slices"

// watcher waits for the loss of a few grants, in one goroutine for all of them. The
// Locker's mu guards it. It ends when it has none.
type watcher struct {
	grants  [watched]*grant
	lost    [watched]<-chan struct{}
	n       int
	changed chan struct{} // capacity 1: look at lost again
}

// watched is how many grants share a goroutine. Its stack grows with it, and so
// does the time that a change takes.
const watched = 16

// watchLoss asks the driver to push the loss of g, and ends g as soon as it does.
func (l *Locker) watchLoss(g *grant) {
	if l.teller != nil {
		stop := l.teller.TellLoss(g.hold(), g.lost)
		l.mu.Lock()
		if g.err == nil {
			g.unwatch, stop = stop, nil
		}
		l.mu.Unlock()
		if stop != nil {
			stop()
		}
		return
	}
	if l.watcher == nil {
		return
	}
	lost, stop := l.watcher.WatchLoss(g.hold())
	l.mu.Lock()
	if g.err != nil {
		l.mu.Unlock()
		stop()
		return
	}
	var w *watcher
	for i := len(l.watchers) - 1; i >= 0 && w == nil; i-- {
		if l.watchers[i].n < watched {
			w = l.watchers[i]
		}
	}
	started := w != nil
	if !started {
		w = &watcher{changed: make(chan struct{}, 1)}
		l.watchers = append(l.watchers, w)
	}
	at := 0
	for w.grants[at] != nil {
		at++
	}
	w.grants[at], w.lost[at] = g, lost
	w.n++
	g.watcher, g.watchedAt, g.unwatch = w, uint8(at), stop
	if started {
		w.wake()
	} else {
		l.busy++
		go l.watchFor(w)
	}
	l.mu.Unlock()
}

// unwatch ends the watch of g and returns what is to be called then without mu. The
// caller holds mu.
func (l *Locker) unwatch(g *grant) (stop func()) {
	if w := g.watcher; w != nil {
		w.grants[g.watchedAt], w.lost[g.watchedAt] = nil, nil
		w.n--
		if w.n == 0 {
			w.wake()
		}
	}
	stop, g.watcher, g.unwatch = g.unwatch, nil, nil
	return stop
}

func (w *watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// watchFor ends what w is told to be lost.
func (l *Locker) watchFor(w *watcher) {
	defer l.done()
	for {
		l.mu.Lock()
		if w.n == 0 {
			l.watchers = slices.DeleteFunc(l.watchers, func(o *watcher) bool { return o == w })
			l.mu.Unlock()
			return
		}
		c := w.lost
		l.mu.Unlock()
		i := w.await(&c)
		if i < 0 {
			continue
		}
		var n ending
		l.mu.Lock()
		if g := w.grants[i]; g != nil && w.lost[i] == c[i] {
			n = l.lose(g, ReasonNotOurs)
		}
		l.mu.Unlock()
		n.tell()
	}
}

// await returns which of c was closed, or -1 if w has changed. A select of fixed
// size costs less than one by reflection, and a goroutine for each much more memory.
func (w *watcher) await(c *[watched]<-chan struct{}) int {
	select {
	case <-w.changed:
		return -1
	case <-c[0]:
		return 0
	case <-c[1]:
		return 1
	case <-c[2]:
		return 2
	case <-c[3]:
		return 3
	case <-c[4]:
		return 4
	case <-c[5]:
		return 5
	case <-c[6]:
		return 6
	case <-c[7]:
		return 7
	case <-c[8]:
		return 8
	case <-c[9]:
		return 9
	case <-c[10]:
		return 10
	case <-c[11]:
		return 11
	case <-c[12]:
		return 12
	case <-c[13]:
		return 13
	case <-c[14]:
		return 14
	case <-c[15]:
		return 15
	}
}

// lost is called by a driver when the grant has ended.
func (g *grant) lost() {
	l := g.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.err != nil {
		return
	}
	l.told = append(l.told, g)
	if len(l.told) == 1 {
		l.busy++
		go l.endTold()
	}
}

// endTold ends the grants whose loss the driver has told.
func (l *Locker) endTold() {
	defer l.done()
	var lost []ending
	l.mu.Lock()
	for _, g := range l.told {
		lost = append(lost, l.lose(g, ReasonNotOurs))
	}
	l.told = nil
	l.mu.Unlock()
	tellAll(lost)
}
