// Package etcdlock is a lock backend in etcd 3.4 or later.
//
// All locks of one TTL share one session (a lease of etcd). A lock is a line of keys
//
//	<prefix>/<escaped lock key>/<token>
//
// each attached to the session of the one who asked; the key with the lowest create
// revision holds the lock. The create revision of the own key is the fence: etcd
// gives every revision once, so it grows over release, expiry, deletion, restart
// and change of leader. Effects inside etcd can check it in their own transaction:
// If(CreateRevision(key) = fence).
//
// # Guaranteed
//
//   - What package driver asks for. An acquire is one transaction and a release is
//     one. The session that the first acquire needs is one request more; after a
//     sixth of the TTL without renewal, a keep-alive goes beside the transaction.
//   - Renewal of any number of holds of one TTL is two requests: a keep-alive, and a
//     look at the keys that etcd has of the session. A hold is not renewed by the
//     session's keep-alive alone: one whose owner renews it no more is given up
//     after its TTL, also where the session lives on for others.
//   - Who waits comes in order of arrival. The next ones watch the line, and are
//     granted the key by the event that says that the last key before their own is
//     gone, if that watch did not say before, or with it, that their own is: no
//     request lies between a release and the next grant. Where at most two are ahead,
//     a waiter sends one transaction and begins one watch, at the same time where the
//     line was as short the last time. Further back it watches the last but one before
//     its own until that is gone, so a release wakes two in a line of any length. A
//     waiter whose key is removed lines up again; one that stands further back than
//     the next notices within 5 s.
//   - The holder is told at once when its key is deleted or its session ended; in
//     the first 100 ms of a hold, which are not watched, when they are over.
//   - A request that is given up leaves nothing: its key is deleted, or removed by
//     the next renewal, or its session ends.
//   - No goroutine is kept per lock. While nothing is waited for, watched or under
//     way, the driver has none.
//   - Keys under the prefix that no lock made (without a lease, or with another
//     name) block nobody. They are reported once.
//
// # Not guaranteed
//
//   - A take-over sooner than the TTL and up to a second after a holder has died.
//     etcd ends leases twice a second, and starts them anew when its leader changes
//     or it restarts.
//   - TTLs below 1.5 election timeouts of the cluster, 2 s as a rule: etcd raises
//     them, and the lease goes by what it gave. TTLs are whole seconds.
//   - An order between [driver.Driver.Acquire], which never waits, and those in line:
//     it is refused as long as there is a line.
//   - Since in [driver.Holder] by any clock but the holder's.
//   - That an acquire ends with its context to the millisecond: a request that puts a
//     key gets 300 ms more, so that the one that deletes it cannot overtake it.
//
// # Privileges
//
// Reading and writing under the prefix, and nothing else:
//
//	etcdctl role add locks
//	etcdctl role grant-permission --prefix locks readwrite solotick/locks/
//	etcdctl user grant-role worker locks
//
// # What happens when
//
//	etcd is down or has no leader    Acquire is unavailable, at once where the connection is refused. Holds are lost to
//	                                 their guard timer, or go on if etcd is back before. Waiters give up after the TTL,
//	                                 at most 5 s, and Locker.Acquire asks again.
//	etcd is slow                     Renewals count from when they were sent. A late grant is given back.
//	a member or the leader fails     The client turns to another member. Leases start anew: nobody loses, a dead holder stays longer.
//	holder partitioned               Its guard timer tells it before etcd ends the session. Its watch is silent.
//	member partitioned from leader   Requests, keep-alives and watches through it fail at once (require-leader).
//	holder paused beyond the TTL     It is told when it wakes; its fence is below that of the next holder.
//	session ended by the server      All its holders are told at once; the next acquire opens a new one. Waiters line up anew.
//	key deleted, ForceRelease        The holder is told at once; the next holder's fence is higher.
//	history compacted                Watches begin anew and look whether the key is there.
//	a watch dies silently            Waiters look every 3 to 5 s anyway; holders hear at their next renewal.
package etcdlock
