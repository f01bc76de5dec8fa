package etcdleader_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/etcdleader"
	"github.com/solotick/solotick/leader/leadertest"
	"github.com/solotick/solotick/locks/etcdlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

// Two electors over one driver, and so on one session, are two candidates; who leads is
// pushed to one that only looks. Package leadertest has the rest.
func TestElection(t *testing.T) {
	space := testenv.SharedEtcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{space.Addr}, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	d, err := etcdlock.NewDriver(client, etcdlock.WithPrefix(space.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	leadertest.RunShared(t, func(cfg leader.Config) (*leader.Elector, error) {
		return etcdleader.New(d, "leader:shop", cfg)
	})
	if _, err := etcdleader.New(nil, "leader:shop", leader.Config{}); err == nil {
		t.Error("New took a nil driver")
	}
}
