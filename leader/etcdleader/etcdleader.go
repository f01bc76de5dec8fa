// Package etcdleader elects a leader on etcd.
//
// Candidates put a key each under the election's prefix, on the one session (a lease of
// etcd) that all elections and locks of a driver share, and the key with the lowest
// create revision leads. A candidate watches the key before its own, so that one, and
// not all, hears of the end of a term. The code is that of [etcdlock]: a lock and an
// election are the same recipe there, with the same guards.
//
// Beside what leader.FromLocks gives over the same driver, [leader.Elector.Observe] is
// pushed by a watch of the prefix instead of looking once a second.
//
// # Guarantees
//
//   - The number of a term is the create revision of its key. It grows over every term
//     of an election, over restarts, and over the loss of a session.
//   - A candidate leads only after etcd has confirmed that its key is the first and that
//     its session lives, in one transaction.
//   - A term whose key is gone is told at once, by a watch of the own key.
//   - A leader that resigns or stops is followed within one round trip and one push.
//
// # Not guaranteed
//
// A process that stands still past its session's end may go on for a moment when it wakes:
// what it writes must carry the number of its term. A TTL is in whole seconds, and etcd
// raises one below 1.5 election timeouts (2 s by default).
//
// # What happens when
//
//	etcd is down, or has no quorum   terms end with their TTL; candidates come back by themselves
//	etcd is slow                     a term is kept as long as an answer comes within the TTL
//	a member fails over              leases start their TTL anew: a dead leader lingers for as long
//	partitioned from etcd            the leader stops in time, within its TTL; another is elected after it
//	the leader's process pauses      the same; its trust window is judged by the clock when it wakes
//
// # Privileges
//
// A user of etcd needs readwrite on the prefix (by default solotick/locks/).
package etcdleader

import (
	"errors"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/driver"
	"github.com/solotick/solotick/locks/etcdlock"
)

var _ driver.QueueLock = (*etcdlock.Driver)(nil)

// New makes an elector over a driver, which may serve locks and other elections as well,
// and which the caller closes after the electors have ended. Electors of one election
// use one name, such as locks.Key("shop", "leader"). It sends nothing.
func New(d *etcdlock.Driver, election string, cfg leader.Config) (*leader.Elector, error) {
	if d == nil {
		return nil, errors.New("etcdleader: driver: is nil: make one with etcdlock.NewDriver")
	}
	return leader.New(driver.FromQueue(d), election, cfg)
}
