package sqljob

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/solotick/solotick/idempotent"
	"github.com/solotick/solotick/scheduler"
)

// New makes the handler of statements, separated by semicolons, on the guard's
// database. The error is that of Check.
func New(d Dialect, statements string, guard *idempotent.Guard) (scheduler.Handler, error) {
	sts, err := parse(d, statements)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, run *scheduler.Run) error {
		return guard.Do(ctx, run, func(tx *gorm.DB) error { return execute(ctx, d, tx, sts, run) })
	}, nil
}

func execute(ctx context.Context, d Dialect, tx *gorm.DB, sts []statement, run *scheduler.Run) error {
	values := bindings(d, run)
	affected := make([]int64, len(sts))
	for i, st := range sts {
		args := make([]any, len(st.binds))
		for n, name := range st.binds {
			args[n] = values[name]
		}
		// Not tx.Exec, which takes any ? in the text for a placeholder.
		res, err := tx.Statement.ConnPool.ExecContext(ctx, st.text, args...)
		if err != nil {
			return fmt.Errorf("sqljob: statement in line %d: %w", st.line, err)
		}
		if affected[i], err = res.RowsAffected(); err != nil {
			return fmt.Errorf("sqljob: statement in line %d: %w", st.line, err)
		}
	}
	result, err := json.Marshal(map[string]any{"rows_affected": affected})
	if err != nil {
		return fmt.Errorf("sqljob: result: %w", err)
	}
	run.SetResult(result)
	return nil
}

func bindings(d Dialect, run *scheduler.Run) map[string]any {
	values := map[string]any{
		"key": run.EffectKey("sql"), "job": run.Job(), "attempt": run.Attempt(), "fence": run.Fence(), "tick": nil, "tick_ms": nil, "args": nil,
	}
	if t := run.Tick(); !t.IsZero() {
		values["tick"], values["tick_ms"] = t.UTC().Format(time.DateTime), t.UnixMilli()
		if d == Postgres {
			values["tick"] = t.UTC()
		}
	}
	if args := run.Args(); len(args) > 0 {
		values["args"] = string(args)
	}
	return values
}
