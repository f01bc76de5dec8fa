package zkleader_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/leader/zkleader"
	"github.com/solotick/solotick/locks/zklock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

// Two electors over one driver, and so in one session, are two candidates; who leads is
// pushed to one that only looks. Package leadertest has the rest.
func TestElection(t *testing.T) {
	space := testenv.SharedZooKeeper(t)
	d, err := zklock.NewDriver(t.Context(), []string{space.Addr}, zklock.WithPrefix("/"+space.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	leadertest.RunShared(t, func(cfg leader.Config) (*leader.Elector, error) {
		return zkleader.New(d, "leader:shop", cfg)
	})
	if _, err := zkleader.New(nil, "leader:shop", leader.Config{}); err == nil {
		t.Error("New took a nil driver")
	}
}
