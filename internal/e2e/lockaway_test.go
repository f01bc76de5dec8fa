package e2e

import (
	"database/sql"
	"testing"

	_ "modernc.org/sqlite" // the driver, to hold the lock database's write lock
)

// lockAway makes a lock database unable to answer: a transaction of our own holds
// its only write lock, until the returned function is called. To the replicas
// that is a backend that does not respond.
func lockAway(t *testing.T, path string) (end func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return end
}
