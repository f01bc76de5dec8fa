// Package e2e tests the promises with real processes on one SQLite file: replicas
// that are killed, frozen and skewed, as an operating system does it. It has no
// code of its own outside of the tests.
package e2e
