package sqllock_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/sqllock"
)

// BenchmarkHandOver sets the hand-over of a lease with NOTIFY, from the call of
// Release to the next holder, beside that of a bare advisory lock, and beside the
// least that a row with NOTIFY can take: an UPDATE that notifies, and one by the
// notified. It takes turns, and reports the medians, in µs, and the medians of the
// ratios of each round.
func BenchmarkHandOver(b *testing.B) {
	p := places[0].shared(b)
	lease, advisory, row := newLeasePair(b, p), newAdvisoryPair(b, p), newRowPair(b, p)
	const each = 10
	var leases, advisories, rows, toAdvisory, toRow []float64
	for b.Loop() {
		l, a, r := handOvers(each, lease.next), handOvers(each, advisory.next), handOvers(each, row.next)
		leases, advisories, rows = append(leases, l), append(advisories, a), append(rows, r)
		toAdvisory, toRow = append(toAdvisory, l/a), append(toRow, l/r)
	}
	b.ReportMetric(median(leases), "lease-µs")
	b.ReportMetric(median(advisories), "advisory-µs")
	b.ReportMetric(median(rows), "bare-row-µs")
	b.ReportMetric(median(toAdvisory), "x-advisory")
	b.ReportMetric(median(toRow), "x-bare-row")
}

func handOvers(n int, next func() time.Duration) float64 {
	took := make([]float64, n)
	for i := range took {
		took[i] = float64(next()) / float64(time.Microsecond)
	}
	return median(took)
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// leasePair are two processes that hand a key to and fro.
type leasePair struct {
	b   *testing.B
	ls  [2]*locks.Locker
	now *locks.Lease
	at  int
}

func newLeasePair(b *testing.B, p *place) *leasePair {
	b.Helper()
	r := &leasePair{b: b}
	for i := range r.ls {
		l, err := locks.New(p.driver(b, p.addr, sqllock.ModeLease), locks.Config{TTL: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := l.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		r.ls[i] = l
	}
	var err error
	if r.now, err = r.ls[0].TryAcquire(context.Background(), "hand-over"); err != nil {
		b.Fatal(err)
	}
	return r
}

func (r *leasePair) next() time.Duration {
	r.at = 1 - r.at
	come := make(chan *locks.Lease)
	var got time.Time
	go func() {
		lease, err := r.ls[r.at].Acquire(context.Background(), "hand-over")
		got = time.Now()
		if err != nil {
			r.b.Error(err)
		}
		come <- lease
	}()
	for {
		h, err := r.ls[1-r.at].Inspect(context.Background(), "hand-over")
		if err != nil {
			r.b.Fatal(err)
		}
		if h.Waiters > 0 {
			break
		}
		time.Sleep(100 * time.Microsecond) // real time: between two measurements
	}
	start := time.Now()
	if err := r.now.Release(context.Background()); err != nil {
		r.b.Fatal(err)
	}
	if r.now = <-come; r.now == nil {
		r.b.FailNow()
	}
	return got.Sub(start)
}

// advisoryPair are two connections that hand an advisory lock to and fro.
type advisoryPair struct {
	b     *testing.B
	conns [2]*sql.Conn
	at    int
}

func newAdvisoryPair(b *testing.B, p *place) *advisoryPair {
	b.Helper()
	r := &advisoryPair{b: b}
	pool, err := p.user(b, 4).DB()
	if err != nil {
		b.Fatal(err)
	}
	for i := range r.conns {
		if r.conns[i], err = pool.Conn(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = r.conns[i].Close() })
	}
	r.run(0, "SELECT pg_advisory_lock(1)")
	return r
}

func (r *advisoryPair) run(i int, query string) {
	if _, err := r.conns[i].ExecContext(context.Background(), query); err != nil {
		r.b.Error(err)
	}
}

func (r *advisoryPair) next() time.Duration {
	from := r.at
	r.at = 1 - r.at
	come := make(chan time.Time)
	go func() {
		r.run(r.at, "SELECT pg_advisory_lock(1)")
		come <- time.Now()
	}()
	time.Sleep(2 * time.Millisecond) // real time: it waits at the server
	start := time.Now()
	r.run(from, "SELECT pg_advisory_unlock(1)")
	return (<-come).Sub(start)
}

// rowPair are two connections that hand a row to and fro, and the one that listens.
type rowPair struct {
	b      *testing.B
	conns  [2]*pgx.Conn
	listen *pgx.Conn
	at     int
}

func newRowPair(b *testing.B, p *place) *rowPair {
	b.Helper()
	r := &rowPair{b: b}
	for _, c := range []**pgx.Conn{&r.conns[0], &r.conns[1], &r.listen} {
		var err error
		if *c, err = pgx.Connect(context.Background(), p.userDSN(p.addr)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = (*c).Close(context.Background()) })
	}
	d := newDriver(b, p.admin)
	if _, err := d.Acquire(context.Background(), request("bare")); err != nil { // makes the row
		b.Fatal(err)
	}
	r.run(r.listen, "LISTEN bare")
	return r
}

func (r *rowPair) run(c *pgx.Conn, query string) {
	if _, err := c.Exec(context.Background(), query); err != nil {
		r.b.Error(err)
	}
}

func (r *rowPair) next() time.Duration {
	from, to := r.conns[r.at], r.conns[1-r.at]
	r.at = 1 - r.at
	come := make(chan time.Time)
	go func() {
		if _, err := r.listen.WaitForNotification(context.Background()); err != nil {
			r.b.Error(err)
		}
		r.run(to, "UPDATE solotick_locks SET fence = fence + 1, until_us = 1 WHERE name = 'bare' AND until_us = 0")
		come <- time.Now()
	}()
	time.Sleep(2 * time.Millisecond) // real time: it waits for the notification
	start := time.Now()
	r.run(from, "WITH freed AS (UPDATE solotick_locks SET until_us = 0 WHERE name = 'bare' RETURNING name) SELECT pg_notify('bare', name) FROM freed")
	return (<-come).Sub(start)
}
