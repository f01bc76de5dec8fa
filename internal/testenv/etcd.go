//go:build linux

package testenv

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// etcdVersion is the one that etcd/go.mod pins and deps.sh builds.
const etcdVersion = "v3.7.3"

func etcdBinary() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // where nobody has built it
	}
	return filepath.Join(cache, "solotick", "etcd-"+etcdVersion)
}

func etcdRecipe(args ...string) recipe {
	return recipe{
		name: "etcd", program: []string{etcdBinary()}, ports: 3, // clients, members, health
		prepare: func(s *Server) ([]string, error) { return etcdArgs(s, []*Server{s}, args), nil },
		ready:   etcdReady,
	}
}

func etcdName(s *Server) string { return fmt.Sprintf("m%d", s.ports[0]) }

func etcdPeer(s *Server) string { return "http://" + address(s.ports[1]) }

func etcdArgs(s *Server, members []*Server, more []string) []string {
	scheme := "http"
	if slices.ContainsFunc(more, func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "cert-file") }) {
		scheme = "https"
	}
	var cluster []string
	for _, m := range members {
		cluster = append(cluster, etcdName(m)+"="+etcdPeer(m))
	}
	return append([]string{
		"--name", etcdName(s), "--data-dir", s.folder.join("data"),
		"--listen-client-urls", scheme + "://" + s.Addr(), "--advertise-client-urls", scheme + "://" + s.Addr(),
		"--listen-peer-urls", etcdPeer(s), "--initial-advertise-peer-urls", etcdPeer(s),
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-token", etcdName(members[0]),
		"--listen-metrics-urls", "http://" + address(s.ports[2]), "--log-level", "warn",
	}, more...)
}

// etcdReady asks at an address of its own, which needs no certificate: the member
// is healthy when it knows a leader and can have a read agreed on.
func etcdReady(ctx context.Context, s *Server) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(s.ports[2])+"/health", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("health: %s", response.Status)
	}
	return nil
}

// Etcd starts an etcd cluster of so many members and waits until each is healthy.
// The arguments are further ones of every member; with --cert-file it speaks TLS
// to its clients.
func Etcd(tb testing.TB, members int, args ...string) []*Server {
	tb.Helper()
	servers := createAll(tb, members, etcdRecipe())
	for _, s := range servers {
		s.recipe.prepare = func(s *Server) ([]string, error) { return etcdArgs(s, servers, args), nil }
	}
	open(tb, servers...)
	return servers
}
