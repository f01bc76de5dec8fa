// Package archtest keeps the house in order. Its tests check, on what every
// package really links (go list -deps), the import laws of the table in
// laws_test.go, and by reading the tree that every package with tests looks for
// leaked goroutines, that no test sleeps to synchronise, that nothing is called
// by a name that says nothing, and that links in the Markdown files lead
// somewhere.
//
// It judges the build for the platform it runs on and without build tags. What
// test files import is not judged here, except for the rules named above.
package archtest
