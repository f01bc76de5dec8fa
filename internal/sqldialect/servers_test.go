package sqldialect_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/solotick/solotick/internal/sqldialect"
)

type state string

func (s state) Error() string {
	return `ERROR: duplicate key value violates unique constraint "a_b" (SQLSTATE ` + string(s) + ")"
}
func (s state) SQLState() string { return string(s) }

type early struct{ error }

func (early) SafeToRetry() bool { return true }

func TestServerClasses(t *testing.T) {
	my := func(n int) error { return fmt.Errorf("%w", fmt.Errorf("Error %d (HY000): text", n)) }
	pg := func(s string) error { return state(s) }
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		d          *sqldialect.Dialect
		err        error
		want       sqldialect.Class
		notApplied bool
	}{
		{sqldialect.Postgres(), pg("40001"), sqldialect.Busy, true},
		{sqldialect.Postgres(), pg("40P01"), sqldialect.Busy, true},
		{sqldialect.Postgres(), pg("55P03"), sqldialect.Busy, true},
		{sqldialect.Postgres(), pg("23505"), sqldialect.Unique, true},
		{sqldialect.Postgres(), pg("25006"), sqldialect.ReadOnly, true},
		{sqldialect.Postgres(), pg("53100"), sqldialect.Full, true},
		{sqldialect.Postgres(), pg("42P01"), sqldialect.Schema, true},
		{sqldialect.Postgres(), pg("57P01"), sqldialect.Unavailable, false},
		{sqldialect.Postgres(), pg("57P03"), sqldialect.Unavailable, true},
		{sqldialect.Postgres(), pg("08006"), sqldialect.Unavailable, false},
		{sqldialect.Postgres(), pg("42501"), sqldialect.Other, true},
		{sqldialect.Postgres(), refused, sqldialect.Unavailable, true},
		{sqldialect.Postgres(), errors.New("x"), sqldialect.Other, false},
		{sqldialect.Postgres(), early{errors.New("conn closed")}, sqldialect.Unavailable, true},
		{sqldialect.MySQL(), my(1213), sqldialect.Busy, true},
		{sqldialect.MySQL(), my(1205), sqldialect.Busy, true},
		{sqldialect.MySQL(), my(1020), sqldialect.Busy, true},
		{sqldialect.MySQL(), my(1969), sqldialect.Busy, true},
		{sqldialect.MySQL(), my(1062), sqldialect.Unique, true},
		{sqldialect.MySQL(), my(1290), sqldialect.ReadOnly, true},
		{sqldialect.MySQL(), my(1836), sqldialect.ReadOnly, true},
		{sqldialect.MySQL(), my(1146), sqldialect.Schema, true},
		{sqldialect.MySQL(), my(1040), sqldialect.Unavailable, true},
		{sqldialect.MySQL(), my(2013), sqldialect.Unavailable, false},
		{sqldialect.MySQL(), my(1142), sqldialect.Other, true},
		{sqldialect.MySQL(), errors.New("invalid connection"), sqldialect.Unavailable, false},
		{sqldialect.MySQL(), errors.New("said: Error 1213 (40001): x"), sqldialect.Other, false},
		{sqldialect.MySQL(), refused, sqldialect.Unavailable, true},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			if got := c.d.Classify(err); got != c.want {
				t.Errorf("%s: Classify(%v) = %v, want %v", c.d.Name, err, got, c.want)
			}
			if got := c.d.NotApplied(err); got != c.notApplied {
				t.Errorf("%s: NotApplied(%v) = %v", c.d.Name, err, got)
			}
		}
	}
	for _, c := range []struct {
		d    *sqldialect.Dialect
		err  error
		want bool
	}{
		{sqldialect.Postgres(), pg("25P03"), true},
		{sqldialect.Postgres(), fmt.Errorf("commit: %w", pg("57P05")), true},
		{sqldialect.Postgres(), pg("57P01"), false}, // may end a statement that runs
		{sqldialect.Postgres(), nil, false},
		{sqldialect.MySQL(), my(4031), true},
		{sqldialect.MySQL(), my(2013), false},
		{sqldialect.SQLite(), errors.New("x"), false},
	} {
		if got := c.d.Ended(c.err); got != c.want {
			t.Errorf("%s: Ended(%v) = %v", c.d.Name, c.err, got)
		}
	}
	if got := sqldialect.Postgres().UniqueColumns(pg("23505")); !slices.Equal(got, []string{"a_b"}) {
		t.Error(got)
	}
	dup := errors.New("Error 1062 (23000): Duplicate entry 'for key 'x'' for key 'a_b'")
	if got := sqldialect.MySQL().UniqueColumns(dup); !slices.Equal(got, []string{"a_b"}) {
		t.Error(got)
	}
}

func TestBind(t *testing.T) {
	const query = "a = ? AND b IN (?, ?)"
	pg := sqldialect.Postgres()
	if got := pg.Bind(query); got != "a = $1 AND b IN ($2, $3)" || pg.Bind(got) != got {
		t.Error(got)
	}
	if got := sqldialect.MySQL().Bind(query); got != query {
		t.Error(got)
	}
}
