package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/solotick/solotick/adapters/gocronlock"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

// A gocron scheduler on several replicas, whose jobs exclude each other by a lock.
func ExampleLocker() {
	l, err := memlock.New(nil, nil) // redislock.New, sqllock.New, ...
	if err != nil {
		fmt.Println(err)
		return
	}
	locker, err := gocronlock.NewLocker(l, "shop", gocronlock.HoldAtLeast(10*time.Second)) // our clocks differ by less
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithDistributedLocker(locker))
	if err != nil {
		fmt.Println(err)
		return
	}
	report := func(ctx context.Context, fence int64) error {
		// Write what the report says, with the fence beside it, until ctx ends.
		return ctx.Err()
	}
	_, err = s.NewJob(gocron.CronJob("0 2 * * *", false), locker.Task("report", report), gocron.WithName("report"),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, err error) {
			if !errors.Is(err, locks.ErrHeld) {
				fmt.Println(job, "was skipped, and perhaps everywhere:", err)
			}
		})))
	fmt.Println(err)
	s.Start()
	fmt.Println(s.Shutdown(), l.Close(context.Background())) // in this order
	// Output:
	// <nil>
	// <nil> <nil>
}

// A gocron scheduler whose jobs all run on the replica that leads.
func ExampleElector() {
	l, err := memlock.New(nil, nil) // or any other lock backend
	if err != nil {
		fmt.Println(err)
		return
	}
	campaign, err := leader.FromLocks(l, locks.Key("shop", "leader"), leader.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	elector, err := gocronlock.NewElector(campaign)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stopped := make(chan error)
	go func() { stopped <- campaign.Run(ctx) }()

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.NewJob(gocron.DurationJob(time.Hour), elector.Task(func(ctx context.Context, term int64) error {
		return ctx.Err()
	}))
	fmt.Println(err)
	s.Start()
	fmt.Println(s.Shutdown())
	stop()
	fmt.Println(<-stopped, l.Close(context.Background()))
	// Output:
	// <nil>
	// <nil>
	// <nil> <nil>
}
