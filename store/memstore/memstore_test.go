package memstore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/store"
	"github.com/solotick/solotick/store/memstore"
	"github.com/solotick/solotick/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness {
		var ahead atomic.Int64
		s := memstore.New(memstore.WithClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }))
		return storetest.Harness{
			Open:    func(testing.TB) store.Store { return s },
			Advance: func(d time.Duration) { ahead.Add(int64(d)) },
		}
	})
}
