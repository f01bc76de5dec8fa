//go:build linux

package testenv

import "testing"

var (
	Descendants = descendants
	Find        = find
	SkipOrFail  = skipOrFail
	Sweep       = sweep
	ReservePort = reservePort
	LockFile    = lockFile
	ParentOf    = parentOf
)

const EtcdVersion = etcdVersion

// Folder returns where the server's files are.
func (s *Server) Folder() string { return s.folder.path }

// StartBroken starts a Redis that refuses its arguments and returns the error.
func StartBroken(t *testing.T) error {
	t.Helper()
	s, err := newServer(redisRecipe("--no-such-directive", "1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	return start(s)
}
