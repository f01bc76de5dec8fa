package gormstore

import (
	"context"
	"errors"
	"time"

	"github.com/solotick/solotick/internal/sqldialect"
	"github.com/solotick/solotick/store"
)

var _ store.Switchboard = (*Store)(nil)

func (s *Store) switchChanges() string { return s.prefix + "switch_changes" }

// switchColumns are read as they stand, or as nothing from the row that tells the clock
// of an empty table.
const switchColumns = "COALESCE(c.id, 0), COALESCE(c.at_ms, 0), COALESCE(c.fleet, 0), COALESCE(c.process, ''), COALESCE(c.source, '')," +
	" COALESCE(c.by_whom, ''), COALESCE(c.reason, ''), COALESCE(c.was, ''), COALESCE(c.became, ''), COALESCE(c.until_ms, 0), c.token"

const newestOfFleet = "ns = ? AND fleet = 1"

// ThrowSwitch implements [store.Switchboard], by two statements in a transaction.
func (s *Store) ThrowSwitch(ctx context.Context, ns string, c store.SwitchChange) (store.SwitchChange, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	if ns == "" {
		return store.SwitchChange{}, s.fail("throw the switch", errors.New("no namespace: name it"))
	}
	if c.Token == (store.ID{}) {
		c.Token = store.NewID(store.MillisOf(time.Now()))
	}
	fleet := 0
	if c.Fleet {
		fleet = 1
	}
	var out store.SwitchChange
	read := func(conn sqldialect.Conn) error {
		var now store.Millis
		changes, err := s.readSwitch(ctx, conn, "token = ?", 1, &now, c.Token[:])
		if err == nil && len(changes) == 0 {
			err = errors.New("the change is not in the table after it was added")
		}
		if err == nil {
			out = changes[0]
		}
		return err
	}
	err := s.conn.Tx(ctx, func(tx sqldialect.Conn) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+s.switchChanges()+" (token, ns, fleet, at_ms, process, source, by_whom, reason, was, became, until_ms)"+
			" VALUES (?, ?, ?, "+tx.NowMillis+", ?, ?, ?, ?, ?, ?, ?)",
			c.Token[:], ns, fleet, c.Process, c.Source, c.By, c.Reason, c.From, c.To, c.Until)
		if err != nil {
			return err
		}
		return read(tx)
	})
	// An INSERT that passes over such a row would want the right to update it.
	if s.conn.Classify(err) == sqldialect.Unique {
		err = read(s.conn)
	}
	return out, s.fail("throw the switch", err)
}

// SwitchChanges implements [store.Switchboard], by one statement along an index.
func (s *Store) SwitchChanges(ctx context.Context, ns string, fleet bool, limit int) ([]store.SwitchChange, store.Millis, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	which := "ns = ?"
	if fleet {
		which = newestOfFleet
	}
	var now store.Millis
	changes, err := s.readSwitch(ctx, s.conn, which, max(limit, 1), &now, ns)
	return changes, now, s.fail("read changes of the switch", err)
}

// newestSwitch is the statement that reads changes, the newest first, with the clock.
func (s *Store) newestSwitch(which string) string {
	index := ""
	if s.t.hints && which == newestOfFleet {
		index = " FORCE INDEX (" + s.switchChanges() + "_newest)"
	}
	return "SELECT " + s.conn.NowMillis + ", " + switchColumns + " FROM (SELECT 1 AS one) o LEFT JOIN (SELECT * FROM " + s.switchChanges() + index +
		" WHERE " + which + " ORDER BY id DESC LIMIT ?) c ON 1 = 1 ORDER BY c.id DESC"
}

func (s *Store) readSwitch(ctx context.Context, conn sqldialect.Conn, which string, limit int, now *store.Millis, arg any) ([]store.SwitchChange, error) {
	var out []store.SwitchChange
	err := conn.Query(ctx, s.newestSwitch(which), []any{arg, limit}, func(from sqldialect.Rows) error {
		var c store.SwitchChange
		var fleet int
		var token []byte
		if err := from.Scan(now, &c.ID, &c.At, &fleet, &c.Process, &c.Source, &c.By, &c.Reason, &c.From, &c.To, &c.Until, &token); err != nil {
			return err
		}
		if c.Fleet = fleet == 1; c.ID != 0 {
			copy(c.Token[:], token)
			out = append(out, c)
		}
		return nil
	})
	return out, err
}
