//go:build linux

package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const folderPrefix = "solotick-testenv-"

var sweepOnce = sync.OnceFunc(sweep)

// sweep removes the folders whose processes were killed.
func sweep() {
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, folder := range folders {
		if lock, err := lockFile(filepath.Join(folder, "lock")); err == nil {
			_ = os.RemoveAll(folder) // another user's stays
			_ = lock.Close()
		}
	}
}

// folder is a temporary folder that servers of other users can reach.
type folder struct {
	path string
	lock *os.File // held while the process lives
}

func newFolder(name string) (folder, error) {
	sweepOnce()
	fresh, err := os.MkdirTemp("", "new-"+folderPrefix+name+"-")
	if err != nil {
		return folder{}, err
	}
	lock, err := lockFile(filepath.Join(fresh, "lock"))
	if err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(fresh))
	}
	// It gets the name that other processes sweep only now that it is locked.
	f := folder{path: filepath.Join(os.TempDir(), strings.TrimPrefix(filepath.Base(fresh), "new-")), lock: lock}
	if err := errors.Join(os.Chmod(fresh, 0o755), os.Rename(fresh, f.path)); err != nil {
		return folder{}, errors.Join(err, os.RemoveAll(fresh), lock.Close())
	}
	return f, nil
}

func (f folder) remove() error { return errors.Join(os.RemoveAll(f.path), f.lock.Close()) }

func (f folder) join(name string) string { return filepath.Join(f.path, name) }
