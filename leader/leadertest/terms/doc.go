// Package terms records what the processes of an election believed and were told, and
// checks that it could have been one election, with porcupine (A. Athalye,
// github.com/anishathalye/porcupine).
//
// Guaranteed: Check refuses a history in which two processes led at one time, a term was
// led by two, a term did not have a higher number than all before it, or somebody was
// told of a leader after the next one was elected.
//
// Not guaranteed: that anybody leads at all. A process is known by its looks only; what
// it believed between two of them is not.
package terms
