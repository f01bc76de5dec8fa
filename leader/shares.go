package leader

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/locks"
)

// MaxPartitions is the largest number of partitions that [Shares] has.
const MaxPartitions = 256

// SharesConfig is what an operator writes. The zero value works.
type SharesConfig struct {
	// Config is that of each partition's elector. StandBack, Poll and ObserveInterval
	// have no meaning here.
	Config `yaml:",inline"`
	// Partitions is the number of elections, 1 to 256. It must be the same in every
	// process: what a name belongs to depends on it. Default 24.
	Partitions int `yaml:"partitions"`
	// Interval is how often a process looks who is there and what is free, jittered by
	// 10 %: how late it notices that a partition can be taken, where the backend does not
	// push that (etcd, ZooKeeper and memory do). There it looks at a change as
	// well, at most 20 times an interval and a fifth of the time. Each look is one request
	// where the backend can answer for several keys. Default 1s.
	Interval time.Duration `yaml:"interval"`
	// Drain is how long a partition that moves to another process waits for work that
	// is under way. Then that work is ended, as by [Elector.Resign]. Default 30s.
	Drain time.Duration `yaml:"drain"`
}

func (c SharesConfig) withDefaults() SharesConfig {
	c.StandBack = 1 // who may campaign is for the shares to say
	c.Config = c.Config.withDefaults()
	if c.Partitions == 0 {
		c.Partitions = 24
	}
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Interval, time.Second}, {&c.Drain, 30 * time.Second}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return c
}

// Validate reports every field that cannot work, and what would.
func (c SharesConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Config.Validate()}
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("leader: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		bad("partitions", "%d is not in 1 to %d", c.Partitions, MaxPartitions)
	}
	if c.Priority != 0 {
		bad("priority", "%d has no meaning where leadership is shared out: leave it out", c.Priority)
	}
	if c.Interval < minInterval {
		bad("interval", "%v is below %v", c.Interval, minInterval)
	}
	if c.Drain < 0 {
		bad("drain", "%v is negative: write 1ms to end the work at once", c.Drain)
	}
	return errors.Join(errs...)
}

// Shares shares leadership out: names, such as those of jobs, belong to partitions,
// each partition is an election of its own, and every process that runs leads as many of
// them as the others, give or take one. Make one with NewShares, then call Run. All
// other methods may be called from any goroutine, before, while and after Run runs.
//
// # How it works
//
// A process that runs holds a place, KEY:member:0 to KEY:member:P-1 for P partitions,
// and looks at all places and partitions once an interval. The number of places held and
// the rank of its own tell it how many partitions are its share. A process with fewer
// takes free ones, and one with more hands them over, one after the other, each at a
// moment when its work has ended. So nobody plans, no process is special, and when
// processes come and go no more partitions move than must.
//
// # Guarantees
//
//   - Each partition has at most one leader, as an election of [FromLocks] has.
//   - A partition whose leader has died is led again within its TTL, one interval and a
//     few requests, as long as the backend answers. Partitions of other processes are
//     not touched. One that was handed over is taken within an interval, and where the
//     backend pushes that, within a twentieth of one and a few requests.
//   - What a name belongs to depends on the name and the number of partitions only.
//
// # Not guaranteed
//
// Shares are even in the number of partitions and, where [Shares.Weigh] was called, of
// names, as far as they can be without moving more than must; not in what the names cost.
// With more processes than partitions, some lead none.
type Shares struct {
	locker  *locks.Locker
	key     string
	cfg     SharesConfig
	members []string // keys of the places
	parts   []*partition

	mu      sync.Mutex
	started bool
	err     error // of the last look
	changed chan struct{}
	wake    chan struct{} // capacity 1: look again now
	retire  chan struct{}
	retired sync.Once
}

// partition is one of the elections.
type partition struct {
	*Elector
	key   string
	order uint64 // in which this process would have it: the lower, the rather

	offers chan chan<- error // asks the elector to campaign once
	won    atomic.Bool       // from a win to the end of its term
	weight atomic.Int64      // of the names in it

	mu       sync.Mutex
	answered func(error) // while it campaigns
}

