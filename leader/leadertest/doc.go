// Package leadertest is the conformance suite for election backends. A lock
// backend passes it by way of leader.FromLocks, a native one by way of its own
// constructor.
//
//	func TestConformance(t *testing.T) {
//		leadertest.Run(t, leadertest.Harness{
//			TTL:      time.Second,
//			Handover: 500 * time.Millisecond,
//			New: func(t *testing.T, election string, cfg leader.Config) leadertest.Candidate { ... },
//		})
//	}
//
// It shows, for several candidates on one backend: at most one leads, also when
// all have the same label; terms strictly rise and belong to one candidate each;
// a leader that resigns or stops is replaced without waiting for a TTL, and not
// before its work has returned; one that dies is replaced after its TTL; one cut
// off from the backend ends its term before the backend gives the next, and says
// so; one that is deposed is told; a candidate that never led hears nothing; all
// of them outlive an outage; and, by package terms, what they believed and were told is
// the history of one election. It cannot show what a frozen process does: that is
// for real processes.
package leadertest
