package leader_test

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

// Work that one replica does, for as long as it leads.
func ExampleElector() {
	locker, err := memlock.New(nil, nil) // or any other lock backend
	if err != nil {
		fmt.Println(err)
		return
	}
	elector, err := leader.FromLocks(locker, locks.Key("shop", "leader"), leader.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stopped := make(chan error)
	go func() { stopped <- elector.Run(ctx) }()

	for ctx.Err() == nil {
		changed := elector.Changed()
		if term := elector.Term(); term != nil {
			work, done := term.Context(ctx) // ends with the term
			fmt.Println("leading:", work.Err() == nil, "term:", term.Number() > 0)
			done()
			stop() // the process ends: the term is given back at once
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	fmt.Println("stopped:", <-stopped, locker.Close(context.Background()))
	// Output:
	// leading: true term: true
	// stopped: <nil> <nil>
}
