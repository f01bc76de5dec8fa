package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/locks"
)

// Elector campaigns for one election. Make one with FromLocks or New, then call
// Run. All other methods may be called from any goroutine, before, while and
// after Run runs.
type Elector struct {
	cfg      Config
	election string
	source   source
	rank     *rank // nil where all are alike

	mu      sync.Mutex
	started bool
	term    *Term // from win to end
	holding *Term // from win until it is lost or given back
	health  Health
	changed chan struct{} // closed and replaced at every change

	onChange func() // called with mu held; nil for none
}

// source is where terms come from.
type source interface {
	// campaign waits until the election is won, maybe for days; it calls answered
	// when it learns that the backend answers, or does not. It may return an error
	// when the backend does not answer.
	campaign(ctx context.Context, answered func(error)) (win, error)
	leader(ctx context.Context) (Leader, error)
	// watch hints that the leader may have changed; a nil channel never does.
	watch(ctx context.Context) (hint <-chan struct{}, stop func(), err error)
}

// win is a term as the source gives it. Ended, which may be nil, is closed when
// the backend reports the term's end before a renewal finds it.
type win struct {
	lease *locks.Lease
	ended <-chan struct{}
	stop  func()
}

// Health tells whether the backend answers.
type Health struct {
	// Err is nil while the backend answers, whoever leads. It matches
	// ErrUnavailable while it does not, also between the start of Run and the first
	// answer, and ErrNotRunning outside of Run. A candidate notices an outage within
	// 2s and its request's timeout, in a long line on Redis within up to 20s; a leader
	// when its term ends, and not one that the term survives.
	Err error
	// Since is when Err became nil, or stopped being nil; zero before Run.
	Since time.Time
}

