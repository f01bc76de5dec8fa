// Package redislock is a lock backend in Redis (6.0 or later): one server, a master
// that Sentinel names, or a cluster.
//
// Guarantees, as long as the server that answers has the records: those of package
// driver. An acquire is one script and one round trip, and so are a release and the
// answer that a key is held, which tells by whom and for how long. All leases of a
// process are renewed by one pipeline (in a cluster by one for each node). Requests
// of one process that come together share a pipeline, and to a single server acquires
// share a script and releases another, of 64 locks at most. To a single server they go over
// a connection of the driver's own, which the client opens, encrypts and logs in, and
// for which its hooks are not called; others (Sentinel, a cluster, a client with a
// Limiter or streaming credentials) send by themselves. Every script may be repeated,
// by us or by the client; a server that has forgotten the scripts is told them
// again. A request that was withdrawn, because its caller gave up, is refused when it
// arrives late. The server counts the TTL; the client's clock is not used.
//
// The fence is the greater of the last one plus 1 and the server's time in
// microseconds, so that it grows over FLUSHALL, a restart without a disk and a
// failover, provided that the clock of the new server is not behind by more than
// the time the failover took.
//
// Waiters stand in a line in Redis, and the script that frees the key grants it to the
// first and pushes that to him over the one subscription of his process. A waiter whose
// process has gone is passed over: on one server because nobody listens on its channel,
// in a cluster because it has shown no sign of life for 50 s. The TTL of a pushed grant
// is counted from the waiter's last sign of life; where that is older than a third of a TTL,
// the waiter confirms the grant first, which is one more round trip. 64 waiters in as
// many processes send about three requests a second while they wait. Who does not wait
// (TryAcquire) may take a key that a dead holder left free before the first in line
// does, and with [Fair] may not.
//
// Not guaranteed: that a grant survives a failover. Replication is asynchronous:
// a new master may not know the last grants, and then two hold a key until the old
// holder's next renewal, which tells it; behind Sentinel that is sent when the new master
// can be reached, and for that the subscription is kept while there are leases. [WithReplicas] and the server's setting
// min-replicas-to-write make that less likely, no more. A single server without
// appendfsync always forgets in a crash what it had not written. What must not
// happen twice needs the fence checked where the effect is, or a unique record in a
// database; see package redlock for independent servers.
//
// The eviction policy must be noeviction: other policies delete locks under memory
// pressure. This is looked up beside the first request, and warned about.
//
// # What happens when
//
//	server down, or refuses           acquire: unavailable at once or within two request timeouts; holder: told at valid-until, before the TTL ends
//	server slow                       the same; a reply that comes after the lease's end is given back
//	connection silent                 the same; later requests take another connection
//	server restarts, data kept        leases go on with the next renewal
//	server restarts empty, FLUSHALL   holder: told at its next renewal (TTL/3); until then another may have got the key, with a higher fence
//	failover                          as restarts empty for what was not replicated, as data kept for the rest; behind Sentinel all leases are renewed as soon as the new master can be reached
//	partition                         holder on the far side: told at valid-until; an old master may grant keys until Sentinel or the cluster stops it
//	holder paused beyond its TTL      told at once when it wakes; its fence is lower than the next holder's
//	holder killed                     key free after the TTL
//	key deleted, force release        holder: told at its next renewal
//	memory full (noeviction)          acquire and renewal unavailable; holder told at valid-until
//	pushed grant lost                 the last in line looks when the holder's TTL ends, for all of them; the others within 2 s, or 20 s in a long line
//
// # Minimal privileges
//
// For the default prefix, as an ACL rule:
//
//	user solotick on >secret resetchannels ~solotick:* &solotick:*
//	  +eval +evalsha +time +get +set +setrange +del +exists +pttl +pexpire
//	  +publish +subscribe +unsubscribe +ping
//	  +zadd +zrem +zrange +zrank +zscore +zcard +zpopmin +zremrangebyscore
//	  +scan +info +wait
//
// The fourth line is for the line of waiters. Without ping a hand-over is a little
// slower. Of the last, scan is for listing, info for the look at the eviction policy, wait for
// [WithReplicas]; they may be left out. A cluster needs +cluster|slots +cluster|shards
// too, and Sentinel its own user.
//
// # Keys
//
// A lock called NAME has the record solotick:{NAME} while it is held, a counter
// with :f that goes about a day after its last use, with :q the line of those who wait (in a
// cluster with :h too), and with :x the tokens refused for a TTL. Nothing else is kept.
// A line of which nobody lives goes with the holder's next renewal or, where the holder
// is dead too, a quarter of its TTL after it (1 s at least); in a cluster 50 s after the
// last sign of life.
package redislock
