package gormstore_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"gorm.io/gorm"

	"github.com/solotick/solotick/store"
)

// One tick from claim to the finish in the user's transaction.
func BenchmarkTick(b *testing.B) {
	db := openDB(b, filepath.Join(b.TempDir(), "store.db"))
	s := newStore(b, db)
	ctx := b.Context()
	reg, err := s.Register(ctx, space, []store.JobSpec{{Job: "job", Spec: "x", Hash: "h"}})
	if err != nil {
		b.Fatal(err)
	}
	owner := store.NewOwner()
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		run := store.ClaimRun{NewExecution: store.NewExecution{
			Key:    store.Key{Class: store.ClassBackfill, Job: "job", Tick: reg.Now, Request: strconv.Itoa(n)},
			Active: store.ActiveCron("job", 0), SpecHash: "h",
		}}
		got, err := s.Claim(ctx, store.ClaimRequest{Namespace: space, Owner: owner, Lease: long, Runs: []store.ClaimRun{run}})
		if err != nil || got.Runs[0].Outcome != store.OutcomeStarted {
			b.Fatal(got, err)
		}
		if err := db.Transaction(func(tx *gorm.DB) error { return s.FinishTx(ctx, tx, done(got.Runs[0].Execution)) }); err != nil {
			b.Fatal(err)
		}
	}
}

// Queue jobs in batches, from enqueue to finish.
func BenchmarkQueue(b *testing.B) {
	for _, batch := range []int{1, 100} {
		for _, finished := range []int{0, 20_000} {
			b.Run(fmt.Sprintf("batch=%d/finished=%d", batch, finished), func(b *testing.B) {
				s := newStore(b, openDB(b, filepath.Join(b.TempDir(), "store.db")))
				ctx := b.Context()
				owner := store.NewOwner()
				n := 0
				work := func(batch int) {
					rows := make([]store.NewExecution, batch)
					for i := range rows {
						n++
						rows[i] = queued("mail", strconv.Itoa(n))
					}
					if _, err := s.Enqueue(ctx, space, rows); err != nil {
						b.Fatal(err)
					}
					got, err := s.Fetch(ctx, store.FetchRequest{Namespace: space, Owner: owner, Lease: long, Jobs: []string{"mail"}, Limit: batch})
					if err != nil || len(got.Runs) != batch {
						b.Fatal(len(got.Runs), err)
					}
					ends := make([]store.Finish, batch)
					for i := range ends {
						ends[i] = done(got.Runs[i])
					}
					if _, err := s.Finish(ctx, ends); err != nil {
						b.Fatal(err)
					}
				}
				for n < finished {
					work(500)
				}
				b.ReportAllocs()
				for b.Loop() {
					work(batch)
				}
				b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
			})
		}
	}
}
