// Package redlock is a lock backend over an odd number of Redis servers (6.0 or
// later) that know nothing of each other, after the Redlock algorithm
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): a key
// is held by who has it on a majority of them. It bears the loss of a minority
// without the window that a failover of package redislock has.
//
// Guarantees, under the assumptions below: those of package driver. The same token
// goes to all nodes at once, each with a time limit of max(50 ms, TTL/20). A
// majority grants; the other nodes are asked to the end in the background, so that
// the loss of one node does not take the majority away. Without a majority all
// nodes are asked to take it back, each after the acquire there has ended, and a
// mark makes an acquire that arrives even later do nothing. A renewal counts where
// a majority still had the key; then it is made anew on the nodes that lost it,
// and only while the lease is valid.
//
// Assumptions:
//   - The clocks of nodes and clients run at the same rate within 1 %. Their
//     readings do not matter for exclusion.
//   - A node that crashes forgets at most what it was told, and then grants nothing
//     for the longest TTL in use (WithMaxTTL, the same in all processes). Nodes are
//     told apart from restarted ones by run id and uptime, at every acquire. New
//     nodes therefore count after that time, or see [TrustFirstSight]. A node whose
//     data is wiped while it runs is not noticed: as long as fewer than a majority
//     lose a key between two renewals, that costs nothing.
//   - The nodes fail independently: other hosts, no replication between them.
//
// The fence: each node counts for itself from its clock in microseconds. The
// maximum over a majority alone does not grow with every grant (M. Kleppmann, "How
// to do distributed locking", 2016), so a second round writes the maximum back, and
// the grant counts when a majority has it before the lease's end. Two majorities
// share a node, and that one gives the next a higher number, unless it has lost its
// data and its clock is behind. [WithoutOrder] saves the round.
//
// Who waits is told of releases by the nodes: a process that waits has one more
// connection to each, subscribed to the keys it waits for, and asks when the first node
// tells of a release, within some 25 ms; later, up to half a second, while one release
// follows the other and none is for it. That is a hint: where no node can tell, waiters
// look every Poll, as they do beside it.
//
// Not guaranteed: that a holder which is paused after it looked at its lease does
// nothing; only a check of the fence at the resource keeps it out. Also no line: of those
// who wait for a key anyone may get it. Most tasks are better served by one
// server and a unique record in a database, see package redislock.
//
// The eviction policy of every node must be noeviction. It is looked up beside the
// first request, and warned about. All leases of a process are renewed by one
// pipeline to each node, and what its callers ask a node at the same time goes in one
// too, over one connection, or two where the first stalls: a node that is late is not
// dialled for every request. What is left of a key is its counter, which goes a day after
// its last use.
//
// # What happens when
//
//	a minority of nodes down, stopped or cut off   nothing, but for the time limit per node on an acquire that needs them
//	a majority down or cut off                     acquire: unavailable; holder: told at valid-until
//	partition                                      who reaches a majority goes on; a holder on the other side is told at valid-until
//	a node restarts empty                          it grants nothing for the longest TTL; holders put their keys back on it
//	a majority loses the key                       holder: told at its next renewal; another may have got it, with a higher fence
//	a node is slow                                 it is not waited for beyond max(50 ms, TTL/20)
//	two ask at once and no one gets a majority     both hear held, and come again after a random pause
//	holder paused beyond its TTL                   told at once when it wakes; its fence is lower than the next holder's
//	process killed                                 key free after the TTL
//	force release                                  holder: told at its next renewal; its fence is lower than the next
//
// # Minimal privileges
//
// On every node, for the default prefix, as an ACL rule:
//
//	user solotick on >secret resetchannels ~solotick:redlock:* &solotick:redlock:*
//	  +eval +evalsha +time +info +get +set +del +exists +pttl +pexpire
//	  +publish +subscribe +unsubscribe +ping
//	  +scan
//
// The third line is for hints, on the channels after the ampersand (Redis 6.0 knows no
// rules for channels: leave resetchannels and that out). Without it waiters poll. The
// last is for listing.
package redlock
