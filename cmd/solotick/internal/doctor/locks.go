package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/locks"
)

// CheckLocks takes the lock called key and gives it back. The driver is its name in
// the file.
func CheckLocks(ctx context.Context, locker *locks.Locker, driver, key string) Finding {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	lease, err := locker.TryAcquire(ctx, key)
	took := time.Since(sent).Round(time.Millisecond)
	switch {
	case errors.Is(err, locks.ErrHeld): // by another doctor
		return good("locks", "%s answers within %v", driver, took)
	case err != nil:
		return Unreachable(err)
	}
	if err := lease.Release(ctx); err != nil {
		return Bad("locks", fmt.Sprintf("%s grants, and does not take back: %v", driver, err), "look at the rights of its user: jobs would wait for the TTL of the one before")
	}
	return good("locks", "%s grants a lock and takes it back; the grant took %v", driver, took)
}

// Unreachable is a lock backend that could not be used.
func Unreachable(err error) Finding {
	return Bad("locks", err.Error(), "check that the backend runs, that the file names it, and what its user may do; until then degradation.mode says what happens")
}

// Placement is where store and locks are kept.
type Placement struct {
	OnServer   bool // the store is on a server
	InStore    bool // the locks are kept in the store's database
	InProcess  bool // by one process
	OnThisHost bool // in a file
	SameFile   bool // which is the store's
}

// Scope tells whether the locks reach as far as the store.
func (p Placement) Scope() Finding {
	switch {
	case p.InProcess:
		return doubtful("scope", "the locks are known to one process only", "name a driver that all replicas share; until then the record alone keeps it to one run per tick")
	case p.OnThisHost && p.OnServer:
		return doubtful("scope", "the store is shared by hosts, and the locks are a file of this one", "name a driver that all hosts share, such as locks.driver: store")
	case p.SameFile:
		return doubtful("scope", "locks.sqlite.dsn is the file of the store", "write locks.driver: store, or name another file")
	case p.InStore && p.OnServer:
		return good("scope", "the locks are in the store's database, with connections of their own")
	case p.InStore:
		return good("scope", "the locks are in the store's file: one host")
	}
	return good("scope", "the locks are apart from the store")
}
