package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/idempotent/message"
	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/internal/sqldialect"
)

// row is a message in the table.
type row struct {
	Message
	seq      int64
	lane     string // "" for none
	attempts int    // that were refused
	silence  int    // tries since then that had no answer
	flaw     error  // of a row that Add has not written
}

const columns = "seq, id, topic, key_name, lane, payload, headers, attempts, silence"

func (r *row) scan(from sqldialect.Rows, more ...any) error {
	var lane, headers []byte
	err := from.Scan(append([]any{&r.seq, &r.ID, &r.Topic, &r.Key, &lane, &r.Payload, &headers, &r.attempts, &r.silence}, more...)...)
	if err != nil {
		return err
	}
	r.lane = string(lane)
	r.Headers, r.flaw = message.DecodeHeaders(headers)
	return nil
}

// tally is what became of a pass.
type tally struct{ read, sent, refused, unavailable int }

// pass reads open messages and sends them.
func (t *term) pass(ctx context.Context) (tally, error) {
	rows, err := t.due(ctx)
	p := tally{read: len(rows)}
	if err == nil {
		rows, err = t.refuseFlawed(ctx, rows, &p)
	}
	for err == nil && len(rows) > 0 {
		var leads bool
		if leads, err = t.lead(ctx); err != nil || !leads || ctx.Err() != nil {
			break
		}
		var wave []row
		wave, rows = split(rows)
		var held map[string]bool
		if held, err = t.send(ctx, wave, &p); err != nil {
			break
		}
		rows = slices.DeleteFunc(rows, func(r row) bool { return held[r.lane] })
		if p.sent == 0 && p.unavailable > 0 {
			break
		}
	}
	switch {
	case p.sent > 0 && t.streak > 0:
		t.streak = 0
		t.log.InfoContext(ctx, "outbox: the broker answers again")
	case p.sent == 0 && p.unavailable > 0:
		t.streak++
	}
	return p, err
}

// due are the open messages with the lowest numbers, but those whose time has not
// come and those behind them in their lanes. It locks nothing, so it waits for
// nobody, and what is not committed it does not see.
func (t *term) due(ctx context.Context) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Lease/2)
	defer cancel()
	c, names := t.box.conn, t.box.t
	table := names.messages
	with, now := c.Clock()
	query := with + "SELECT " + columns + " FROM " + table + " o" + names.open + " WHERE o.state = 1 AND o.due_ms <= " + now
	if !mutation.On("outbox-order") {
		query += " AND (o.lane IS NULL OR NOT EXISTS (SELECT 1 FROM " + table + " e" + names.lane +
			" WHERE e.state = 1 AND e.lane = o.lane AND e.seq < o.seq AND e.due_ms > " + now + "))"
	}
	if mutation.On("outbox-watermark") {
		query += " AND o.seq > (SELECT COALESCE(max(seq), 0) FROM " + table + " WHERE state > 1)"
	}
	var rows []row
	read := func(c sqldialect.Conn) error {
		rows = nil
		return c.Query(ctx, query+" ORDER BY o.seq LIMIT ?", []any{t.cfg.Batch}, func(from sqldialect.Rows) error {
			var r row
			err := r.scan(from)
			rows = append(rows, r)
			return err
		})
	}
	if c.Dialect != sqldialect.Postgres() {
		err := read(c)
		return rows, fail(c.Dialect, "read messages", err)
	}
	// After a burst into a table that it knows as empty PostgreSQL would look at every
	// open row and sort: 30 ms for 10,000. It is to walk the index and stop.
	err := c.Tx(ctx, func(tx sqldialect.Conn) error {
		err := tx.Query(ctx, "SELECT set_config(name, 'off', true) FROM (VALUES ('enable_sort'), ('enable_bitmapscan'), ('enable_seqscan')) v (name)",
			nil, func(sqldialect.Rows) error { return nil })
		if err != nil {
			return err
		}
		return read(tx)
	})
	return rows, fail(c.Dialect, "read messages", err)
}

// refuseFlawed keeps a row that cannot be read from holding up the others.
func (t *term) refuseFlawed(ctx context.Context, rows []row, p *tally) ([]row, error) {
	for i := 0; i < len(rows); i++ {
		r := rows[i]
		if r.flaw == nil {
			continue
		}
		parked, err := t.markRefused(ctx, r, r.flaw)
		if err != nil {
			return nil, err
		}
		p.refused++
		rows = slices.DeleteFunc(rows, func(o row) bool {
			return o.seq == r.seq || !parked && r.lane != "" && o.lane == r.lane && o.seq > r.seq
		})
		i--
	}
	return rows, nil
}

// split takes the first message of every lane, and all that have none. So a message is
// given to the publisher when the one before it has been delivered.
func split(rows []row) (wave, rest []row) {
	taken := map[string]bool{}
	for _, r := range rows {
		if r.lane != "" && taken[r.lane] {
			rest = append(rest, r)
			continue
		}
		taken[r.lane] = true
		wave = append(wave, r)
	}
	return wave, rest
}

