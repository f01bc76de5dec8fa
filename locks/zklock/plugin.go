package zklock

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// PluginConfig is the plugin's part of a configuration file.
type PluginConfig struct {
	// Servers are the members of the ensemble, host:port or host. Required.
	Servers []string `yaml:"servers"`
	// SessionTimeout is asked of the server. Leases live for two thirds of it, so
	// the ttl of the locks must not be below that. Default 15s.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// ConnectTimeout is how long opening waits for a session; a negative one does
	// not wait. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// Prefix is the node below which the keys lie, chroot included. Default
	// /solotick/locks.
	Prefix string `yaml:"prefix"`
	// Username and Password authenticate by the digest scheme. Default nobody.
	Username string       `yaml:"username"`
	Password secret.Value `yaml:"password"`
	// AllowPlaintext lets the password cross a network without TLS. Default false.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// TLS connects to the servers' secure ports. Default off.
	TLS transport.TLS `yaml:"tls"`
}

// Validate reports the first setting that cannot work.
func (c PluginConfig) Validate() error {
	if c.SessionTimeout < 0 {
		return fmt.Errorf("zklock: session_timeout: %v is negative; leave it out for the default", c.SessionTimeout)
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("zklock: %w", err)
	}
	o := defaults()
	WithPrefix(c.Prefix)(&o)
	WithDigest(c.Username, c.Password)(&o)
	o.session, o.plaintext = cmp.Or(c.SessionTimeout, o.session), c.AllowPlaintext
	if c.TLS.On() {
		o.tls = new(tls.Config) // the files are read when it is opened
	}
	_, err := o.check(c.Servers)
	return err
}

func (c PluginConfig) options() ([]Option, error) {
	opts := []Option{WithPrefix(c.Prefix), WithConnectTimeout(c.ConnectTimeout), WithDigest(c.Username, c.Password)}
	if c.SessionTimeout > 0 {
		opts = append(opts, WithSessionTimeout(c.SessionTimeout))
	}
	if c.AllowPlaintext {
		opts = append(opts, WithPlaintextPassword())
	}
	if c.TLS.On() {
		cfg, err := c.TLS.Config("")
		if err != nil {
			return nil, fmt.Errorf("zklock: %w", err)
		}
		opts = append(opts, WithTLS(cfg))
	}
	return opts, nil
}

// Plugin returns the backend called "zookeeper".
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: "zookeeper",
		Open: func(ctx context.Context, decode func(any) error) (driver.Driver, error) {
			var cfg PluginConfig
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			if err := cfg.Validate(); err != nil {
				return nil, err
			}
			opts, err := cfg.options()
			if err != nil {
				return nil, err
			}
			return NewDriver(ctx, cfg.Servers, opts...)
		},
	}
}

// Connect makes a connection to the servers, for what else is kept there; the caller
// closes it. It waits for nothing, and does not authenticate: requests wait for the
// session.
func (c PluginConfig) Connect() (*zk.Conn, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Config("")
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		d := net.Dialer{Timeout: timeout}
		if tlsConfig == nil {
			return d.Dial(network, address)
		}
		return tls.DialWithDialer(&d, network, address, tlsConfig)
	}
	// The library sends its events to a channel as well, which need not be read.
	conn, _, err := zk.Connect(c.Servers, cmp.Or(c.SessionTimeout, DefaultSessionTimeout), zk.WithDialer(dial),
		zk.WithLogger(logger{slog.Default()}), zk.WithLogInfo(false))
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	return conn, nil
}