// FromLocks makes an elector of a lock backend: the leader is who holds the key,
// and the fence of the lock is the number of the term. Electors of one election
// use one key, such as locks.Key("shop", "leader"). It sends nothing.
func FromLocks(l *locks.Locker, key string, cfg Config) (*Elector, error) {
	if l == nil {
		return nil, errors.New("leader: locker: is nil: make one with locks.New or a backend's New")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	src := &lockSource{locker: l, key: key, opts: lockOptions(cfg, l.Config().TTL)}
	if err := src.check(); err != nil {
		return nil, err
	}
	e := newElector(key, src, cfg)
	e.rank = newRank(l, key, cfg, src.opts)
	return e, nil
}

// New makes an elector of a backend with an election recipe of its own. Electors
// of one election use one name. It sends nothing. Backends' own constructors call
// it.
func New(d driver.Driver, election string, cfg Config) (*Elector, error) {
	if d == nil {
		return nil, errors.New("leader: driver: is nil: use the constructor of a backend")
	}
	if election == "" {
		return nil, errors.New("leader: election: is empty: give it a name such as leader:shop")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Priority != 0 {
		return nil, fmt.Errorf("leader: priority: %d needs an elector over locks: use FromLocks, or leave it out", cfg.Priority)
	}
	cfg = cfg.withDefaults()
	src, err := newNativeSource(d, election, cfg)
	if err != nil {
		return nil, err
	}
	return newElector(election, src, cfg), nil
}

func newElector(election string, src source, cfg Config) *Elector {
	return &Elector{
		cfg: cfg, election: election, source: src,
		health: Health{Err: ErrNotRunning}, changed: make(chan struct{}),
	}
}

// Election is the key or name that the elector campaigns for.
func (e *Elector) Election() string { return e.election }

// Run campaigns, leads and campaigns again until ctx ends; nothing else ends it.
// Then it ends its term, waits for the work of it up to Config.Grace, and gives
// it back. The error is nil after that, or says why the term could not be given
// back: it then ends with its TTL. An elector runs once.
func (e *Elector) Run(ctx context.Context) error {
	if err := e.start(); err != nil {
		return err
	}
	defer e.answered(ErrNotRunning)
	if e.rank != nil {
		var shown sync.WaitGroup
		shown.Go(func() { e.rank.show(ctx) })
		defer shown.Wait()
	}
	for failed := 0; ; {
		began := time.Now()
		answered := func(err error) { e.answered(unavailable(err)) }
		if e.rank.await(ctx, answered) != nil {
			return nil
		}
		won, err := e.campaign(ctx, answered)
		switch {
		case errors.Is(err, errOutranked):
		case err == nil:
			failed = 0
			if err := e.lead(ctx, won); ctx.Err() != nil {
				return err
			}
		case ctx.Err() != nil:
			return nil
		default:
			if !errors.Is(err, locks.ErrHeld) { // won and gone again is an answer too
				e.answered(unavailable(err))
			}
			if time.Since(began) > retry.Max {
				failed = 0
			}
			if backoff.Wait(ctx, retry.Delay(failed)) != nil {
				return nil
			}
			failed++
		}
	}
}

// campaign campaigns until it is won, or somebody comes who is preferred.
func (e *Elector) campaign(ctx context.Context, answered func(error)) (win, error) {
	campaign, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer e.rank.watch(ctx, func() { cancel(errOutranked) })()
	won, err := e.source.campaign(campaign, answered)
	if err != nil && ctx.Err() == nil && campaign.Err() != nil {
		return win{}, errOutranked
	}
	return won, err
}

var errOutranked = errors.New("leader: a process with a higher priority runs")

// retry spaces campaigns while the backend cannot answer. Its ceiling bounds how
// much later than the backend the election comes back.
var retry = backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}

// lead holds a term from its win to its end, and gives it back if it is still
// there to be given.
func (e *Elector) lead(ctx context.Context, won win) error {
	defer won.stop()
	t := newTerm(won.lease)
	e.begin(t)
	defer e.rank.watch(ctx, func() { t.retired.Do(func() { close(t.retire) }) })()
	lost := won.lease.Done()
	if mutation.On("leader-loss") {
		lost = nil
	}
	cause := e.ending(ctx, t, won, lost)
	e.end(t, cause)
	if errors.Is(cause, ErrResigned) || errors.Is(cause, ErrStopped) {
		e.awaitWork(t)
	}
	t.overErr = e.giveBack(ctx, t)
	e.over(t)
	if errors.Is(cause, ErrResigned) {
		// An end of ctx in this pause is found by the caller.
		_ = backoff.Wait(ctx, e.cfg.StandBack)
	}
	return t.overErr
}

// ending waits for what ends the term.
func (e *Elector) ending(ctx context.Context, t *Term, won win, lost <-chan struct{}) error {
	retire, drained := t.retire, (<-chan struct{})(nil)
	for {
		select {
		case <-lost:
			return t.lost(won.lease.Err())
		case <-won.ended:
			return fmt.Errorf("leader: term %d ended: %w", t.Number(), ErrDeposed)
		case <-t.resign:
			return fmt.Errorf("leader: term %d ended: %w", t.Number(), ErrResigned)
		case <-ctx.Done():
			return fmt.Errorf("leader: term %d ended: %w: %w", t.Number(), ErrStopped, context.Cause(ctx))
		case <-retire:
			e.tell() // Term is nil from now on
			retire, drained = nil, t.drained()
		case <-drained:
			return fmt.Errorf("leader: term %d ended: %w", t.Number(), ErrResigned)
		}
	}
}

// awaitWork waits for the work of an ended term, as long as the backend still
// holds the term for it.
func (e *Elector) awaitWork(t *Term) {
	if mutation.On("leader-grace") {
		return
	}
	grace := time.NewTimer(e.cfg.Grace)
	defer grace.Stop()
	select {
	case <-t.drained():
	case <-t.lease.Done():
	case <-grace.C:
	}
}

// giveBack releases an ended term. The caller's context may have ended.
func (e *Elector) giveBack(ctx context.Context, t *Term) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RequestTimeout)
	defer cancel()
	err := t.lease.Release(ctx)
	if errors.Is(err, locks.ErrLost) {
		return nil // there was nothing left to give back
	}
	return err
}

