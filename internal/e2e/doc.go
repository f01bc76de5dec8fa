// Package e2e tests the promises with real processes on one SQLite file, and on every
// lock backend beside it: replicas that are killed, frozen, cut off and skewed, as an
// operating system and a network do it. It has no code of its own outside of the tests.
package e2e