// NewShares makes the shares of a lock backend. Processes that share use one key, such as
// locks.Key("shop", "leader"), and one number of partitions. It sends nothing.
func NewShares(l *locks.Locker, key string, cfg SharesConfig) (*Shares, error) {
	if l == nil {
		return nil, errors.New("leader: locker: is nil: make one with locks.New or a backend's New")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Shares{
		locker: l, key: key, cfg: cfg, err: ErrNotRunning,
		changed: make(chan struct{}), wake: make(chan struct{}, 1), retire: make(chan struct{}),
	}
	// Processes that prefer different partitions meet less.
	self := strconv.FormatUint(rand.Uint64(), 36)
	for i := range cfg.Partitions {
		s.members = append(s.members, key+":member:"+strconv.Itoa(i))
		p := &partition{key: PartitionKey(key, i), order: weight(self, i), offers: make(chan chan<- error)}
		p.Elector = newElector(p.key, &offeredSource{lockSource{locker: l, key: p.key, opts: lockOptions(cfg.Config, l.Config().TTL)}, p}, cfg.Config)
		p.onChange = s.tell
		s.parts = append(s.parts, p)
	}
	src := &lockSource{locker: l, key: s.parts[cfg.Partitions-1].key, opts: lockOptions(cfg.Config, l.Config().TTL)}
	return s, src.check()
}

// PartitionKey is the lock that the leader of a partition holds, of shares made with key.
func PartitionKey(key string, partition int) string {
	return key + ":partition:" + strconv.Itoa(partition)
}

// Key that the shares were made with.
func (s *Shares) Key() string { return s.key }

// Partitions is their number.
func (s *Shares) Partitions() int { return len(s.parts) }

// Partition that the name belongs to, from 0, by rendezvous hashing: with one partition
// more, a name stays where it is or moves to the new one.
func (s *Shares) Partition(name string) int {
	best, top := 0, uint64(0)
	for i := range s.parts {
		if w := weight(name, i); w >= top {
			best, top = i, w
		}
	}
	return best
}

// weight of a name in a partition. Processes of different versions must agree on it.
func weight(name string, partition int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	x := h.Sum64() + uint64(partition+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // splitmix64
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Weigh tells which names there are, so that shares are even in their number as well, as
// far as whole partitions allow. It must be told the same in every process, and may be
// called again. By default all partitions weigh the same.
func (s *Shares) Weigh(names []string) {
	n := make([]int64, len(s.parts))
	for _, name := range names {
		n[s.Partition(name)]++
	}
	for i, p := range s.parts {
		p.weight.Store(n[i])
	}
}

// load is what the partition weighs, with a little for itself.
func (p *partition) load() float64 { return float64(p.weight.Load()) + 1e-3 }

// Of is the elector of the partition that the name belongs to. It must not be run.
func (s *Shares) Of(name string) *Elector { return s.parts[s.Partition(name)].Elector }

// Electors of all partitions, by number. They must not be run.
func (s *Shares) Electors() []*Elector {
	out := make([]*Elector, len(s.parts))
	for i, p := range s.parts {
		out[i] = p.Elector
	}
	return out
}

// Changed returns a channel that is closed at the next change of Term or Health of any
// partition; see [Elector.Changed].
func (s *Shares) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Err is nil while the backend answers, and otherwise as [Health] has it.
func (s *Shares) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Shares) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Retire hands all partitions over, each when its work has ended, and takes none any
// more. It is for a process that is about to end, and returns at once. Run goes on until
// its context ends.
func (s *Shares) Retire() { s.retired.Do(func() { close(s.retire) }) }

// Run leads a share of the partitions until ctx ends; nothing else ends it. Then all
// terms end, as at the end of [Elector.Run], of which the error is. It runs once.
func (s *Shares) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.started {
		s.mu.Unlock()
		return ErrStarted
	}
	s.started, s.err = true, fmt.Errorf("%w: no answer yet", ErrUnavailable)
	s.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(s.parts))
	for i, p := range s.parts {
		wg.Go(func() { errs[i] = p.Run(ctx) })
	}
	b := &balancer{Shares: s}
	wg.Go(func() { b.hear(ctx) })
	b.run(ctx)
	wg.Wait()
	s.mu.Lock()
	s.err = ErrNotRunning
	s.mu.Unlock()
	return errors.Join(errs...)
}

