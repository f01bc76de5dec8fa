package gormstore

import (
	"context"

	"gorm.io/gorm"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// HoldTx locks a run for its attempt until the transaction ends, by one statement:
// what the transaction commits is then committed by an attempt that held the run.
// Like [Store.FinishTx], which finishes the run as well, it belongs last in the
// transaction, and store.ErrFenced means that it must be rolled back.
func (s *Store) HoldTx(ctx context.Context, tx *gorm.DB, ref store.Ref) error {
	c, err := s.within(tx)
	if err != nil {
		return s.fail("hold in a transaction", err)
	}
	where, args := heldBy, heldArgs(ref)
	if mutation.On("hold-attempt") {
		where, args = " WHERE id = ?", args[:1]
	}
	n, err := c.Exec(ctx, "UPDATE "+s.t.executions+" SET version = version + 1"+where, args...)
	if err != nil {
		return s.fail("hold in a transaction", err)
	}
	if n == 0 {
		return store.ErrFenced
	}
	return nil
}

// Step is a part of a run that is done, by its name.
type Step struct {
	Name    string
	Attempt int // that did it
	Done    store.Millis
	Result  []byte
}

// StepTx reads a step of a run, in a transaction. Found is false if it is not done.
func (s *Store) StepTx(ctx context.Context, tx *gorm.DB, id store.ID, name string) (step Step, found bool, err error) {
	c, err := s.within(tx)
	if err != nil {
		return Step{}, false, s.fail("read a step", err)
	}
	return s.step(ctx, c, id, name)
}

// Step reads a step of a run.
func (s *Store) Step(ctx context.Context, id store.ID, name string) (step Step, found bool, err error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	return s.step(ctx, s.conn, id, name)
}

func (s *Store) step(ctx context.Context, c sqldialect.Conn, id store.ID, name string) (step Step, found bool, err error) {
	step.Name = name
	err = c.Query(ctx, "SELECT attempt, done_ms, result FROM "+s.steps()+" WHERE run_id = ? AND name = ?", []any{id[:], name},
		func(from sqldialect.Rows) error {
			found = true
			return from.Scan(&step.Attempt, &step.Done, &step.Result)
		})
	return step, found, s.fail("read a step", err)
}

// SaveStepTx records a step as done by the attempt, by one statement. A step that
// is done already breaks the table's key.
func (s *Store) SaveStepTx(ctx context.Context, tx *gorm.DB, ref store.Ref, name string, result []byte) error {
	c, err := s.within(tx)
	if err != nil {
		return s.fail("save a step", err)
	}
	_, err = c.Exec(ctx, "INSERT INTO "+s.steps()+" (run_id, name, ns, attempt, result, done_ms) VALUES (?, ?, ?, ?, ?, "+c.NowMillis+")",
		ref.ID[:], name, ref.Namespace, ref.Attempt, bytesOrNull(result))
	return s.fail("save a step", err)
}

func (s *Store) steps() string { return s.prefix + "steps" }
