//go:build !linux

package sqlitedb

// writable leaves the answer to SQLite.
func writable(string) bool { return true }

// networkFS cannot tell here.
func networkFS(string) string { return "" }
