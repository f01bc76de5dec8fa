// Package history records what drivers are asked and answer, and checks that it
// could have been one lock that answered, with porcupine (A. Athalye,
// github.com/anishathalye/porcupine).
//
// Guaranteed: Check refuses a history in which two grants of a key overlapped before
// the TTL of the first could have ended, a fence did not grow, or a renewal or
// release acted on a grant that was not its own.
//
// Not guaranteed: that a key is free once its TTL has ended; a backend may be late
// with that. An answer that did not come counts as applied at any time after the
// call, or never.
package history
