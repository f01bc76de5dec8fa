//go:build linux

package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const zookeeperJars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"

func zookeeperRecipe(settings ...string) recipe {
	return recipe{
		name: "zookeeper", program: []string{"java"}, ports: 3, // clients, members, elections
		prepare: func(s *Server) ([]string, error) { return zookeeperArgs(s, []*Server{s}, settings) },
		ready:   zookeeperReady,
	}
}

// zookeeperArgs writes the configuration of one of the members.
func zookeeperArgs(s *Server, members []*Server, settings []string) ([]string, error) {
	for jar := range strings.SplitSeq(zookeeperJars, ":") {
		if _, err := os.Stat(jar); err != nil {
			return nil, fmt.Errorf("%s is %w", jar, errMissing)
		}
	}
	data := s.folder.join("data")
	lines := []string{
		"dataDir=" + data,
		fmt.Sprintf("clientPort=%d", s.ports[0]), "clientPortAddress=127.0.0.1",
		"tickTime=500", "maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=*",
	}
	if len(members) > 1 {
		lines = append(lines, "initLimit=20", "syncLimit=4") // ticks
		for i, m := range members {
			lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, m.ports[1], m.ports[2]))
		}
		if err := os.MkdirAll(data, 0o700); err != nil {
			return nil, err
		}
		id := strconv.Itoa(slices.Index(members, s) + 1)
		if err := os.WriteFile(filepath.Join(data, "myid"), []byte(id), 0o600); err != nil {
			return nil, err
		}
	}
	path := s.folder.join("zoo.cfg")
	if err := os.WriteFile(path, []byte(strings.Join(append(lines, settings...), "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	return []string{
		// Start fast and stay small.
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
		"-cp", zookeeperJars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", path,
	}, nil
}

// zookeeperReady demands that requests are served: the answer to "ruok" would say
// only that there is a process.
func zookeeperReady(ctx context.Context, s *Server) error {
	answer, err := zookeeperAsk(ctx, s, "srvr")
	if !strings.Contains(answer, "Mode: ") {
		return errors.Join(err, fmt.Errorf("srvr: %q", answer))
	}
	return nil
}

// zookeeperAsk sends one of the words that ZooKeeper answers.
func zookeeperAsk(ctx context.Context, s *Server, word string) (string, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}

// ZooKeeper starts one ZooKeeper with ticks of 500 ms, so that sessions last from
// one second to ten. The settings are further lines of its configuration, such as
// "tickTime=1000"; they win.
func ZooKeeper(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	return create(tb, zookeeperRecipe(settings...))
}

// ZooKeeperEnsemble starts an ensemble of so many members, set as [ZooKeeper] says,
// and waits until each serves requests.
func ZooKeeperEnsemble(tb testing.TB, members int, settings ...string) []*Server {
	tb.Helper()
	servers := createAll(tb, members, zookeeperRecipe())
	for _, s := range servers {
		s.recipe.prepare = func(s *Server) ([]string, error) { return zookeeperArgs(s, servers, settings) }
	}
	open(tb, servers...)
	return servers
}

// Leads reports whether a member of a ZooKeeper ensemble is its leader.
func Leads(ctx context.Context, s *Server) bool {
	answer, err := zookeeperAsk(ctx, s, "srvr")
	return err == nil && strings.Contains(answer, "Mode: leader")
}
