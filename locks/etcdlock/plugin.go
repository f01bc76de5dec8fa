package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// PluginConfig is the plugin's part of a configuration file.
type PluginConfig struct {
	// Endpoints are the members of the cluster, each host:port or a URL. Required.
	Endpoints []string `yaml:"endpoints"`
	// Username and Password log in to etcd. Default none.
	Username string       `yaml:"username"`
	Password secret.Value `yaml:"password"`
	// AllowPlaintext permits to send the password without TLS to a host that
	// is not this one. Default false.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// TLS is used where it is enabled or the endpoints say https.
	TLS transport.TLS `yaml:"tls"`
	// Prefix begins the keys of etcd. Default solotick/locks.
	Prefix string `yaml:"prefix"`
}

// Validate reports the first setting that cannot work, by the name it has in a
// configuration file, with a remedy.
func (c PluginConfig) Validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("etcdlock: endpoints: there is none; name the members of the cluster, such as 127.0.0.1:2379")
	}
	if c.Prefix != "" {
		if err := checkPrefix(c.Prefix); err != nil {
			return err
		}
	}
	if (c.Username == "") != c.Password.IsZero() {
		return errors.New("etcdlock: username and password: one of them is missing; set both or none")
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("etcdlock: %w", err)
	}
	for _, endpoint := range c.Endpoints {
		host, plain, err := c.target(endpoint)
		if err != nil {
			return err
		}
		if plain && c.TLS.On() {
			return fmt.Errorf("etcdlock: endpoints: %q: it says http, and tls is set; make it https", endpoint)
		}
		if !c.Password.IsZero() {
			if err := transport.CheckPlaintext(host, !plain, c.AllowPlaintext); err != nil {
				return fmt.Errorf("etcdlock: endpoints: %w", err)
			}
		}
	}
	return nil
}

// target is the host of an endpoint, and whether it is reached without TLS.
func (c PluginConfig) target(endpoint string) (host string, plain bool, err error) {
	plain = !c.TLS.On()
	address := endpoint
	if strings.Contains(endpoint, "://") {
		u, err := url.Parse(endpoint)
		if err != nil {
			return "", false, fmt.Errorf("etcdlock: endpoints: one is not a URL; write host:port or https://host:port") // it may have a password in it
		}
		if u.User != nil {
			return "", false, errors.New("etcdlock: endpoints: one has a user in it; use username and password")
		}
		switch u.Scheme {
		case "http":
			plain = true
		case "https":
			plain = false
		default:
			return "", false, fmt.Errorf("etcdlock: endpoints: %q: unknown scheme; write host:port or https://host:port", endpoint)
		}
		address = u.Host
	}
	if host, _, err = transport.HostPort(address); err != nil {
		return "", false, fmt.Errorf("etcdlock: endpoints: %w, such as 127.0.0.1:2379", err)
	}
	return host, plain, nil
}

// tls returns nil where the connection is not to be encrypted.
func (c PluginConfig) tls() (*tls.Config, error) {
	t := c.TLS
	t.Enabled = t.Enabled || slices.ContainsFunc(c.Endpoints, func(e string) bool { return strings.HasPrefix(e, "https://") })
	conf, err := t.Config("")
	if err != nil {
		return nil, fmt.Errorf("etcdlock: %w", err)
	}
	return conf, nil
}

// openTimeout bounds the question whether etcd can be reached and lets us in.
const openTimeout = 3 * time.Second

// Plugin returns the backend called "etcd". Open asks the cluster once, so that a
// wrong address or password is refused at once and not at the first lock. Each
// driver has its own connection.
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: "etcd",
		Open: func(ctx context.Context, decode func(any) error) (driver.Driver, error) {
			var cfg PluginConfig
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			if err := cfg.Validate(); err != nil {
				return nil, err
			}
			return cfg.open(ctx)
		},
	}
}

// Client makes a client of the cluster, for what else is kept there; the caller closes
// it. It waits for no server, except with a password.
func (c PluginConfig) Client() (*clientv3.Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	encryption, err := c.tls()
	if err != nil {
		return nil, err
	}
	// The client writes what it repeats to stderr; every error comes back to us too.
	silent := logutil.DefaultZapLoggerConfig
	silent.OutputPaths, silent.ErrorOutputPaths = nil, nil
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, TLS: encryption, Username: c.Username, Password: c.Password.Reveal(), LogConfig: &silent,
		DialTimeout: openTimeout,
		// A connection on which nothing is heard is given up and made anew; etcd
		// refuses pings that come more often than every 5 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		MaxUnaryRetries: 3,
		DialOptions:     []grpc.DialOption{grpc.WithConnectParams(reconnect)},
	})
	if err != nil {
		return nil, c.unreachable(err)
	}
	return client, nil
}

// reconnect bounds the pause between two attempts to connect: by default it grows to two
// minutes, for which a server that is back would still be away.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: openTimeout,
}

func (c PluginConfig) open(ctx context.Context) (driver.Driver, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	d, err := NewDriver(client, WithPrefix(c.Prefix))
	if err == nil {
		ask, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		// What a lock does first, at the place where it does it, so that a missing
		// privilege shows.
		if _, err = client.Get(ask, d.dir(""), clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
			err = c.unreachable(err)
		}
	}
	if err != nil {
		_ = client.Close() // the error that matters is the first
		return nil, err
	}
	return &owned{d, client}, nil
}

// unreachable says what the cluster did not answer, or answered.
func (c PluginConfig) unreachable(err error) error {
	endpoints := strings.Join(c.Endpoints, ", ")
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("etcdlock: endpoints: no answer from %s within %v; check that etcd listens there: %w", endpoints, openTimeout, err)
	}
	return fmt.Errorf("etcdlock: open %s: %w", endpoints, err)
}

// owned is a driver that closes its client.
type owned struct {
	*Driver
	client *clientv3.Client
}

// Close implements io.Closer.
func (o *owned) Close() error { return errors.Join(o.Driver.Close(), o.client.Close()) }
