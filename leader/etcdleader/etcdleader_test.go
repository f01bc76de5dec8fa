package etcdleader_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/solotick/solotick/internal/testenv"
	"github.com/solotick/solotick/leader"
	"github.com/solotick/solotick/leader/etcdleader"
	"github.com/solotick/solotick/locks/etcdlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Main(m)) }

// Two electors over one driver, and so on one session, are two candidates; who leads is
// pushed to one that only looks. leader/leadertest has the rest.
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
	elector := func(label string) *leader.Elector {
		e, err := etcdleader.New(d, "leader:shop", leader.Config{Label: label, ObserveInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := func(e *leader.Elector) (stop func()) {
		running, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- e.Run(running) }()
		return func() {
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	one, two := elector("one"), elector("two")
	stopOne := stop(one)
	var seen []string
	var stopTwo func()
	for l, err := range elector("").Observe(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Term == 0 {
			continue
		}
		if seen = append(seen, l.Label); len(seen) == 2 {
			break
		}
		stopTwo = stop(two)
		stopOne()
	}
	stopTwo()
	if len(seen) != 2 || seen[0] != "one" || seen[1] != "two" {
		t.Errorf("the leaders were %v, want one and then two", seen)
	}
	if _, err := etcdleader.New(nil, "leader:shop", leader.Config{}); err == nil {
		t.Error("New took a nil driver")
	}
}
