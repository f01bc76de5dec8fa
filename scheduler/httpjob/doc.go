// Package httpjob makes a job's handler of an HTTP request.
//
// Every request carries
//
//	Idempotency-Key    the same for every attempt of the run
//	Solotick-Job       name of the job, or kind of the queue job
//	Solotick-Tick      scheduled instant, RFC 3339 in UTC; absent for queue jobs
//	Solotick-Attempt   1, 2, ...
//	Solotick-Fence     number that rises with every claim of the job
//
// and, for a queue job without a body of its own, its arguments as the body.
//
// Guarantees:
//   - The request ends with the run's context, and after Config.Timeout.
//   - An answer in the 400s other than 408, 425 and 429 is permanent: no further
//     attempt is made. Every other answer that is not expected, and no answer,
//     leaves the next attempt open.
//   - No error, log line or result has the URL beyond scheme and host, a header, or
//     the body that was sent. Of an answer that quotes them the values of headers, the
//     body with the values in it if it is JSON or a form, path, query and user are
//     hidden, and parts of the path and values in the body from 8 bytes on; what is
//     shorter than 4 bytes is not looked for.
//   - Redirects are followed for GET and HEAD only, at most 5, on the same host and
//     never from https to http.
//
// Not guaranteed: that the receiver acts once. It does if it drops repeats of an
// Idempotency-Key (say so by Config.Idempotent) or refuses lower fences; otherwise
// the effect is at-least-once.
package httpjob
