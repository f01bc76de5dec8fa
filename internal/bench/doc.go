// Package bench is what the benchmark programs have in common: they use the servers
// of the tests, let contenders take turns, and tell medians, quartiles and what the
// machine was.
package bench
