// Package driver is the seam between the portable elector (package leader) and
// a backend with an election recipe of its own.
//
// A backend that is already a lock needs no driver here: leader.FromLocks makes
// an elector of it. A native driver pays where the backend can queue candidates
// and tell them that their turn has come (etcd, ZooKeeper), or push who leads.
//
// A backend implements [Driver], three methods, and whatever optional interface
// it can serve: [Observer], [Watcher], [Notifier], and Limiter of package
// locks/driver. The portable elector looks for
// them once, at construction. What is the same everywhere (the campaign loop,
// back-off, renewal, the trust window, loss, listeners, errors) lives in package
// leader.
//
// What a driver must guarantee:
//   - At most one token leads an election at a time, by the backend's own clock.
//   - The number of a term is greater than that of every earlier term of the
//     election, also after resignation, expiry and restart. Keep does not raise it.
//   - Keep and Resign act only where election, token and number are all still
//     those of the term.
//   - A candidate that gave up leaves nothing behind that could be elected later.
//   - No method blocks longer than its context.
//
// What it need not do: retry, renew by itself, time terms on the caller's side,
// or wrap errors.
package driver

import (
	"context"
	"time"

	locks "github.com/solotick/solotick/locks/driver"
)

// Driver is an election backend. Implementations are safe for concurrent use and
// serve any number of elections.
type Driver interface {
	// Campaign stands for election and blocks until the candidate leads or ctx
	// ends. It may have waited for long: the elector calls Keep before it trusts
	// the term.
	//
	// It calls answered whenever the backend has answered it, at least once the
	// candidacy stands, and never after it has returned; the call returns at once.
	// A backend that has not answered for a TTL is an error: the elector campaigns
	// anew.
	//
	// A nil error is a term. After any error the elector calls Resign with Number
	// 0, under a context of its own, so that no candidacy stays behind.
	Campaign(ctx context.Context, c Candidate, answered func()) (Grant, error)

	// Keep confirms that the term still stands and starts its TTL anew. A nil
	// error means that both are so; ErrNotOurs of package locks/driver means that
	// the term has definitely ended; anything else is unknown. A TTL in the Grant
	// counts where it is less than Campaign gave.
	Keep(ctx context.Context, t Term) (Grant, error)

	// Resign ends the term, or withdraws the candidacy if Number is 0. It is
	// idempotent: a second call answers Gone (or Other) and changes nothing. An
	// error means that the outcome is unknown.
	Resign(ctx context.Context, t Term) (locks.Released, error)
}

// Observer tells who leads.
type Observer interface {
	// Leader returns the leader of an election, or ErrFree of package locks/driver.
	Leader(ctx context.Context, election string) (locks.Holder, error)
}

// Watcher pushes a hint when the leader of an election may have changed. Hints
// may be lost or spurious; the portable elector asks the Observer beside them.
type Watcher interface {
	// Watch delivers hints on the channel (capacity 1, never closed) until stop is
	// called. Subscribing happens before it returns.
	Watch(ctx context.Context, election string) (hint <-chan struct{}, stop func(), err error)
}

// Notifier pushes the end of a term, sooner than the next Keep would find it.
type Notifier interface {
	// Ended returns a channel that is closed when the backend reports that the
	// term is over, and a function that ends the watch. A channel that stays open
	// promises nothing.
	Ended(t Term) (ended <-chan struct{}, stop func())
}

// Candidate asks for a term.
type Candidate struct {
	Election string        // whole key, such as leader:shop; never empty
	Token    locks.Token   // owner of the term asked for; drawn anew for each campaign
	TTL      time.Duration // life of the term without a Keep, counted by the backend
	Label    string        // host, pid and the like, for people only
}

// Grant is a term given, or given for longer.
type Grant struct {
	Number int64         // greater than that of every earlier term; at least 1
	TTL    time.Duration // what the backend really gave; zero means as asked
}

// Term identifies a term to keep or resign.
type Term struct {
	Candidate
	Number int64
}
