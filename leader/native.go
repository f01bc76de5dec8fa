package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/locks"
	lockdriver "github.com/solotick/solotick/locks/driver"
)

// nativeSource campaigns by a backend's own recipe. Once won, a term is timed by
// the same code as a lock, by way of keeper.
type nativeSource struct {
	driver   driver.Driver
	election string
	cfg      Config
	locks    locks.Config
}

func newNativeSource(d driver.Driver, election string, cfg Config) (*nativeSource, error) {
	s := &nativeSource{
		driver: d, election: election, cfg: cfg,
		locks: locks.Config{TTL: cfg.TTL, Label: cfg.Label, ReleaseTimeout: cfg.RequestTimeout},
	}
	if s.locks.TTL == 0 {
		s.locks.TTL = 10 * time.Second
	}
	// What the backend cannot honour is refused now, not at the first win.
	if _, err := locks.New(&keeper{driver: d}, s.locks); err != nil {
		return nil, fmt.Errorf("leader: %w", err)
	}
	return s, nil
}

func (s *nativeSource) campaign(ctx context.Context, answered func(error)) (win, error) {
	term := driver.Term{Candidate: driver.Candidate{
		Election: s.election, Token: lockdriver.NewToken(), TTL: s.locks.TTL, Label: s.cfg.Label,
	}}
	grant, err := s.driver.Campaign(ctx, term.Candidate, func() { answered(nil) })
	if err != nil {
		s.withdraw(ctx, term)
		return win{}, err
	}
	term.Number = grant.Number
	locker, err := locks.New(&keeper{driver: s.driver, term: term}, s.locks)
	if err != nil {
		s.withdraw(ctx, term)
		return win{}, err
	}
	// The campaign may have waited for long, so its start says nothing about the
	// life that is left. The first Keep opens the trust window.
	lease, err := locker.TryAcquire(ctx, s.election)
	if err != nil {
		s.withdraw(ctx, term)
		s.close(ctx, locker)
		return win{}, err
	}
	w := win{lease: lease, stop: func() { s.close(ctx, locker) }}
	if n, ok := s.driver.(driver.Notifier); ok {
		ended, stop := n.Ended(term)
		w.ended, w.stop = ended, func() { stop(); s.close(ctx, locker) }
	}
	return w, nil
}

// close ends what times a term. A resignation of unknown outcome is repeated until
// then.
func (s *nativeSource) close(ctx context.Context, locker *locks.Locker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.RequestTimeout)
	defer cancel()
	_ = locker.Close(ctx) // what it abandons ends with its TTL
}

// withdraw leaves no candidacy behind. What cannot be withdrawn in time ends with
// its TTL.
func (s *nativeSource) withdraw(ctx context.Context, t driver.Term) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.RequestTimeout)
	defer cancel()
	for n := 0; ; n++ {
		if _, err := s.driver.Resign(ctx, t); err == nil || backoff.Wait(ctx, retry.Delay(n)) != nil {
			return
		}
	}
}

func (s *nativeSource) leader(ctx context.Context) (Leader, error) {
	o, ok := s.driver.(driver.Observer)
	if !ok {
		return Leader{}, ErrUnsupported
	}
	h, err := o.Leader(ctx, s.election)
	switch {
	case err == nil:
		return leaderOf(s.election, h), nil
	case errors.Is(err, lockdriver.ErrFree):
		return Leader{}, ErrNoLeader
	}
	return Leader{}, unavailable(err)
}

func (s *nativeSource) watch(ctx context.Context) (<-chan struct{}, func(), error) {
	w, ok := s.driver.(driver.Watcher)
	if !ok {
		return nil, func() {}, nil
	}
	return w.Watch(ctx, s.election)
}

// keeper shows one won term to a Locker as a lock: to acquire and to renew it is
// to keep the term, to release it is to resign.
type keeper struct {
	driver driver.Driver
	term   driver.Term
}

func (k *keeper) Acquire(ctx context.Context, r lockdriver.Request) (lockdriver.Grant, error) {
	g, err := k.driver.Keep(ctx, k.term)
	if errors.Is(err, lockdriver.ErrNotOurs) {
		return lockdriver.Grant{}, &lockdriver.HeldError{Holder: lockdriver.Holder{Key: r.Key}}
	}
	return lockdriver.Grant{Fence: k.term.Number, TTL: g.TTL}, err
}

func (k *keeper) Renew(ctx context.Context, _ lockdriver.Hold) (lockdriver.Grant, error) {
	g, err := k.driver.Keep(ctx, k.term)
	return lockdriver.Grant{Fence: k.term.Number, TTL: g.TTL}, err
}

func (k *keeper) Release(ctx context.Context, _ lockdriver.Hold) (lockdriver.Released, error) {
	return k.driver.Resign(ctx, k.term)
}

func (k *keeper) Limits() lockdriver.Limits {
	if l, ok := k.driver.(lockdriver.Limiter); ok {
		return l.Limits()
	}
	return lockdriver.Limits{}
}
