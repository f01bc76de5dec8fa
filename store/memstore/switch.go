package memstore

import (
	"context"
	"errors"
	"slices"

	"github.com/solotick/solotick/store"
)

var _ store.Switchboard = (*Store)(nil)

// ThrowSwitch implements [store.Switchboard].
func (s *Store) ThrowSwitch(ctx context.Context, ns string, c store.SwitchChange) (store.SwitchChange, error) {
	if ns == "" {
		return store.SwitchChange{}, errors.New("memstore: throw the switch: no namespace: name it")
	}
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return store.SwitchChange{}, err
	}
	defer s.mu.Unlock()
	if c.Token == (store.ID{}) {
		c.Token = store.NewID(now)
	}
	for _, known := range sp.changes {
		if known.Token == c.Token {
			return known, nil
		}
	}
	s.changes++
	c.ID, c.At = s.changes, now
	sp.changes = append(sp.changes, c)
	return c, nil
}

// SwitchChanges implements [store.Switchboard].
func (s *Store) SwitchChanges(ctx context.Context, ns string, fleet bool, limit int) ([]store.SwitchChange, store.Millis, error) {
	sp, now, err := s.begin(ctx, ns)
	if err != nil {
		return nil, 0, err
	}
	defer s.mu.Unlock()
	var out []store.SwitchChange
	for _, c := range slices.Backward(sp.changes) {
		if len(out) == max(limit, 1) {
			break
		}
		if c.Fleet || !fleet {
			out = append(out, c)
		}
	}
	return out, now, nil
}