// Term is the present term, or nil when this elector does not lead, or is handing
// over. It is judged
// by the clock at the call: a term whose trust window has closed is not returned,
// whatever else may not have been noticed yet.
func (e *Elector) Term() *Term {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil || t.Err() != nil || t.retiring() {
		return nil
	}
	return t
}

// Changed returns a channel that is closed at the next change of Term or Health.
// No change is lost to a listener that takes the channel first and looks then:
//
//	for {
//		changed := e.Changed()
//		use(e.Term(), e.Health())
//		<-changed // or the end of a context
//	}
//
// Changes that follow closely may be seen as one; Term.Number tells terms apart.
func (e *Elector) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// Health tells whether the backend answers, and since when.
func (e *Elector) Health() Health {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.health
}

// Err is Health().Err.
func (e *Elector) Err() error { return e.Health().Err }

// Resign gives up the present term, if there is one: its contexts end, their work
// is waited for up to Config.Grace, and the term is given back, so that another
// is elected without waiting for a TTL. Then the elector stands back for
// Config.StandBack and campaigns again.
//
// It returns when the term has been given back, or with the error of ctx when
// that ends first; the resignation goes on then. Without a term it does nothing.
func (e *Elector) Resign(ctx context.Context) error {
	return e.leave(ctx, func(t *Term) { t.resigned.Do(func() { close(t.resign) }) })
}

// HandOver is Resign at a clean moment: the present term takes no new work and Term is
// nil from now on, but work that is under way goes on, and the term is kept for it. Once
// it has returned, however long that takes, the term is given back.
//
// It returns when that is done, or with the error of ctx when that ends first; the
// hand-over goes on then, and Resign cuts it short.
func (e *Elector) HandOver(ctx context.Context) error {
	return e.leave(ctx, func(t *Term) { t.retired.Do(func() { close(t.retire) }) })
}

func (e *Elector) leave(ctx context.Context, ask func(*Term)) error {
	e.mu.Lock()
	t := e.holding
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	ask(t)
	select {
	case <-t.over:
		return t.overErr
	case <-ctx.Done():
		return fmt.Errorf("leader: %s not given back yet: %w", e.election, context.Cause(ctx))
	}
}

func (e *Elector) start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return ErrStarted
	}
	e.started = true
	e.set(nil, fmt.Errorf("%w: no answer yet", ErrUnavailable))
	return nil
}

func (e *Elector) begin(t *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holding = t
	e.set(t, nil)
}

func (e *Elector) end(t *Term, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t.stop(cause)
	health := e.health.Err
	if errors.Is(cause, ErrUnavailable) {
		health = cause
	}
	e.set(nil, health)
}

func (e *Elector) over(t *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holding = nil
	close(t.over)
}

// answered notes that the backend answered, or that it could not.
func (e *Elector) answered(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.health.Err == nil {
		return // whoever waits for the same answer again is not woken
	}
	e.set(e.term, err)
}

// set must be called with mu held.
func (e *Elector) set(t *Term, health error) {
	if (health == nil) != (e.health.Err == nil) || e.health.Since.IsZero() {
		e.health.Since = time.Now()
	}
	e.term, e.health.Err = t, health
	close(e.changed)
	e.changed = make(chan struct{})
	if e.onChange != nil {
		e.onChange()
	}
}

// tell wakes those who wait for a change.
func (e *Elector) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(e.term, e.health.Err)
}

// unavailable makes every failed campaign match ErrUnavailable: whatever a
// backend answers instead of "won" or "held", nobody can be elected by it.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("leader: campaign: %w: %w", ErrUnavailable, err)
}
