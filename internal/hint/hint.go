// Package hint passes hints on to those who wait for something to change, and runs
// what listens for the changes only while somebody waits.
//
// A hint says no more than that it is worth a look. It may be lost, and it may be of
// nothing.
package hint

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrClosed is returned by [Source.Add] after [Source.Close].
var ErrClosed = errors.New("hint: the source is closed")

// Source is who waits for hints about which key. Its fields are set before its first
// use; it is safe for concurrent use, and not to be copied.
type Source struct {
	// Listen is run in a goroutine while somebody waits, and Linger longer, since the
	// next one may come soon. It returns when ctx ends and not before. It is never run
	// twice at a time.
	Listen func(ctx context.Context)
	Linger time.Duration

	mu      sync.Mutex
	waiting map[string][]chan struct{}
	cancel  context.CancelFunc // nil while nobody listens
	done    chan struct{}      // closed when Listen has returned; nil before its first run
	rest    *time.Timer
	closed  bool
}

// Add returns a channel with room for one hint about key, which is never closed, and
// what ends it; that may be called twice. Started tells that Listen is run anew for this
// call. Listen's context has the values of ctx and not its end.
func (s *Source) Add(ctx context.Context, key string) (hint <-chan struct{}, stop func(), started bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, false, ErrClosed
	}
	if s.waiting == nil {
		s.waiting = map[string][]chan struct{}{}
	}
	c := make(chan struct{}, 1)
	s.waiting[key] = append(s.waiting[key], c)
	if started = s.cancel == nil; started {
		running, cancel := context.WithCancel(context.WithoutCancel(ctx))
		before, done := s.done, make(chan struct{})
		s.cancel, s.done = cancel, done
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			s.Listen(running)
		}()
	}
	return c, sync.OnceFunc(func() { s.remove(key, c) }), started, nil
}

func (s *Source) remove(key string, c chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(s.waiting[key], func(o chan struct{}) bool { return o == c })
	if len(left) > 0 {
		s.waiting[key] = left
		return
	}
	delete(s.waiting, key)
	switch {
	case len(s.waiting) > 0 || s.cancel == nil:
	case s.rest == nil:
		s.rest = time.AfterFunc(s.Linger, s.end)
	default:
		s.rest.Reset(s.Linger)
	}
}

// end ends the listening if nobody waits.
func (s *Source) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 && s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// Keys are those for which somebody waits, in any order.
func (s *Source) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.waiting))
	for key := range s.waiting {
		keys = append(keys, key)
	}
	return keys
}

// Waits reports whether somebody waits for key.
func (s *Source) Waits(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting[key]) > 0
}

// Tell hints to all who wait for key.
func (s *Source) Tell(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tell(s.waiting[key])
}

// TellAll hints to everybody.
func (s *Source) TellAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.waiting {
		tell(all)
	}
}

func tell(all []chan struct{}) {
	for _, c := range all {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Close ends the listening, waits for that, and refuses who comes later. It may be
// called twice.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
	if s.rest != nil {
		s.rest.Stop()
	}
	done := s.done
	s.mu.Unlock()
	if done != nil {
		<-done
	}
}
