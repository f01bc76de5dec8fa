// Package storeswitch keeps the setting of the degradation switch in the scheduler's
// own store: the newest change for the fleet is in force, and all of them are the
// audit. It needs no server beside the store.
//
// Watching is polling: one statement along an index for each process, twice a second
// and a little apart, so that a change is obeyed within a second.
//
// # Privileges
//
// Reading the table switch_changes, and adding to it where the switch is thrown.
//
// # What happens when
//
//	the store is down, slow, cut off   the last setting stays in force until it ends; the watch begins anew
//	the answer to a change is lost     it is repeated under its token: there is one record
package storeswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/store"
)

// Options of a Centre.
type Options struct {
	// Poll is the pause between two looks, give or take a tenth. Default 450ms.
	Poll time.Duration
	// Timeout bounds one look, and one change with its repeats. Default 2s.
	Timeout time.Duration
}

// Centre is the configuration centre in the store. It is safe for concurrent use.
type Centre struct {
	board     store.Switchboard
	namespace string
	o         Options
}

var (
	_ switchwatch.Centre   = (*Centre)(nil)
	_ switchwatch.Recorder = (*Centre)(nil)
)

// New makes a centre on a store. It sends nothing. Nil options are the defaults.
func New(board store.Switchboard, namespace string, o *Options) (*Centre, error) {
	if board == nil {
		return nil, errors.New("storeswitch: no store: give one that keeps changes of the switch")
	}
	if err := scheduler.ValidateName(namespace); err != nil {
		return nil, err
	}
	c := &Centre{board: board, namespace: namespace}
	if o != nil {
		c.o = *o
	}
	for name, d := range map[string]time.Duration{"Poll": c.o.Poll, "Timeout": c.o.Timeout} {
		if d < 0 {
			return nil, fmt.Errorf("storeswitch: %s: %v is negative: leave it out for the default", name, d)
		}
	}
	c.o.Poll = cmp.Or(c.o.Poll, 450*time.Millisecond)
	c.o.Timeout = cmp.Or(c.o.Timeout, 2*time.Second)
	return c, nil
}

// Load implements [switchwatch.Centre].
func (c *Centre) Load(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	changes, _, err := c.board.SwitchChanges(ctx, c.namespace, true, 1)
	if err != nil || len(changes) == 0 || changes[0].To == "" {
		return nil, err
	}
	return []byte(changes[0].To), nil
}

// Save implements [switchwatch.Centre]. Who, why and until when are taken from the
// value; use [Centre.Throw] to tell them.
func (c *Centre) Save(ctx context.Context, value []byte) error {
	change := store.SwitchChange{Source: "centre", By: "unknown", Reason: "saved"}
	if t, err := scheduler.ParseSwitchSetting(value); err == nil {
		change.By, change.Reason = t.By, t.Reason
		if !t.Until.IsZero() {
			change.Until = store.MillisOf(t.Until)
		}
	}
	change.To = string(value)
	_, err := c.Throw(ctx, change)
	return err
}

// Throw implements [switchwatch.Recorder]: it appends the change, which is in force as
// soon as a process looks. What was in force before is filled in where it is left out.
func (c *Centre) Throw(ctx context.Context, change store.SwitchChange) (store.SwitchChange, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	change.Fleet = true
	if change.Token == (store.ID{}) {
		change.Token = store.NewID(store.MillisOf(time.Now()))
	}
	for try := 0; ; try++ {
		got, err := c.throw(ctx, change)
		if err == nil || !errors.Is(err, store.ErrUnavailable) {
			return got, err
		}
		if backoff.Wait(ctx, backoff.Policy{Base: 50 * time.Millisecond, Max: 500 * time.Millisecond}.Delay(try)) != nil {
			return got, err
		}
	}
}

func (c *Centre) throw(ctx context.Context, change store.SwitchChange) (store.SwitchChange, error) {
	if change.From == "" {
		value, err := c.Load(ctx)
		if err != nil {
			return store.SwitchChange{}, err
		}
		change.From = string(value)
	}
	return c.board.ThrowSwitch(ctx, c.namespace, change)
}

// Watch implements [switchwatch.Centre].
func (c *Centre) Watch(ctx context.Context, changed func([]byte)) error {
	for {
		value, err := c.Load(ctx)
		if err != nil {
			return err
		}
		changed(value)
		if err := backoff.Wait(ctx, backoff.Jitter(c.o.Poll, 0.1)); err != nil {
			return err
		}
	}
}
