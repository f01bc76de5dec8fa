// Package redisswitch keeps the setting of the degradation switch in a key of Redis,
// solotick:switch:NAMESPACE by default, and tells changes over the channel of the same
// name. Beside that each process reads the key once a second, since Redis forgets
// what it told to a connection that was not there.
//
// # Privileges
//
// For those who watch, and for those who throw the switch:
//
//	user worker on >secret resetchannels %R~solotick:switch:shop &solotick:switch:shop +get +subscribe +unsubscribe +ping
//	user operator on >secret resetchannels ~solotick:switch:shop &solotick:switch:shop +get +set +del +publish
//
// What the locks need is enough for both.
//
// # What happens when
//
//	the server is down, slow, cut off   the last setting stays in force until it ends; the watch begins anew
//	the server restarts empty           the setting is gone, as if it had been cleared: throw it again
//	failover                            a change that was not replicated is gone; status tells what is in force
//	the message is lost                 the key is read within a second
package redisswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
)

// DefaultPrefix begins the key and the channel.
const DefaultPrefix = "solotick:"

// Options of a Centre.
type Options struct {
	// Prefix begins the key and the channel. Default [DefaultPrefix].
	Prefix string
	// Poll is the pause between two looks, give or take a fifth. Default 700ms.
	Poll time.Duration
	// Timeout bounds one request. Default 2s.
	Timeout time.Duration
}

// Centre is the configuration centre in Redis. It is safe for concurrent use.
type Centre struct {
	rdb redis.UniversalClient
	key string
	o   Options
}

var _ switchwatch.Centre = (*Centre)(nil)

// New makes a centre over a client of a server, of a cluster or behind Sentinel, which
// its maker closes. It sends nothing. Nil options are the defaults.
func New(rdb redis.UniversalClient, namespace string, o *Options) (*Centre, error) {
	if rdb == nil {
		return nil, errors.New("redisswitch: no client")
	}
	if err := scheduler.ValidateName(namespace); err != nil {
		return nil, err
	}
	c := &Centre{rdb: rdb}
	if o != nil {
		c.o = *o
	}
	c.key = cmp.Or(c.o.Prefix, DefaultPrefix) + "switch:" + namespace
	for name, d := range map[string]time.Duration{"Poll": c.o.Poll, "Timeout": c.o.Timeout} {
		if d < 0 {
			return nil, fmt.Errorf("redisswitch: %s: %v is negative: leave it out for the default", name, d)
		}
	}
	c.o.Poll = cmp.Or(c.o.Poll, 700*time.Millisecond)
	c.o.Timeout = cmp.Or(c.o.Timeout, 2*time.Second)
	return c, nil
}

// Key is the key that holds the setting, and the channel.
func (c *Centre) Key() string { return c.key }

// Load implements [switchwatch.Centre].
func (c *Centre) Load(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	value, err := c.rdb.Get(ctx, c.key).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("redisswitch: read %s: %w", c.key, err)
	}
	return value, nil
}

// Save implements [switchwatch.Centre]. A message that cannot be sent is no error: the
// key is read once a second.
func (c *Centre) Save(ctx context.Context, value []byte) (err error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	if len(value) == 0 {
		err = c.rdb.Del(ctx, c.key).Err()
	} else {
		err = c.rdb.Set(ctx, c.key, value, 0).Err()
	}
	if err != nil {
		return fmt.Errorf("redisswitch: write %s: %w", c.key, err)
	}
	_ = c.rdb.Publish(ctx, c.key, "look").Err()
	return nil
}

// Watch implements [switchwatch.Centre].
func (c *Centre) Watch(ctx context.Context, changed func([]byte)) error {
	ear := c.rdb.Subscribe(ctx) // to nothing yet, which sends nothing
	heard := make(chan struct{}, 1)
	done := make(chan struct{})
	listening, deaf := context.WithCancel(ctx)
	go func() {
		defer close(done)
		c.listen(listening, ear, heard)
	}()
	defer func() {
		deaf()
		_ = ear.Close() // which ends the listening
		<-done
	}()
	for {
		value, err := c.Load(ctx)
		if err != nil {
			return err
		}
		changed(value)
		next := time.NewTimer(backoff.Jitter(c.o.Poll, 0.2))
		select {
		case <-ctx.Done():
		case <-heard:
		case <-next.C:
		}
		next.Stop()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// listen tells of every message until ctx ends. A subscription that fails is made
// again by the client, at the next call.
func (c *Centre) listen(ctx context.Context, ear *redis.PubSub, heard chan<- struct{}) {
	_ = ear.Subscribe(ctx, c.key) // the client remembers what for, and repeats it
	for failures := 0; ctx.Err() == nil; {
		// Bounded, so that a connection that has fallen silent is given up: a timeout is
		// an error, after which the ping finds out.
		_, err := ear.ReceiveTimeout(ctx, 10*time.Second)
		if isTimeout(err) {
			err = ear.Ping(ctx)
		} else if err == nil {
			select {
			case heard <- struct{}{}:
			default:
			}
		}
		if err == nil {
			failures = 0
			continue
		}
		if backoff.Wait(ctx, backoff.Policy{Base: 100 * time.Millisecond, Max: 2 * time.Second}.Delay(failures)) != nil {
			return
		}
		failures++
	}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
