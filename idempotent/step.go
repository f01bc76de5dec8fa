package idempotent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/store"
)

// Stepper is a run that can have steps: *scheduler.Run and [*Attempt].
type Stepper interface {
	// Ref proves that the attempt holds the run.
	Ref() store.Ref
}

var errStepDone = errors.New("idempotent: the step is done")

// Step does a part of a run once: fn's writes and its result, as JSON of at most
// MaxResult bytes, are committed in a transaction of their own, and every later
// call with the name, of this attempt or a later one of the run, answers with the
// result and calls nothing. So an attempt that takes over goes on where the last
// one was. The first caller, too, gets what was stored.
//
// Names are unique in a run: 1 to 128 bytes. The order of the steps, and that a
// later attempt asks for the same ones, is the program's affair. An effect outside
// of the database is made before the step that records it, under
// EffectKey(run, name). An attempt that no longer holds the run gets ErrFenced and
// has written nothing. For the other errors, and for what fn may do, see
// [Guard.Do]; the step's result must not be waited for within another step's fn.
func Step[T any](ctx context.Context, g *Guard, run Stepper, name string, fn func(tx *gorm.DB) (T, error)) (T, error) {
	var out T
	stored, err := g.step(ctx, run.Ref(), name, func(tx *gorm.DB) ([]byte, error) {
		v, err := fn(tx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(v)
		if err == nil && len(text) > MaxResult {
			err = fmt.Errorf("%w (step %q: %d bytes, the most is %d)", ErrTooLarge, name, len(text), MaxResult)
		}
		return text, err
	})
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(stored, &out); err != nil {
		return out, fmt.Errorf("idempotent: decode the result of step %q: %w", name, err)
	}
	return out, nil
}

func (g *Guard) step(ctx context.Context, ref store.Ref, name string, fn func(tx *gorm.DB) ([]byte, error)) ([]byte, error) {
	if name == "" || len(name) > 128 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("idempotent: step %q: use a name of 1 to 128 bytes of UTF-8 without NUL", name)
	}
	var result []byte
	u := unit{
		db: g.store.DB(), patience: g.patience,
		before: func(ctx context.Context, tx *gorm.DB) error {
			if err := g.store.CheckTx(ctx, tx, ref); err != nil || mutation.On("steps-skip") {
				return err
			}
			s, found, err := g.store.StepTx(ctx, tx, ref.ID, name)
			if err == nil && found {
				result, err = s.Result, errStepDone
			}
			return err
		},
		fn: func(tx *gorm.DB) error {
			var err error
			result, err = fn(tx)
			return err
		},
		after: func(ctx context.Context, tx *gorm.DB) error {
			if err := g.store.SaveStepTx(ctx, tx, ref, name, result); err != nil {
				return err
			}
			return g.store.HoldTx(ctx, tx, ref)
		},
		fate: func(ctx context.Context) (fate, error) {
			s, found, err := g.store.Step(ctx, ref.ID, name)
			switch {
			case err != nil:
				return gone, err
			case found && s.Attempt == ref.Attempt:
				return applied, nil
			case found:
				return gone, nil
			}
			became, err := g.fateOf(ctx, ref)
			if became == applied {
				became = gone // the run was finished without the step
			}
			return became, err
		},
	}
	if err := u.commit(ctx); err != nil && !errors.Is(err, errStepDone) {
		return nil, err
	}
	return result, nil
}