// offeredSource is a lock that is tried when the shares say so.
type offeredSource struct {
	lockSource
	p *partition
}

func (s *offeredSource) campaign(ctx context.Context, answered func(error)) (win, error) {
	s.p.mu.Lock()
	s.p.answered = answered
	s.p.mu.Unlock()
	defer func() {
		s.p.mu.Lock()
		s.p.answered = nil
		s.p.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return win{}, context.Cause(ctx)
		case reply := <-s.p.offers:
			lease, err := s.locker.TryAcquire(ctx, s.key, s.opts...)
			s.p.won.Store(err == nil)
			reply <- err
			if err == nil {
				return win{lease: lease, stop: func() { s.p.won.Store(false) }}, nil
			}
		}
	}
}

// heard passes on whether the backend answers.
func (p *partition) heard(err error) {
	p.mu.Lock()
	answered := p.answered
	p.mu.Unlock()
	if answered != nil {
		answered(err)
	}
}

// offer has the elector campaign once. It is false when the elector is not ready to.
func (p *partition) offer() (asked bool, err error) {
	reply := make(chan error, 1)
	select {
	case p.offers <- reply:
		return true, <-reply
	default:
		return false, nil
	}
}

// led reports whether this process holds the partition, and whether it is there to be
// handed over: not yet begun, or on its way out, it is not.
func (p *partition) led() (held, stays bool) {
	p.Elector.mu.Lock()
	defer p.Elector.mu.Unlock()
	t := p.holding
	return p.won.Load(), t != nil && !t.retiring() && t.ctx.Err() == nil
}

// balancer is Shares at work.
type balancer struct {
	*Shares
	place  *locks.Lease // nil while it has none
	moving sync.WaitGroup
	took   atomic.Int64 // nanoseconds, of the last look
}

func (b *balancer) run(ctx context.Context) {
	defer b.moving.Wait()
	defer b.leave(ctx)
	retire := b.retire
	for first := true; ; first = false {
		lost := (<-chan struct{})(nil)
		if b.place != nil {
			lost = b.place.Done()
		}
		t := time.NewTimer(backoff.Jitter(b.cfg.Interval, 0.1))
		if first {
			t.Reset(0)
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-retire:
			retire = nil
		case <-lost:
			b.place = nil
		case <-b.wake:
		case <-t.C:
		}
		t.Stop()
		b.look(ctx, first, retire == nil)
	}
}

// look is one look at the others, and what follows from it.
func (b *balancer) look(ctx context.Context, first, retired bool) {
	if retired {
		b.leave(ctx)
		b.handOver(ctx, len(b.parts), 0)
		return
	}
	began := time.Now()
	found, err := b.locker.Survey(ctx, b.keys())
	b.took.Store(int64(time.Since(began)))
	if err == nil && b.place == nil {
		err = b.takePlace(ctx, found)
	}
	if ctx.Err() != nil {
		return
	}
	b.heard(unavailable(err))
	if err != nil || b.place == nil || first {
		return // those who have just come let the others see them first
	}
	b.balance(ctx, found)
}

func (b *balancer) heard(err error) {
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	for _, p := range b.parts {
		p.heard(err)
	}
}

// takePlace takes the first place that is free, if there is one.
func (b *balancer) takePlace(ctx context.Context, found []locks.Holder) error {
	for _, key := range b.members {
		if heldIn(found, key) {
			continue
		}
		lease, err := b.locker.TryAcquire(ctx, key, lockOptions(b.cfg.Config, b.locker.Config().TTL)...)
		switch {
		case err == nil:
			b.place = lease
			return nil
		case !errors.Is(err, locks.ErrHeld):
			return err
		}
	}
	return nil
}

func heldIn(found []locks.Holder, key string) bool {
	return slices.ContainsFunc(found, func(h locks.Holder) bool { return h.Key == key })
}

