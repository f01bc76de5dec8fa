// Package leaseclock measures how long a lease has been running on the side of
// its holder.
//
// Go's monotonic clock stands still while the machine is suspended (golang/go
// issues 24595, 25248, 35012), so a lease judged by it alone looks fresh after a
// lid was closed or a virtual machine was paused. An [Instant] remembers both
// the monotonic time and how far CLOCK_BOOTTIME, which counts suspension, is
// ahead of CLOCK_MONOTONIC; whatever that lead has grown since counts as elapsed.
//
// Guaranteed: Elapsed never runs slower than the monotonic clock, and steps of
// the wall clock do not shorten it. Inside a testing/synctest bubble the
// monotonic part is the bubble's.
//
// Not guaranteed: a hypervisor that hides a pause from the guest's CLOCK_BOOTTIME
// hides it from this package too. Outside Linux the lead is that of the wall
// clock, so there a forward step of the wall clock counts as elapsed time: a
// lease may then be given up early, never late.
package leaseclock
