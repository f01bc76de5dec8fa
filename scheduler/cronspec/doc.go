// Package cronspec says when a job is due: cron expressions and "@every"
// intervals in a time zone, with defined behaviour on days on which clocks
// change.
//
// A [Spec] comes from [Parse] and never changes. The fields are read by
// robfig/cron's parser; which instants they mean is worked out here, because a
// tick is an identity that many replicas must agree on.
//
// # Guarantees
//
//   - The instants of a spec depend on its text, zone and policies and on the
//     zone data, on nothing else: not on the local zone, not on process start.
//     Zone data are embedded ([TZDataVersion]), so replicas of one build agree
//     whatever their hosts have installed.
//   - Every accepted spec has a next instant after any moment from the year 1
//     until a few years before 9999; there is no search limit in between.
//   - [Spec.Next] is strictly increasing, returns whole seconds in UTC, and
//     terminates. [Spec.Count] and [Spec.Last] agree with it, at a cost that
//     grows with the months and clock changes in the range, not with the instants.
//   - What a spec cannot mean is an [*Error] from Parse, never a job that stays silent.
//
// # Not guaranteed
//
// Replicas that run on different zone data (two builds, or ZONEINFO set on one
// of them) may disagree where those data differ; log TZDataVersion. There are
// no leap seconds: a day has the length its zone gives it.
//
// # Syntax
//
// Five fields (minute, hour, day of month, month, day of week) or six with the
// second in front. A field is a list of values, ranges (a-b, which may wrap, as
// in 22-2 or fri-mon), * or ?, each with an optional step (/n). Months and days
// of the week have English three-letter names; Sunday is 0 or 7. The shorthands
// @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly stand
// for their usual fields. "@every D" is every D counted from the Unix epoch plus
// [Options].Offset. A prefix "TZ=Zone " or "CRON_TZ=Zone " sets the zone.
//
// If both day fields are restricted, a day matches when either does (POSIX).
// Only a plain *, ? or */1 leaves a field unrestricted: "0 0 */2 * 1" is every
// odd day and every Monday. Vixie cron, where any field that begins with *
// is unrestricted, would run it on odd Mondays only.
//
// # Clock changes
//
// The rules are those of Vixie cron and OCPS 1.4, taken from the change of the
// zone's offset itself. A spec is fixed-time if second, minute and hour have no
// *, ? or step; otherwise it is an interval.
//
// When clocks go forward, an interval goes on at the instants that exist.
// A fixed-time spec whose times fall into the gap runs once for all of them at
// the first instant after it, or as [GapPolicy] says. An interval with a fixed
// hour ("*/15 2 * * *") is treated likewise on a day whose every time falls into
// the gap. A moved run never lands on a day that the expression does not match,
// and a calendar day that the zone leaves out whole (Apia, 2011-12-30) owes none.
//
// When clocks go back, an interval runs in both passes of the repeated time, and
// a fixed-time spec in one of them, the first by default ([FoldPolicy]).
//
// "@every" and UTC know neither gap nor fold.
package cronspec
