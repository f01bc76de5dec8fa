package memlock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// Space holds the keys that its drivers share. The zero Space is empty and ready
// for use. It is safe for concurrent use and must not be copied.
type Space struct {
	// Queue makes waiters stand in line, first come, first served. Default: they
	// poll, and are woken by a release. Set it before the first use, like PushLoss.
	Queue bool
	// PushLoss tells a holder at once that its record was deleted, taken or forced
	// free. Default: its next renewal does.
	PushLoss bool

	mu      sync.Mutex
	records map[string]record
	fence   int64 // the last one given
	wakers  map[string]map[chan struct{}]struct{}
	lines   map[string][]*waiter
}

type record struct {
	token   driver.Token
	fence   int64
	label   string
	since   time.Time
	expires time.Time
	lost    chan struct{} // closed when the record goes; nil if nobody watches it
}

// New returns a Locker on space, which stands for one process. A nil space is a
// new one of its own; a nil cfg is the zero Config.
func New(space *Space, cfg *locks.Config) (*locks.Locker, error) {
	if cfg == nil {
		cfg = new(locks.Config)
	}
	return locks.New(NewDriver(space), *cfg)
}

// NewDriver returns a driver on space; a nil space is a new one of its own.
func NewDriver(space *Space) driver.Driver {
	if space == nil {
		space = new(Space)
	}
	return &memDriver{space}
}

// Plugin returns the backend called "memory". Every driver that it opens shares
// space; a nil space is a new one. It has no settings.
func Plugin(space *Space) locks.Plugin {
	if space == nil {
		space = new(Space)
	}
	return locks.Plugin{
		Name: "memory",
		Open: func(_ context.Context, decode func(any) error) (driver.Driver, error) {
			if err := decode(new(struct{})); err != nil {
				return nil, err
			}
			return NewDriver(space), nil
		},
	}
}

// Delete removes the record of key behind its holder's back, as an operator or an
// eviction would. The fence is not raised by it.
func (s *Space) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.live(key); held {
		s.end(key)
	}
}

// Len returns the number of keys held.
func (s *Space) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return len(s.records)
}

// live returns the record of key unless its time has passed. The caller holds mu.
func (s *Space) live(key string) (record, bool) {
	r, ok := s.records[key]
	if ok && !time.Now().Before(r.expires) {
		s.end(key)
		r, ok = s.records[key]
	}
	return r, ok
}

// end removes the record of key and gives the key to the first in line, or tells
// those who poll. The caller holds mu.
func (s *Space) end(key string) {
	if lost := s.records[key].lost; lost != nil {
		close(lost)
	}
	delete(s.records, key)
	if !s.grantNext(key) {
		s.wake(key)
	}
}

// expire removes what has run out. The caller holds mu.
func (s *Space) expire() {
	for key := range s.records {
		s.live(key)
	}
}

// wake tells those who wait for key. The caller holds mu.
func (s *Space) wake(key string) {
	for c := range s.wakers[key] {
		select {
		case c <- struct{}{}:
		default: // a hint is waiting already
		}
	}
}

func (s *Space) holder(key string, r record) driver.Holder {
	return driver.Holder{
		Key: key, Label: r.label, Token: r.token, Fence: r.fence,
		Since: r.since, Remaining: time.Until(r.expires), Waiters: len(s.lines[key]),
	}
}

type memDriver struct{ s *Space }

var (
	_ driver.Driver       = (*memDriver)(nil)
	_ driver.BatchRenewer = (*memDriver)(nil)
	_ driver.Waker        = (*memDriver)(nil)
	_ driver.Inspector    = (*memDriver)(nil)
	_ driver.Queuer       = (*memDriver)(nil)
	_ driver.LossWatcher  = (*memDriver)(nil)
	_ driver.Partial      = (*memDriver)(nil)
)

// Serves implements [driver.Partial].
func (d *memDriver) Serves(iface any) bool {
	switch iface.(type) {
	case *driver.Queuer:
		return d.s.Queue
	case *driver.LossWatcher:
		return d.s.PushLoss
	}
	return true
}

