package leadertest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
	"github.com/solotick/solotick/store/gormstore/sqlitedb"
)

// replicaEnv makes this test binary a replica on the database that it names.
const replicaEnv = "LEADERTEST_REPLICA"

const (
	frozenKey = "lock:test:frozen"
	frozenTTL = 1500 * time.Millisecond
)

// replica campaigns and says what it believes. It is killed by the test.
func replica(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
	}
	db, err := sqlitedb.Open(path, nil)
	fail(err)
	l, err := sqllock.New(db, &locks.Config{TTL: frozenTTL})
	fail(err)
	e, err := leader.FromLocks(l, frozenKey, leader.Config{})
	fail(err)
	go func() { fail(e.Run(context.Background())) }()
	var told <-chan struct{}
	var term *leader.Term
	for {
		asked := time.Now() // before the answer: a process can be frozen between the two
		t := e.Term()
		if t != nil {
			fmt.Println("leads", t.Number(), asked.UnixNano())
			term, told = t, t.Done()
		}
		select {
		case <-told:
			fmt.Println("ended", term.Number(), errors.Is(term.Err(), leader.ErrUnavailable), errors.Is(term.Err(), leader.ErrDeposed))
			told = nil
		case <-time.After(2 * time.Millisecond):
		}
	}
}
