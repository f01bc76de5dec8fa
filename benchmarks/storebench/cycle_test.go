package main

import (
	"testing"

	"github.com/solotick/solotick/store"
)

// BenchmarkCycle is scenario cycle with one caller on SQLite, for a profile of each
// side:
//
//	go test ./benchmarks/storebench -run=- -bench=Cycle/solotick -cpuprofile=cpu.out
func BenchmarkCycle(b *testing.B) {
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			s, err := c.open(b.Context(), start(b, sqlite).place(), 1)
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					b.Error(err)
				}
			}()
			b.ReportAllocs()
			tick := store.Millis(0)
			for b.Loop() {
				if err := s.cycle(b.Context(), "job-0", tick); err != nil {
					b.Fatal(err)
				}
				tick++
			}
		})
	}
}