func (d *memDriver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(err)
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	rec, ours := d.s.acquire(r)
	if !ours {
		return driver.Grant{}, &driver.HeldError{Holder: d.s.holder(r.Key, rec)}
	}
	return driver.Grant{Fence: rec.fence}, nil
}

// acquire grants the key to r if it is free or r's already, and returns the record
// that the key has then. The caller holds mu.
func (s *Space) acquire(r driver.Request) (rec record, ours bool) {
	rec, held := s.live(r.Key)
	switch {
	case !held, mutation.On("lock-exclusion"):
		return s.grant(r), true
	case rec.token != r.Token:
		return rec, false
	}
	rec.expires = time.Now().Add(r.TTL)
	s.records[r.Key] = rec
	return rec, true
}

// grant gives the key, which is free, to r. The caller holds mu.
func (s *Space) grant(r driver.Request) record {
	s.fence++
	now := time.Now()
	rec := record{token: r.Token, fence: s.fence, label: r.Label, since: now, expires: now.Add(r.TTL)}
	if s.records == nil {
		s.records = make(map[string]record)
	}
	s.records[r.Key] = rec
	return rec
}

func (d *memDriver) Renew(ctx context.Context, h driver.Hold) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, driver.NotApplied(err)
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	return driver.Grant{Fence: h.Fence}, d.renew(h)
}

func (d *memDriver) RenewBatch(ctx context.Context, holds []driver.Hold) []error {
	errs := make([]error, len(holds))
	if err := ctx.Err(); err != nil {
		for i := range errs {
			errs[i] = driver.NotApplied(err)
		}
		return errs
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	for i, h := range holds {
		errs[i] = d.renew(h)
	}
	return errs
}

func (d *memDriver) renew(h driver.Hold) error {
	rec, held := d.s.live(h.Key)
	if !held || rec.token != h.Token || rec.fence != h.Fence {
		return driver.ErrNotOurs
	}
	rec.expires = time.Now().Add(h.TTL)
	d.s.records[h.Key] = rec
	return nil
}

func (d *memDriver) Release(ctx context.Context, h driver.Hold) (driver.Released, error) {
	if err := ctx.Err(); err != nil {
		return 0, driver.NotApplied(err)
	}
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, held := s.live(h.Key)
	ours := rec.token == h.Token && (h.Fence == 0 || rec.fence == h.Fence)
	switch {
	case !held:
		return driver.ReleasedGone, nil
	case !ours && !mutation.On("release-without-token"):
		return driver.ReleasedOther, nil
	}
	s.end(h.Key)
	return driver.ReleasedOK, nil
}

func (d *memDriver) Wake(_ context.Context, key string) (<-chan struct{}, func(), error) {
	s := d.s
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wakers[key] == nil {
		if s.wakers == nil {
			s.wakers = make(map[string]map[chan struct{}]struct{})
		}
		s.wakers[key] = make(map[chan struct{}]struct{})
	}
	s.wakers[key][c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.wakers[key], c)
		if len(s.wakers[key]) == 0 {
			delete(s.wakers, key)
		}
	}, nil
}

// Watch implements [driver.Watcher], but for grants.
func (d *memDriver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return d.Wake(ctx, key)
}

func (d *memDriver) Inspect(_ context.Context, key string) (driver.Holder, error) {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	rec, held := d.s.live(key)
	if !held {
		return driver.Holder{}, driver.ErrFree
	}
	return d.s.holder(key, rec), nil
}

func (d *memDriver) List(_ context.Context, prefix string, limit int) ([]driver.Holder, error) {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	var found []driver.Holder
	for key, rec := range s.records {
		if strings.HasPrefix(key, prefix) {
			found = append(found, s.holder(key, rec))
		}
	}
	slices.SortFunc(found, func(a, b driver.Holder) int { return strings.Compare(a.Key, b.Key) })
	return found[:min(len(found), limit)], nil
}

func (d *memDriver) ForceRelease(_ context.Context, key string) (driver.Released, error) {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	_, held := s.live(key)
	s.fence++
	if !held {
		return driver.ReleasedGone, nil
	}
	s.end(key)
	return driver.ReleasedOK, nil
}