// send publishes a wave, marks what became of it, and answers the lanes whose message
// stays open. It is not cut short by the end of ctx: an answer that is not waited for is
// a message that is sent twice.
func (t *term) send(ctx context.Context, wave []row, p *tally) (held map[string]bool, err error) {
	ctx = context.WithoutCancel(ctx)
	if mutation.On("outbox-sent-last") {
		if err := t.markSent(ctx, wave); err != nil {
			return nil, err
		}
	}
	msgs := make([]Message, len(wave))
	for i := range wave {
		msgs[i] = wave[i].Message
	}
	errs := t.publish(ctx, msgs)
	var sent, away []row
	var why error
	held = map[string]bool{}
	for i, r := range wave {
		switch {
		case errs[i] == nil:
			sent = append(sent, r)
		case errors.Is(errs[i], ErrUnavailable):
			away, why = append(away, r), errs[i]
			held[r.lane] = r.lane != ""
		}
	}
	p.sent += len(sent)
	p.unavailable += len(away)
	// First what is true whatever follows.
	if err := t.markSent(ctx, sent); err != nil {
		return nil, err
	}
	for i, r := range wave {
		if errs[i] == nil || errors.Is(errs[i], ErrUnavailable) {
			continue
		}
		parked, err := t.markRefused(ctx, r, errs[i])
		if err != nil {
			return nil, err
		}
		held[r.lane] = r.lane != "" && !parked
		p.refused++
	}
	if len(away) == 0 {
		return held, nil
	}
	return held, t.markAway(ctx, away, why)
}

// publish has half a lease, which lead has seen to be left.
func (t *term) publish(ctx context.Context, msgs []Message) []error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Lease/2)
	defer cancel()
	errs := t.pub.Publish(ctx, msgs)
	if len(errs) != len(msgs) {
		wrong := fmt.Errorf("outbox: the publisher answered %d errors for %d messages: one for each, nil if it was delivered", len(errs), len(msgs))
		errs = slices.Repeat([]error{wrong}, len(msgs))
	}
	return errs
}

// markTimeout bounds a mark, which is worth some patience: without it the message is
// sent again.
const markTimeout = 10 * time.Second

func (t *term) mark(ctx context.Context, set string, args []any, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	c := t.box.conn
	for i := range rows {
		args = append(args, rows[i].seq)
	}
	err := c.Retry(ctx, func() error {
		_, err := c.Exec(ctx, "UPDATE "+t.box.t.bySeq+" SET "+set+", version = version + 1 WHERE state = 1 AND seq IN "+c.List(len(rows)), args...)
		return err
	})
	return fail(c.Dialect, "mark messages", err)
}

// markSent needs no fence: whoever says so has the broker's word for it.
func (t *term) markSent(ctx context.Context, rows []row) error {
	return t.mark(ctx, "state = 2, error_text = '', ended_ms = "+t.box.conn.NowMillis, nil, rows)
}

// markAway lets messages wait whose fault it is not.
func (t *term) markAway(ctx context.Context, rows []row, why error) error {
	if time.Since(t.warned) > time.Minute {
		t.warned = time.Now()
		t.log.WarnContext(ctx, "outbox: the broker is not available", "messages", len(rows), "error", why)
	}
	longest := 0
	for _, r := range rows {
		longest = max(longest, r.silence)
	}
	return t.mark(ctx, "silence = silence + 1, error_text = ?, due_ms = "+t.box.conn.NowMillis+" + ?",
		[]any{errorText(why), millis(pauses.Delay(longest))}, rows)
}

func (t *term) markRefused(ctx context.Context, r row, why error) (parked bool, err error) {
	r.attempts++
	if r.attempts >= t.cfg.MaxAttempts {
		t.log.WarnContext(ctx, "outbox: a message is parked: see Outbox.Parked and Retry", "id", r.ID, "topic", r.Topic, "attempts", r.attempts, "error", why)
		return true, t.mark(ctx, "state = 3, attempts = ?, error_text = ?, ended_ms = "+t.box.conn.NowMillis, []any{r.attempts, errorText(why)}, []row{r})
	}
	delay := backoff.Policy{Base: t.cfg.RetryBase, Max: t.cfg.RetryMax}.Delay(r.attempts - 1)
	return false, t.mark(ctx, "attempts = ?, silence = 0, error_text = ?, due_ms = "+t.box.conn.NowMillis+" + ?",
		[]any{r.attempts, errorText(why), millis(delay)}, []row{r})
}

// millis are at least 1, so that what waits is not due in the same millisecond.
func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

// errorText is what every database takes: UTF-8 without NUL, at most 1 KiB.
func errorText(err error) string {
	text := strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")
	return strings.ToValidUTF8(text[:min(len(text), 1<<10)], "")
}
