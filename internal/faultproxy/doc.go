// Package faultproxy is a TCP proxy that stands before a real server in a test and
// does what networks do: it delays, swallows, cuts and refuses, switched while
// connections are open and for each direction apart.
//
// It counts what passes, so that a test can hold a client to its number of round
// trips.
//
// What it is not: a packet filter. The kernel accepts a connection to the proxy
// also while a black hole is in force, so dialing succeeds and the first answer
// is what fails to come. Bytes of one direction stay in order and are never lost
// without their connection, as TCP has it.
//
// It is for tests only and works on Linux.
package faultproxy
