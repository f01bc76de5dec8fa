package idempotent

import (
	"context"
	"fmt"

	"github.com/solotick/solotick/store"
)

// Answer of a Probe: [Done], [NotDone] or [Unknown]. The zero Answer is Unknown.
type Answer struct {
	verdict verdict
	value   any
}

type verdict int8

const (
	unknown verdict = iota
	done
	notDone
)

// Done says that the effect happened. Value is the call's result from now on: a
// value for the codec, or the bytes for [Guard.Once].
func Done(value any) Answer { return Answer{done, value} }

// NotDone says that the effect did not happen and will not: the call is made.
func NotDone() Answer { return Answer{verdict: notDone} }

// Unknown says that it cannot be told now.
func Unknown() Answer { return Answer{} }

// String names the answer.
func (a Answer) String() string {
	switch a.verdict {
	case done:
		return "done"
	case notDone:
		return "not done"
	case unknown:
	}
	return "unknown"
}

// Probe finds out, outside of the database, whether the effect of a lost attempt
// happened: it asks the bank about a.EffectKey("pay"), or looks into the mailbox.
// It must answer NotDone only if the effect can no longer come: an attempt can be
// lost and still be on its way. An error is told to the caller and answers nothing.
type Probe func(ctx context.Context, lost *Attempt) (Answer, error)

// AtMostOnce is for an effect outside of the database whose receiver neither knows
// keys nor compares numbers (grade E), made in the function given to [Before]. The
// record of the call is the intent, committed before fn and Before are called. If an
// attempt ends without a result, by a crash or by an error that is neither
// [Permanent] nor [Refuse], the record becomes indeterminate and nothing repeats the
// call: later ones get ErrIndeterminate, until the probe, which each of them asks
// first, knows. Nil asks nothing; people then decide, by [Guard.Resolve].
func AtMostOnce(p Probe) Option {
	return func(o *options) { o.onCrash, o.probe = store.CrashIndeterminate, p }
}

// resolve is nil when the record is to be looked at again.
func (c *call) resolve(ctx context.Context, e store.Execution) error {
	doubt := fmt.Errorf("%w (%s, attempt %d)", ErrIndeterminate, c.key, e.Attempt)
	if c.probe == nil {
		return doubt
	}
	a, err := c.probe(ctx, &Attempt{exec: e})
	if err != nil {
		return fmt.Errorf("%w: the probe: %w", doubt, err)
	}
	switch a.verdict {
	case done:
		result, err := c.encode(a.value)
		if err != nil {
			return err
		}
		return c.confirm(ctx, e, result)
	case notDone:
		return c.reopen(ctx, e, foundMissing)
	case unknown:
	}
	return doubt
}

// foundMissing is the note of an attempt whose effect was looked for.
const foundMissing = "its effect was found missing"

func (c *call) encode(value any) ([]byte, error) {
	if c.codec == bytesCodec {
		raw, ok := value.([]byte)
		if !ok && value != nil {
			return nil, fmt.Errorf("idempotent: Done: a %T: give Guard.Once the bytes of the result", value)
		}
		return seal(bytesCodec, raw)
	}
	payload, err := c.options.codec.Encode(value)
	if err != nil {
		return nil, fmt.Errorf("idempotent: Done: encode the result: %w", err)
	}
	return seal(c.codec, payload)
}

// Resolve settles a run of any class that is indeterminate, by what is known of its
// effect: Done makes it succeeded, without a value (Once then answers
// ErrForgotten); NotDone makes it pending, to be
// run again by its scheduler or by the next call of its key; Unknown leaves it. The
// error matches store.ErrNotFound, or ErrSettled if the run is not indeterminate.
func (g *Guard) Resolve(ctx context.Context, namespace string, id store.ID, a Answer) error {
	e, err := g.store.Get(ctx, namespace, id)
	if err != nil {
		return err
	}
	changed := true
	switch {
	case e.State != store.StateIndeterminate:
		return fmt.Errorf("%w (%s is %v)", ErrSettled, e.Key, e.State)
	case a.verdict == done:
		changed, err = g.store.Confirm(ctx, namespace, id, e.Version, nil)
	case a.verdict == notDone:
		changed, err = g.store.Reopen(ctx, namespace, id, e.Version, foundMissing)
	}
	if err == nil && !changed {
		err = fmt.Errorf("%w (%s changed meanwhile)", ErrSettled, e.Key)
	}
	return err
}
