package scheduler

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/leader"
)

// leadership is who gate leader asks: one elector for all jobs, or that of a job's
// partition where leadership is shared out.
type leadership struct {
	elector *leader.Elector
	shares  *leader.Shares
}

// checkLeadership compares what was configured with what was given.
func checkLeadership(cfg Config, deps Deps) error {
	switch {
	case deps.Elector != nil && deps.Shares != nil:
		return fmt.Errorf("scheduler: Deps.Elector and Deps.Shares are both given: give Shares to share leadership out, or Elector for one leader")
	case cfg.Partitions > 1 && deps.Shares == nil:
		return fmt.Errorf("scheduler: partitions: %d need Deps.Shares: give leader.NewShares(locker, key, leader.SharesConfig{Partitions: %d})", cfg.Partitions, cfg.Partitions)
	case cfg.Partitions > 0 && deps.Shares != nil && deps.Shares.Partitions() != cfg.Partitions:
		return fmt.Errorf("scheduler: partitions: %d, but Deps.Shares has %d: give both the same number, which must be that of every replica", cfg.Partitions, deps.Shares.Partitions())
	}
	return nil
}

func (l leadership) given() bool { return l.elector != nil || l.shares != nil }

// of is the elector that a job's ticks ask; nil if there is none.
func (l leadership) of(job string) *leader.Elector {
	if l.shares != nil {
		return l.shares.Of(job)
	}
	return l.elector
}

func (l leadership) run(ctx context.Context) error {
	if l.shares != nil {
		return l.shares.Run(ctx)
	}
	return l.elector.Run(ctx)
}

// err is nil while the coordinator answers.
func (l leadership) err() error {
	if l.shares != nil {
		return l.shares.Err()
	}
	return l.elector.Err()
}

func (l leadership) changed() <-chan struct{} {
	if l.shares != nil {
		return l.shares.Changed()
	}
	return l.elector.Changed()
}

// retire lets others lead as soon as the work of a term has ended. One elector is kept
// for all work, and ends with it.
func (l leadership) retire() {
	if l.shares != nil {
		l.shares.Retire()
	}
}

func (l leadership) electors() []*leader.Elector {
	if l.shares != nil {
		return l.shares.Electors()
	}
	return []*leader.Elector{l.elector}
}

// termsSeen are the terms that this process was last seen to have, by elector.
type termsSeen map[*leader.Elector]termSeen

type termSeen struct {
	number int64
	over   bool
}

// turns returns the numbers of the terms that have begun and ended since the last call
// with the same map.
func (l leadership) turns(seen termsSeen) (won, ended []int64) {
	for _, e := range l.electors() {
		was, now := seen[e], e.Term()
		switch {
		case now != nil && now.Number() != was.number:
			won = append(won, now.Number())
			if was.number != 0 && !was.over {
				ended = append(ended, was.number)
			}
			seen[e] = termSeen{number: now.Number()}
		case now == nil && was.number != 0 && !was.over:
			ended = append(ended, was.number)
			seen[e] = termSeen{was.number, true}
		}
	}
	return won, ended
}
