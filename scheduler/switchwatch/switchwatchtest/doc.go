// Package switchwatchtest is the suite for configuration centres of the degradation
// switch, ours or a stranger's: that a value is kept and told, that a fleet of
// watchers turns within a second, that nothing is lost over silence, reset and restart
// of the server, and that a broken value changes nothing.
//
// It is for tests only.
package switchwatchtest
