package lockfaults

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/internal/testenv"
)

// A Redis master is killed, once with a replica that knows all grants, and once with
// one that misses the latest: that grant is lost, its holder is told when it renews at
// the new master, and fences rise all the same.
func TestRedisFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	for _, behind := range []bool{false, true} {
		t.Run(map[bool]string{false: "replicated", true: "behind"}[behind], func(t *testing.T) {
			t.Parallel()
			set := testenv.StartRedisSentinel(t)
			s := site{
				driver: "redis", ttl: time.Minute, // longer than the failover takes
				part: func([]string) string {
					a := set.Addrs()
					return fmt.Sprintf("{addrs: [%q, %q, %q], sentinel_master: %s}", a[0], a[1], a[2], set.Name)
				},
			}
			c := newCrew(t, s)
			ms := c.crewOf("h", "w")
			holder, waiter, key := ms[0], ms[1], c.key("failover")
			if behind {
				set.Replica.Pause()
				// What comes now is not even on its way.
				if err := redisClient(t, set.Master.Addr()).ClientKillByFilter(within(t), "TYPE", "replica").Err(); err != nil {
					t.Fatal(err)
				}
			}
			granted := holder.hold(key)
			waiter.acquire(key)
			c.awaitWaiter(waiter, key)
			since := now()
			c.takes(key, func() {
				set.Master.Kill()
				if behind {
					set.Replica.Resume()
				}
				holder.do(command{Do: "settle", Key: key})
				if e := c.awaitSince(holder, "settled", key, since); e.OK {
					holder.giveBack(key)
				}
			})
			next := c.await(waiter, "granted", key)
			if next.Fence <= granted.Fence {
				t.Errorf("fence went from %d to %d", granted.Fence, next.Fence)
			}
			c.await(waiter, "wrote", key)
			c.refused(holder, key)
			waiter.giveBack(key)
			c.judge()
			c.mu.Lock()
			defer c.mu.Unlock()
			list, _ := c.record.tenures()
			switch told := list[0].told; {
			case (told != 0) != behind:
				t.Errorf("the replica was behind: %v; the grant: %s", behind, list[0])
			case behind:
				t.Logf("FIGURES | told %v after the kill, overlap %v", time.Duration(told-since), time.Duration(max(0, told-next.At)))
			}
		})
	}
}

// The leader of an etcd cluster is killed: leases go on at the next one.
func TestEtcdFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while")
	}
	t.Parallel()
	members := testenv.Etcd(t, 3)
	s := site{
		driver: "etcd", ttl: 4 * time.Second,
		part: func(a []string) string { return fmt.Sprintf("{endpoints: [%q, %q, %q]}", a[0], a[1], a[2]) },
	}.servers(1, members...)
	s.restart = func() { leader(t, members).Kill() }
	c := newCrew(t, s)
	ms := c.crewOf("h", "w")
	c.restarted(ms[0], ms[1])
	c.judge()
}

func leader(t *testing.T, members []*testenv.Server) *testenv.Server {
	t.Helper()
	// While they elect one, none leads.
	for i, end := 0, time.Now().Add(patience); time.Now().Before(end); i++ {
		m := members[i%len(members)]
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{m.Addr()}, DialTimeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		status, err := client.Status(within(t), m.Addr())
		if closed := client.Close(); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
		if status.Header.MemberId == status.Leader {
			return m
		}
	}
	t.Fatal("no member leads")
	return nil
}
