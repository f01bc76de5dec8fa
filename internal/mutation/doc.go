// Package mutation lets a build break one safety guard on purpose, so that the
// test suite can prove it would notice.
//
// Without the build tag "mutation" On is a constant false and the compiler
// drops the broken branch. With it, the guard named by the environment variable
// SOLOTICK_MUTATION is off. No shipped binary is built with the tag.
package mutation
