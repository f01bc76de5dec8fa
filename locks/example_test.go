package locks_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/memlock"
)

// A function that runs under a lock, with a context that ends before the lease can.
func ExampleLocker_Do() {
	locker, err := memlock.New(nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer locker.Close(ctx)

	err = locker.Do(ctx, locks.Key("shop", "report"), func(ctx context.Context, lease *locks.Lease) error {
		fmt.Println("writing the report under fence", lease.Fence())
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// writing the report under fence 1
	// error: <nil>
}

// Two processes and one key: the second does something else.
func ExampleLocker_TryAcquire() {
	backend := new(memlock.Space)
	ctx := context.Background()
	one, err := memlock.New(backend, &locks.Config{Label: "replica-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer one.Close(ctx)
	two, err := memlock.New(backend, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer two.Close(ctx)

	key := locks.Key("shop", "report")
	lease, err := one.TryAcquire(ctx, key)
	if err != nil {
		log.Fatal(err)
	}
	_, err = two.TryAcquire(ctx, key)
	var held *locks.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println("held by", held.Holder.Label)
	case errors.Is(err, locks.ErrUnavailable):
		fmt.Println("the backend is away")
	}
	fmt.Println("released:", lease.Release(ctx))
	// Output:
	// held by replica-1
	// released: <nil>
}
