//go:build linux

package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

const zookeeperJars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"

func zookeeperRecipe(settings ...string) recipe {
	return recipe{
		name: "zookeeper", program: []string{"java"}, ports: 1,
		prepare: func(s *Server) ([]string, error) {
			for jar := range strings.SplitSeq(zookeeperJars, ":") {
				if _, err := os.Stat(jar); err != nil {
					return nil, fmt.Errorf("%s is %w", jar, errMissing)
				}
			}
			lines := append([]string{
				"dataDir=" + s.folder.join("data"),
				fmt.Sprintf("clientPort=%d", s.ports[0]), "clientPortAddress=127.0.0.1",
				"tickTime=500", "maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=*",
			}, settings...)
			path := s.folder.join("zoo.cfg")
			if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				return nil, err
			}
			return []string{
				// Start fast and stay small.
				"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m",
				"-cp", zookeeperJars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", path,
			}, nil
		},
		ready: zookeeperReady,
	}
}

// zookeeperReady demands that requests are served: the answer to "ruok" would say
// only that there is a process.
func zookeeperReady(ctx context.Context, s *Server) error {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(c, "srvr"); err != nil {
		return err
	}
	answer, err := io.ReadAll(c)
	if !strings.Contains(string(answer), "Mode: ") {
		return errors.Join(err, fmt.Errorf("srvr: %q", answer))
	}
	return nil
}

// ZooKeeper starts one ZooKeeper with ticks of 500 ms, so that sessions last from
// one second to ten. The settings are further lines of its configuration, such as
// "tickTime=1000"; they win.
func ZooKeeper(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	return create(tb, zookeeperRecipe(settings...))
}
