package cronlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/solotick/solotick/adapters/cronlock"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

// A robfig/cron scheduler on several replicas, with a job that is told when its
// lock is lost, and one that was there before and is not.
func Example() {
	locker, err := memlock.New(nil, nil) // redislock.New, sqllock.New, ...
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	report, err := cronlock.New(ctx, locker, locks.Key("shop", "cron", "report"),
		cronlock.HoldAtLeast(10*time.Second)) // our clocks differ by less
	if err != nil {
		fmt.Println(err)
		return
	}
	vacuum, err := cronlock.New(ctx, locker, locks.Key("shop", "cron", "vacuum"))
	if err != nil {
		fmt.Println(err)
		return
	}

	c := cron.New(cron.WithLocation(time.UTC))
	_, err = c.AddJob("0 2 * * *", report.Job(func(ctx context.Context, fence int64) error {
		// Write what the report says, with the fence beside it, until ctx ends.
		return ctx.Err()
	}))
	fmt.Println(err)
	old := cron.FuncJob(func() {})
	_, err = c.AddJob("@every 1h", cron.NewChain(cron.Recover(cron.DefaultLogger), vacuum.Wrap).Then(old))
	fmt.Println(err)

	c.Start()
	// The program ends: no new ticks, then no runs, then no keys.
	stopped := c.Stop()
	stop()
	<-stopped.Done()
	fmt.Println(locker.Close(context.WithoutCancel(ctx)))
	// Output:
	// <nil>
	// <nil>
	// <nil>
}
