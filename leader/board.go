package leader

import (
	"context"
	"time"

	"github.com/solotick/solotick/locks"
)

// Board is what a look at some shares shows.
type Board struct {
	// Members are the processes that run, in the order of their places.
	Members []Member
	// Partitions by number. One that nobody leads has Term 0.
	Partitions []Leader
}

// Member is a process that runs.
type Member struct {
	Place int
	Label string
	Since time.Time // by the backend's clock; zero if not known
}

// Board asks the backend who is there and who leads what. Errors are those of
// [Elector.Leader], but ErrNoLeader. The shares need not run.
func (s *Shares) Board(ctx context.Context) (Board, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	found, err := s.locker.Survey(ctx, s.keys())
	if err != nil {
		return Board{}, unavailable(err)
	}
	held := make(map[string]locks.Holder, len(found))
	for _, h := range found {
		held[h.Key] = h
	}
	var b Board
	for i, key := range s.members {
		if h, ok := held[key]; ok {
			b.Members = append(b.Members, Member{Place: i, Label: h.Label, Since: h.Since})
		}
	}
	for _, p := range s.parts {
		l := Leader{Election: p.key}
		if h, ok := held[p.key]; ok {
			l = leaderOf(p.key, h)
		}
		b.Partitions = append(b.Partitions, l)
	}
	return b, nil
}

// keys of all places and partitions.
func (s *Shares) keys() []string {
	keys := make([]string, 0, 2*len(s.parts))
	keys = append(keys, s.members...)
	for _, p := range s.parts {
		keys = append(keys, p.key)
	}
	return keys
}
