// Package subscription reads a subscription to Redis, and finds out that it has failed
// also where nothing tells so.
package subscription

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Quiet is how long a subscription may be silent before it is asked for a sign of life.
	Quiet = 30 * time.Second
	// Pong is how long that may take.
	Pong = 2 * time.Second
)

// Handler is told what comes. Its functions are called by [Receive], one at a time.
type Handler struct {
	// Within bounds the connecting, and the first answer.
	Within time.Duration
	// Changed tells that a channel is subscribed to from now on, or is not any more.
	Changed func(channel string, subscribed bool)
	// Message tells of a message.
	Message func(channel, payload string)
	// Idle is asked in a silence whether the subscription is of no more use; nil for no.
	Idle func() bool
}

// Receive subscribes to channels and reads what comes until the subscription fails, is
// idle (no error), or is closed. Worked reports whether it was ever in force. Others may
// subscribe to more channels meanwhile, and not receive.
func Receive(ctx context.Context, ps *redis.PubSub, h Handler, channels ...string) (worked bool, err error) {
	begin, cancel := context.WithTimeout(ctx, h.Within)
	err = ps.Subscribe(begin, channels...)
	cancel()
	if err != nil {
		return false, err
	}
	limit, asked := h.Within, false
	for {
		msg, err := ps.ReceiveTimeout(ctx, limit)
		switch m := msg.(type) {
		case *redis.Subscription:
			on := m.Kind == "subscribe"
			worked = worked || on
			h.Changed(m.Channel, on)
		case *redis.Message:
			h.Message(m.Channel, m.Payload)
		}
		if err == nil {
			asked = false
			if worked {
				limit = Quiet
			}
			continue
		}
		if !isTimeout(err) || asked || !worked {
			return worked, err
		}
		if h.Idle != nil && h.Idle() {
			return worked, nil
		}
		ask, cancel := context.WithTimeout(ctx, Pong)
		err = ps.Ping(ask)
		cancel()
		if err != nil {
			return worked, err
		}
		limit, asked = Pong, true
	}
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}
