package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/locks"
)

// lockSource takes terms from a lock: who holds the key leads.
type lockSource struct {
	locker *locks.Locker
	key    string
	opts   []locks.Option
}

func lockOptions(cfg Config) []locks.Option {
	opts := []locks.Option{locks.WithLabel(cfg.Label)}
	if cfg.TTL > 0 {
		opts = append(opts, locks.WithTTL(cfg.TTL))
	}
	return opts
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

// slice is how long one wait for the key lasts. A wait tells whether the backend
// answers when it ends, so this is also how late an outage is noticed.
const slice = 2 * time.Second

func (s *lockSource) campaign(ctx context.Context, answered func()) (win, error) {
	for {
		lease, err := s.locker.TryAcquire(ctx, s.key, s.opts...)
		for errors.Is(err, locks.ErrHeld) && ctx.Err() == nil {
			answered()
			lease, err = s.wait(ctx)
		}
		// A wait behind another of this process ends without news of the backend.
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, locks.ErrUnavailable) || ctx.Err() != nil {
			return win{lease: lease, stop: func() {}}, err
		}
	}
}

func (s *lockSource) wait(ctx context.Context) (*locks.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, slice)
	defer cancel()
	return s.locker.Acquire(ctx, s.key, s.opts...)
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
