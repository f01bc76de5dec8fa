// Package child runs a command under a right that may end: a lock's lease or a
// run's.
//
// The command gets a process group of its own. When its right is lost, or about
// to end without having been renewed, the group gets SIGTERM, and SIGKILL before
// the right ends. Signals sent to this process are passed on to the group.
//
// Guaranteed, while this process itself is running: after Run has returned because
// of a loss, no process of the group is left. Not guaranteed: processes that the
// command moved to another group or session, and, when this process is killed or
// frozen, anything but that on Linux the command's first process gets SIGKILL
// when this process dies. The fence is what protects a resource in these cases.
//
// Where there are no process groups, only the command's first process is
// stopped, at once.
package child
