package gormstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

// Plan is how the database would find the rows of one of the store's statements.
type Plan struct {
	Statement string // claim, fetch, takeover or switch
	Index     string // that the statement is made for
	ByIndex   bool   // whether the database can go by that index
	Text      string // the plan in the database's words, or why there is none
}

// Explain asks the database how it would run the statements whose cost must not grow
// with the table. Nothing is run or changed. On PostgreSQL, which rightly reads a
// small table from end to end, the plan is the one that it would choose for a large
// table; where it then takes another index of a table that is small or was never
// analyzed, an index that is there and valid counts. A plan that the database refuses to make is a Plan; the error is that of a
// database that cannot answer.
func (s *Store) Explain(ctx context.Context) ([]Plan, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	r := store.FetchRequest{Namespace: "explain", Jobs: []string{"explain"}, Limit: 1}
	due, dueArgs := s.forJobs(s.q.due, r, []any{r.Namespace, r.Namespace, r.Namespace, r.Namespace})
	overdue, overdueArgs := s.forJobs(s.q.overdue, r, []any{r.Namespace})
	// One hash alone would be looked for while the plan is made, and not be in it. Of a
	// small table MySQL takes any index, so it is told, and refuses where there is none.
	one, two := store.HashArgs([]byte("1")), store.HashArgs([]byte("2"))
	var plans []Plan
	for _, q := range []struct {
		statement, index, query string
		args                    []any
	}{
		{"claim", s.t.executions + "_run", "SELECT " + selected + " FROM " + s.t.executions + s.t.by("run") + " WHERE ns = ? AND run_hash IN (?, ?)", []any{r.Namespace, one[:], two[:]}},
		{"fetch", s.t.executions + "_due", due, dueArgs},
		{"takeover", s.t.executions + "_lease", overdue, overdueArgs},
		{"switch", s.switchChanges() + "_newest", s.newestSwitch(newestOfFleet), []any{r.Namespace, 1}},
	} {
		p := Plan{Statement: q.statement, Index: q.index}
		err := s.conn.Tx(ctx, func(tx sqldialect.Conn) (err error) {
			if p.Text, err = explain(ctx, tx, q.query, q.args); err == nil {
				p.ByIndex, err = goesBy(ctx, tx, p)
			}
			return err
		})
		switch s.conn.Classify(err) {
		case sqldialect.Unavailable, sqldialect.Busy, sqldialect.Schema:
			return nil, s.fail("explain", err)
		default:
		}
		if err != nil {
			p.Text = err.Error()
		}
		plans = append(plans, p)
	}
	return plans, nil
}

func explain(ctx context.Context, tx sqldialect.Conn, query string, args []any) (string, error) {
	how := "EXPLAIN QUERY PLAN "
	scan := func(from sqldialect.Rows, line *string) error {
		var id, parent, unused int64
		return from.Scan(&id, &parent, &unused, line)
	}
	if tx.Dialect != sqldialect.SQLite() {
		how = "EXPLAIN "
		scan = func(from sqldialect.Rows, line *string) error { return from.Scan(line) }
	}
	switch tx.Dialect {
	case sqldialect.MySQL():
		how = "EXPLAIN FORMAT=JSON "
	case sqldialect.Postgres():
		for _, way := range []string{"seqscan", "bitmapscan", "sort"} {
			if _, err := tx.Exec(ctx, "SET LOCAL enable_"+way+" = off"); err != nil {
				return "", fmt.Errorf("a plan without %s: %w", way, err)
			}
		}
	}
	var lines []string
	err := tx.Query(ctx, how+query, args, func(from sqldialect.Rows) error {
		var line string
		err := scan(from, &line)
		lines = append(lines, line)
		return err
	})
	return strings.Join(lines, "\n"), err
}

// few is the number of rows up to which indexes cost PostgreSQL all the same.
const few = 10_000

// goesBy looks for the index where a plan names what it uses, and not what it could.
func goesBy(ctx context.Context, tx sqldialect.Conn, p Plan) (bool, error) {
	switch tx.Dialect {
	case sqldialect.MySQL():
		return strings.Contains(p.Text, `"key": "`+p.Index+`"`), nil
	case sqldialect.Postgres():
		if strings.Contains(p.Text, " using "+p.Index+" on ") {
			return true, nil
		}
		var n int
		err := tx.QueryRow(ctx, "SELECT count(*) FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid"+
			" WHERE x.relname = ? AND i.indisvalid AND t.reltuples < ? AND pg_table_is_visible(t.oid)", []any{p.Index, few}, &n)
		return n > 0, err
	default:
		return strings.Contains(p.Text, " INDEX "+p.Index+" ("), nil
	}
}
