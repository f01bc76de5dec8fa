//go:build linux

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// redisRecipe is one Redis that keeps nothing on disk. Arguments given last win.
func redisRecipe(args ...string) recipe {
	return recipe{
		name: "redis", program: []string{"redis-server"}, ports: 1,
		prepare: func(s *Server) ([]string, error) { return redisArgs(s, args...), nil },
		ready:   redisReady,
	}
}

func redisArgs(s *Server, more ...string) []string {
	return append([]string{
		"--port", strconv.Itoa(s.ports[0]), "--bind", "127.0.0.1", "--dir", s.folder.path,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
		"--databases", strconv.Itoa(redisSpaces), "--enable-debug-command", "local",
	}, more...)
}

// redisReady takes any answer, also that a password is needed, but that the data
// is still being loaded.
func redisReady(ctx context.Context, s *Server) error {
	_, err := redisDo(ctx, s.Addr(), "PING")
	if answered := redisError(""); errors.As(err, &answered) && !strings.HasPrefix(string(answered), "LOADING") {
		return nil
	}
	return err
}

// Redis starts a Redis without persistence: a restarted one is empty. The
// arguments are further ones of redis-server, such as "--appendonly", "yes". The
// DEBUG command is allowed.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return create(tb, redisRecipe(args...))
}

// RedisTLS is Redis that listens for TLS too, at the address returned. The files, in
// PEM, are its certificate and key, and the authority of the clients whose
// certificates it takes: it demands one.
func RedisTLS(tb testing.TB, cert, key, ca string) (s *Server, addr string) {
	tb.Helper()
	r := redisRecipe()
	r.ports = 2 // in plain text, for the look whether it answers; and TLS
	r.prepare = func(s *Server) ([]string, error) {
		return redisArgs(s, "--tls-port", strconv.Itoa(s.ports[1]),
			"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca), nil
	}
	s = create(tb, r)
	return s, address(s.ports[1])
}

// Redises starts n Redis servers that know nothing of each other.
func Redises(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	servers := createAll(tb, n, redisRecipe(args...))
	open(tb, servers...)
	return servers
}

// RedisSentinel is a master with a replica and three Sentinels that agree by two.
// After a failover the roles of Master and Replica are exchanged; the fields are not.
type RedisSentinel struct {
	Name      string // of the master, as clients ask for it
	Master    *Server
	Replica   *Server
	Sentinels []*Server
}

// Addrs returns the addresses of the Sentinels.
func (r *RedisSentinel) Addrs() []string { return addrs(r.Sentinels) }

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}

// StartRedisSentinel starts the set and waits until every Sentinel knows the
// replica and the others. A master counts as down after 500 ms. The arguments go
// to master and replica.
func StartRedisSentinel(tb testing.TB, args ...string) *RedisSentinel {
	tb.Helper()
	const name = "solotick"
	args = slices.Concat([]string{"--repl-diskless-sync-delay", "0"}, args) // it would be 5 s
	data := createAll(tb, 2, redisRecipe(args...))
	open(tb, data[0])
	replicaOf := func(s *Server) ([]string, error) {
		return redisArgs(s, slices.Concat(args, []string{
			"--replicaof", fmt.Sprintf("127.0.0.1 %d", data[0].ports[0]),
		})...), nil
	}
	data[1].recipe.prepare = replicaOf
	open(tb, data[1])
	await(tb, data[1], "replicate", func(ctx context.Context) error {
		return expectRedis(ctx, data[1], "master_link_status:up", "INFO replication")
	})

	sentinels := createAll(tb, 3, recipe{
		name: "redis-sentinel", program: []string{"redis-server"}, ports: 1, ready: redisReady,
		prepare: func(s *Server) ([]string, error) {
			// A Sentinel writes what it learns into its file.
			config := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
sentinel monitor %s 127.0.0.1 %d 2
sentinel down-after-milliseconds %s 500
sentinel failover-timeout %s 3000
`, s.ports[0], s.folder.path, name, data[0].ports[0], name, name)
			path := s.folder.join("sentinel.conf")
			return []string{path, "--sentinel"}, os.WriteFile(path, []byte(config), 0o600)
		},
	})
	open(tb, sentinels...)
	for _, s := range sentinels {
		await(tb, s, "know the others", func(ctx context.Context) error {
			return expectRedis(ctx, s, "status=ok,address="+data[0].Addr()+",slaves=1,sentinels=3",
				"SENTINEL DEBUG info-period 500 publish-period 200 ask-period 500", "INFO sentinel")
		})
	}
	return &RedisSentinel{Name: name, Master: data[0], Replica: data[1], Sentinels: sentinels}
}

// RedisCluster starts a cluster of three masters that share the slots evenly. A
// node counts as down after a second; the slots of one that is down are not served.
func RedisCluster(tb testing.TB, args ...string) []*Server {
	tb.Helper()
	const slots = 16384
	r := redisRecipe()
	r.ports = 2 // clients, and the other nodes
	r.prepare = func(s *Server) ([]string, error) {
		return redisArgs(s, append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000",
			"--cluster-port", strconv.Itoa(s.ports[1]),
			"--databases", "1",
		}, args...)...), nil
	}
	nodes := createAll(tb, 3, r)
	open(tb, nodes...)
	for i, s := range nodes {
		await(tb, s, "join", func(ctx context.Context) error {
			commands := []string{
				fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", slots*i/len(nodes), slots*(i+1)/len(nodes)-1),
				fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1),
			}
			for _, other := range nodes[:i] {
				commands = append(commands, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d %d", other.ports[0], other.ports[1]))
			}
			_, err := redisDo(ctx, s.Addr(), commands...)
			return err
		})
	}
	for _, s := range nodes {
		await(tb, s, "see the whole cluster", func(ctx context.Context) error {
			return errors.Join(
				expectRedis(ctx, s, "cluster_state:ok", "CLUSTER INFO"),
				expectRedis(ctx, s, "cluster_known_nodes:3", "CLUSTER INFO"))
		})
	}
	return nodes
}

// await waits until the server has done something after its start.
func await(tb testing.TB, s *Server, what string, done func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	err := s.current().poll(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pingLimit)
		defer cancel()
		return done(ctx)
	})
	if err != nil {
		tb.Fatalf("testenv: %s at %s does not %s: %v", s.recipe.name, s.Addr(), what, err)
	}
}

// expectRedis demands that the last command's answer contains the text.
func expectRedis(ctx context.Context, s *Server, want string, commands ...string) error {
	answer, err := redisDo(ctx, s.Addr(), commands...)
	if err != nil {
		return err
	}
	if text, ok := answer.(string); !ok || !strings.Contains(text, want) {
		return fmt.Errorf("%s: no %q in %q", commands[len(commands)-1], want, answer)
	}
	return nil
}
