// Package zkleader elects a leader on ZooKeeper.
//
// Candidates make a protected ephemeral sequential node each under the election's node,
// in the one session that all elections and locks of a driver share, and the first of
// them leads. A candidate watches the node before its own, so that one, and not all,
// hears of the end of a term. The code is that of [zklock]: a lock and an election are
// the same recipe there, with the same guards.
//
// Beside what leader.FromLocks gives over the same driver, [leader.Elector.Observe] is
// pushed by a watch of the election's node instead of looking once a second.
//
// # Guarantees
//
//   - The number of a term is the czxid of its node. It grows over every term of an
//     election, also when the node of the election was removed and made again.
//   - A connection that is lost is no session that is lost: a leader that comes back
//     within its session goes on with its term, if its trust window has not closed.
//   - After a session's end no node of it is taken for the process's own.
//   - A leader that resigns or stops is followed within one round trip and one push.
//
// # Not guaranteed
//
// A process that stands still past its session's end may go on for a moment when it wakes:
// what it writes must carry the number of its term. The TTL of terms is two thirds of the
// session's timeout, which the ensemble may change.
//
// # What happens when
//
//	the ensemble has no quorum       terms end with their TTL; candidates come back by themselves
//	it is slow                       a term is kept as long as an answer comes within the TTL
//	a server fails over              the session goes on with another, if that is reached in time
//	partitioned from the ensemble    the leader stops in time, within its TTL; another is elected after the session's end
//	the leader's process pauses      the same; its trust window is judged by the clock when it wakes
//
// # Privileges
//
// An identity needs create, read, write and delete below the prefix (by default
// /solotick/locks).
package zkleader

import (
	"errors"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/locks/zklock"
)

var _ driver.QueueLock = (*zklock.Driver)(nil)

// New makes an elector over a driver, which may serve locks and other elections as well,
// and which the caller closes after the electors have ended. Electors of one election
// use one name, such as locks.Key("shop", "leader"). It sends nothing.
func New(d *zklock.Driver, election string, cfg leader.Config) (*leader.Elector, error) {
	if d == nil {
		return nil, errors.New("zkleader: driver: is nil: make one with zklock.NewDriver")
	}
	return leader.New(driver.FromQueue(d), election, cfg)
}
