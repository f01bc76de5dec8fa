//go:build unix

package cli

import (
	"crypto/sha256"
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe can be read once: looking at it would take the configuration away.
func TestDigestLeavesPipesAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(path, 0o600))
	if digest(path) != [sha256.Size]byte{} {
		t.Error("a pipe was read")
	}
}
