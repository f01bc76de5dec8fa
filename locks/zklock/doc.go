// Package zklock is a lock backend on ZooKeeper (3.5 or later): a caller is an
// ephemeral sequential node in the line of its key, and holds the key while its
// node is the first. All locks of a driver share one session.
//
// # Guarantees
//
// Those of package driver, and:
//   - The line is ZooKeeper's: first come, first served. A waiter watches its own node
//     and at most two of those ahead, so a release wakes two: the next holder, and
//     the one behind it, which then is the next.
//   - The fence is the czxid of the grant's own node, which the ensemble never gives
//     twice, also where the node of the key was removed and made again (the counter
//     in the nodes' names then begins anew).
//   - A node is never taken for ours by its name alone: its session must be the
//     present one. After an end of the session every grant is over, at once and for
//     ever, and the next acquire makes a new node.
//   - Whatever ends an acquire without a grant, a cancelled context and a lost answer
//     included, its node is deleted, as soon as there is a connection and until the
//     server has confirmed it.
//   - A grant that nobody renews for its TTL is given back, though the session lives.
//   - A deleted node, a forced release and the end of the session are pushed to the
//     holder; they need not wait for a renewal.
//   - An acquire is two round trips (the node is made and the line read behind it; then
//     the node is looked at), four where nobody used the key before, and so is a place in
//     line, with what it watches; a release is one; the renewal of all holds of the
//     driver is one request, after a loss of the connection one more for each hold, in
//     flight together. A hand-over costs the next holder no request, or one where it had
//     waited long. A single try for a key that was held at the last one only reads.
//
// # Time
//
// Disconnected is not expired: the session and its nodes outlive the connection, and
// a holder is told when its lease ends, not when its connection does. A lease ends
// two thirds of the negotiated session timeout after the last renewal was sent. The
// other third covers what the ensemble knows later than we do: a follower reports
// the sessions that it heard of to the leader every half tick, and may die before. A
// renewal is a sync, not a ping or a read, because a follower that is cut off from
// its leader answers those from memory for several ticks. On an ensemble let the
// session be six ticks or more (12s at the default tick of 2s), so that a third of
// it covers the time between two renewals and the half tick.
//
// The TTL of the locks is therefore tied to the session: [New] asks for one and a
// half times the TTL, and refuses a TTL that the server's minSessionTimeout and
// maxSessionTimeout (by default 2 and 20 ticks) do not allow for. A single acquire
// with a longer TTL gets the session's, which is renewed as any other; one with a
// shorter TTL is refused, because the node of a dead process stays for the session.
//
// # Not guaranteed
//
//   - Takeover from a dead process within the TTL: the server frees its keys at the
//     end of the session timeout, one and a half TTLs after its last sign of life,
//     rounded up to the next tick.
//   - Renewal by another driver than the one that acquired: nobody but its session
//     prolongs a node. Release and inspection work from anywhere.
//   - A true answer to a single try in the moment of a hand-over: the node of another
//     single try, which is about to be withdrawn, counts as a holder.
//   - Fences over a wiped ensemble: its transaction ids begin anew.
//   - Safety where a leader that lost its majority goes on answering while the others
//     have elected another for longer than a third of the session. Only a check of
//     the fence closes that.
//   - Exclusion of other recipes: they use other names in the line, which are ignored.
//
// # Privileges
//
// Create, read, write and delete below the prefix; for the first use of a prefix also
// create on the node above it. With a digest user, nodes are made for that user alone
// (creator all); without one, for anybody. Nodes above the keys that exist are left
// as they are, their ACL included. The nodes of keys are containers, which the server
// removes when they have been empty for a while; the prefix is a plain node.
//
// # What happens when
//
//	the server is down, refuses        requests are unavailable; holders keep their leases until
//	                                   valid-until, and hold on if it is back by then
//	the server is slow                 requests end with their context; what they did is settled later
//	the server falls silent            after an eighth of the session with requests unanswered another
//	                                   connection is made, to the next server; waiters hear
//	                                   unavailable within the TTL, at most 6s
//	the leader changes                 sessions begin anew at full length: a dead holder's key is free later
//	a follower is cut off              its clients' renewals fail, as a sync needs the leader; they try the next server
//	the holder is cut off              told at valid-until, a third of the session before the server
//	                                   gives the key to the next
//	the holder is paused, then wakes   told at once by the clock; the library finds its session expired,
//	                                   and its fence is refused
//	a record is deleted, forced        the holder is told at once; the next fence is higher
//	all servers restart                sessions are kept on disk and begin anew; leases go on if the
//	                                   restart is shorter than they are
//	the driver is closed               the session ends, and all its keys are free at once
package zklock
