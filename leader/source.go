package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/solotick/solotick/locks"
)

// lockSource takes terms from a lock: who holds the key leads.
type lockSource struct {
	locker *locks.Locker
	key    string
	opts   []locks.Option
}

func lockOptions(cfg Config, ttl time.Duration) []locks.Option {
	if cfg.TTL > 0 {
		ttl = cfg.TTL
	}
	poll := cfg.Poll
	if poll == 0 {
		poll = min(ttl*2/5, 4*time.Second)
	}
	return []locks.Option{locks.WithLabel(cfg.Label), locks.WithTTL(ttl), locks.WithPoll(poll)}
}

// check finds out without a request whether the locker takes key and options.
func (s *lockSource) check() error {
	ended, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // made to have ended
	cancel()
	_, err := s.locker.TryAcquire(ended, s.key, s.opts...)
	if errors.Is(err, locks.ErrInvalid) {
		return fmt.Errorf("leader: %w", err)
	}
	return nil
}

func (s *lockSource) campaign(ctx context.Context, answered func(error)) (win, error) {
	opts := append(slices.Clip(s.opts), locks.WithAnswers(answered))
	// The first look is not left to whoever of this process stands in line before.
	lease, err := s.locker.TryAcquire(ctx, s.key, opts...)
	if errors.Is(err, locks.ErrHeld) {
		answered(nil)
		lease, err = s.locker.Acquire(ctx, s.key, opts...)
	}
	return win{lease: lease, stop: func() {}}, err
}

func (s *lockSource) leader(ctx context.Context) (Leader, error) {
	h, err := s.locker.Inspect(ctx, s.key)
	switch {
	case err == nil:
		return leaderOf(s.key, h), nil
	case errors.Is(err, locks.ErrFree):
		return Leader{}, ErrNoLeader
	case errors.Is(err, locks.ErrUnsupported):
		return Leader{}, ErrUnsupported
	}
	return Leader{}, unavailable(err)
}

func (s *lockSource) watch(context.Context) (<-chan struct{}, func(), error) {
	return nil, func() {}, nil
}

func leaderOf(election string, h locks.Holder) Leader {
	return Leader{Election: election, Term: h.Fence, Label: h.Label, Since: h.Since, Remaining: h.Remaining}
}
