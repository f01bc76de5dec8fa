// Package leader elects one of many processes, again and again, whatever happens
// to the processes and to the backend.
//
// An [Elector] campaigns for one election. What it wins is a [Term]: the right to
// be the leader until the term ends. [FromLocks] makes an elector of any lock
// backend; [New] of a backend with an election recipe of its own.
//
// # Model
//
// The backend is authoritative for who leads, for whether a term can be kept, and
// for whether it has been replaced. A term is known by its owner, 128 random bits
// drawn for each campaign, and its number, which the backend draws. Host names
// and labels are for people: candidates with equal labels are still told apart.
// Keeping and resigning act on exactly that term, so that a late request of an
// old term can neither prolong nor end a newer one.
//
// # States
//
//	         Run
//	          │
//	          ▼
//	   ┌─────────────┐   another leads: wait for a hint or a timed poll;
//	┌─▶│  candidate  │   no answer: jittered back-off
//	│  └──────┬──────┘
//	│         │ won: Term is the term, Changed fires
//	│         ▼
//	│  ┌─────────────┐
//	│  │   leader    │   kept every third of the TTL
//	│  └──────┬──────┘
//	│         │ ended, with a cause: ErrDeposed, ErrUnavailable, ErrResigned
//	│         │ or ErrStopped; contexts of the term end, Changed fires
//	│         ▼
//	│  ┌─────────────┐
//	└──│ giving back │   work that was told to end is waited for, a grace long
//	   └─────────────┘
//
// Run leaves the circle only when its context ends. An error never ends it: a
// backend that is away for ten minutes or a day finds the elector campaigning.
//
// # Trust window
//
// A term is trusted until
//
//	moment before the request was sent + TTL - margin
//
// where the request is the last one, win or keep, that was answered well. The
// window closes by a timer apart from all I/O and is judged anew, by a clock that
// counts suspension, whenever Term is asked. It closes before the backend gives
// the term to another. So a process cut off from the backend stops being leader
// of its own accord, in time, and says so.
//
// # Guarantees
//
//   - A term number belongs to one term of one process, for ever, and each new
//     term of an election has a greater number than all before it.
//   - Trust windows of two processes do not overlap, as long as their clocks run at
//     the same rate within the margin and the backend keeps its own promise.
//   - A term that ends says why, once, through the cause of its contexts. A
//     candidate that never led hears nothing of the kind (client-go issue 1187).
//   - Resigning hands over without waiting for a TTL: at the backend's hint, or at
//     the next poll where that is lost or there is none. A leader that died is replaced
//     when its TTL has passed, and one poll.
//
// # Not guaranteed
//
// Leadership alone does not fence. A process that is frozen right after it asked
// Term can wake up when another leads and go on with what it was about to write.
// Whoever takes the write must compare term numbers, or be guarded otherwise, as
// the run records of package store are. The number is made for that: a resource
// that has seen a number refuses lower ones.
package leader