// balance takes or hands over what the share demands.
func (b *balancer) balance(ctx context.Context, found []locks.Holder) {
	processes, rank := 0, -1
	for _, key := range b.members {
		if key == b.place.Key() {
			rank = processes
		}
		if key == b.place.Key() || heldIn(found, key) {
			processes++
		}
	}
	share := len(b.parts) / processes
	if rank < len(b.parts)%processes {
		share++
	}
	mine := 0
	load, all := 0.0, 0.0
	var free []*partition
	for _, p := range b.parts {
		all += p.load()
		if held, _ := p.led(); held {
			mine++
			load += p.load()
		} else if !heldIn(found, p.key) {
			free = append(free, p)
		}
	}
	fair := all * float64(share) / float64(len(b.parts))
	if mine > share {
		b.handOver(ctx, mine-share, (load-fair)/float64(mine-share))
		return
	}
	// The first is one that is far from the middle, and the others make up for it: who
	// takes what is next to the middle leaves the extremes to those who come last.
	for mine < share && len(free) > 0 && ctx.Err() == nil {
		want, sign := (fair-load)/float64(share-mine), 1.0
		if mine == 0 {
			sign = -1
		}
		at := nearest(free, want, sign)
		p := free[at]
		free = slices.Delete(free, at, at+1)
		asked, err := p.offer()
		switch {
		case asked && err == nil:
			mine++
			load += p.load()
		case asked && !errors.Is(err, locks.ErrHeld):
			return // it is heard at the next look whether that lasts
		}
	}
}

// nearest is the partition whose load is the nearest to want, or with sign -1 the
// farthest from it.
func nearest(parts []*partition, want, sign float64) int {
	best := 0
	for i, p := range parts {
		d := sign * (math.Abs(p.load()-want) - math.Abs(parts[best].load()-want))
		if d < 0 || d == 0 && p.order < parts[best].order {
			best = i
		}
	}
	return best
}

// handOver begins to give so many partitions back: one at a time, that whose load is the
// nearest to want, or all at once.
func (b *balancer) handOver(ctx context.Context, n int, want float64) {
	var staying []*partition
	leaving := 0
	for _, p := range b.parts {
		switch held, stays := p.led(); {
		case stays:
			staying = append(staying, p)
		case held:
			leaving++
		}
	}
	if n < len(b.parts) {
		if leaving > 0 || len(staying) == 0 {
			return
		}
		staying = []*partition{staying[nearest(staying, want, 1)]}
	}
	for _, p := range staying {
		b.moving.Go(func() {
			b.give(ctx, p)
			b.lookAgain()
		})
	}
}

// lookAgain has the next look come at once.
func (s *Shares) lookAgain() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hear has looks come at once when a place or a partition has changed hands, where the
// backend pushes that, until ctx ends.
func (b *balancer) hear(ctx context.Context) {
	for n := 0; ; n++ {
		hint, stop, err := b.locker.Changes(ctx, b.keys())
		if errors.Is(err, locks.ErrUnsupported) {
			return
		}
		if err == nil {
			b.heed(ctx, hint)
			stop()
			return
		}
		if backoff.Wait(ctx, retry.Delay(n)) != nil {
			return
		}
	}
}

// heed looks at hints, not at each: many come at once when a process comes or goes.
func (b *balancer) heed(ctx context.Context, hint <-chan struct{}) {
	for {
		select {
		case <-hint:
			b.lookAgain()
		case <-ctx.Done():
			return
		}
		if backoff.Wait(ctx, max(b.cfg.Interval/20, 4*time.Duration(b.took.Load()))) != nil {
			return
		}
	}
}

// give gives one partition back, when its work has ended or Drain has passed.
func (b *balancer) give(ctx context.Context, p *partition) {
	soft, cancel := context.WithTimeout(ctx, b.cfg.Drain)
	defer cancel()
	if p.HandOver(soft) != nil && ctx.Err() == nil {
		_ = p.Resign(ctx) // what could not be given back ends with its TTL
	}
}

// leave gives up the place: the shares of the others grow by what is about to be free.
func (b *balancer) leave(ctx context.Context) {
	if b.place == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.RequestTimeout)
	defer cancel()
	_ = b.place.Release(ctx) // else it ends with its TTL
	b.place = nil
}
