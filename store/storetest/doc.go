// Package storetest proves that a store keeps the contract of package store, and
// breaks stores on purpose.
//
// [Run] is the conformance suite: a store that passes it can carry a scheduler.
// Its failures name the rule of the contract that is broken. [Faulty] wraps a
// store and makes its calls fail before or after they are applied, wait, or get
// no answer at all.
//
// The suite shows the presence of the guards on the paths it takes. It is no
// proof that a database keeps what it has acknowledged through a power cut.
package storetest
