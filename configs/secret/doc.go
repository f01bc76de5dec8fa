// Package secret keeps values that must not be shown: passwords, tokens, data
// source names.
//
// A [Value] prints as "[redacted]" through fmt with any verb, in JSON, YAML,
// text and slog, also as a field of a struct that is printed whole. Only
// [Value.Reveal] gives it away, so a search for that word finds every place where
// a secret leaves its wrapper.
//
// Not guaranteed: that the value is wiped from memory, or that a text made from
// Reveal stays hidden.
package secret
