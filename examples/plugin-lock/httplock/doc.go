// Package httplock is an example of a lock plugin from outside of solotick's own
// backends: a driver whose backend is a small lock server behind HTTP. [Driver] is
// the client, [NewHandler] the server, which keeps its locks in any other driver.
//
// Guarantees: those of package driver, as far as the driver behind the server has
// them. With one that keeps its records on disk they hold over a restart of the
// server. The server's clock counts the TTL; the client's is not used. The answers
// are three, and are told apart by their status and their words: granted, held by
// another, and no answer. A request that certainly did not reach the server is
// marked so.
//
// Not guaranteed: anything while the one server is away; who waits is not woken but
// looks again (locks.Config.Poll), and nobody stands in line.
//
// # What happens when
//
//	server down               acquire: unavailable at once; holder: told before the TTL ends
//	server slow or silent     the same, at the end of the request's own time
//	server restarts           as the driver behind it: with records on disk leases go on
//	holder killed, cut off    key free after the TTL
//	force release             holder: told at its next renewal; the next fence is higher
package httplock
