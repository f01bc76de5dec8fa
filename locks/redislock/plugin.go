package redislock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// PluginConfig is the plugin's part of a configuration file.
type PluginConfig struct {
	// Addrs are the servers, host:port: one, or some nodes of a cluster, or the
	// Sentinels. Required.
	Addrs []string `yaml:"addrs"`
	// Cluster says that Addrs are nodes of a Redis Cluster. Default false.
	Cluster bool `yaml:"cluster"`
	// SentinelMaster is the name of the master that the Sentinels at Addrs know.
	// Default none: Addrs is the server itself.
	SentinelMaster string `yaml:"sentinel_master"`
	// SentinelUsername and SentinelPassword are for the Sentinels. Default none.
	SentinelUsername string       `yaml:"sentinel_username"`
	SentinelPassword secret.Value `yaml:"sentinel_password"`
	// Username and Password are for the servers. Default none.
	Username string       `yaml:"username"`
	Password secret.Value `yaml:"password"`
	// DB is the number of the database. Default 0.
	DB int `yaml:"db"`
	// TLS encrypts the connections. Default off.
	TLS TLSConfig `yaml:"tls"`
	// AllowPlaintext lets a password go over the network without TLS. Default
	// false: then only to this host.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// Prefix begins every key and channel. Default "solotick:".
	Prefix string `yaml:"prefix"`
	// Fair keeps waiters in a line in Redis. Default false.
	Fair bool `yaml:"fair"`
	// Replicas is how many replicas must have a grant before it counts. Default 0.
	Replicas int `yaml:"replicas"`
	// ReplicasWait is how long they have. Default 100ms.
	ReplicasWait time.Duration `yaml:"replicas_wait"`
}

// TLSConfig is how connections are encrypted. TLS is on where Enabled or any other
// field is set.
type TLSConfig struct {
	Enabled    bool   `yaml:"enabled"`
	CAFile     string `yaml:"ca_file"`     // PEM; default the system's authorities
	CertFile   string `yaml:"cert_file"`   // PEM of the client; default none
	KeyFile    string `yaml:"key_file"`    // PEM; required with cert_file
	ServerName string `yaml:"server_name"` // default the host of the address
}

func (c TLSConfig) on() bool { return c != TLSConfig{} }

// Validate reports the first setting that cannot work.
func (c PluginConfig) Validate() error {
	if len(c.Addrs) == 0 {
		return errors.New("redislock: addrs: there are none; name the server as host:port")
	}
	if len(c.Addrs) > 1 && !c.Cluster && c.SentinelMaster == "" {
		return errors.New("redislock: addrs: several; set cluster or sentinel_master, or use the driver redlock for independent servers")
	}
	if c.Cluster && c.SentinelMaster != "" {
		return errors.New("redislock: sentinel_master: a cluster has none; leave out one of the two")
	}
	if c.Cluster && c.DB != 0 || c.DB < 0 {
		return fmt.Errorf("redislock: db: %d; use 0 and up, and 0 in a cluster", c.DB)
	}
	for _, addr := range c.Addrs {
		if err := checkAddr(addr, !c.Password.IsZero() || !c.SentinelPassword.IsZero(), c.TLS.on() || c.AllowPlaintext); err != nil {
			return fmt.Errorf("redislock: addrs: %w", err)
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("redislock: tls: cert_file and key_file go together; set both or none")
	}
	if err := checkPrefix(c.Prefix); err != nil {
		return err
	}
	return nil
}

// checkAddr refuses an address that is no host:port, and one to which a password
// would go in plain text: beyond this host, without TLS.
func checkAddr(addr string, password, safe bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port == "" {
		return fmt.Errorf("%q: write it as host:port", addr)
	}
	ip := net.ParseIP(host)
	if password && !safe && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q: the password would cross the network in plain text; set tls.enabled, or allow_plaintext where the network is trusted", addr)
	}
	return nil
}

// load reads the files that are named; nil where TLS is off.
func (c TLSConfig) load() (*tls.Config, error) {
	if !c.on() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca_file: %s has no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// Plugin returns the backend called "redis". It does not wait for the server.
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: "redis",
		Open: func(_ context.Context, decode func(any) error) (driver.Driver, error) {
			cfg := PluginConfig{Prefix: DefaultPrefix}
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			return open(cfg)
		},
	}
}

// open returns a driver with a client of its own, which it closes.
func open(cfg PluginConfig, opts ...Option) (*Driver, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := cfg.TLS.load()
	if err != nil {
		return nil, fmt.Errorf("redislock: %w", err)
	}
	all := []Option{WithPrefix(cfg.Prefix), WithReplicas(cfg.Replicas, cfg.ReplicasWait)}
	if cfg.Fair {
		all = append(all, Fair())
	}
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: cfg.Addrs, MasterName: cfg.SentinelMaster, IsClusterMode: cfg.Cluster,
		SentinelUsername: cfg.SentinelUsername, SentinelPassword: cfg.SentinelPassword.Reveal(),
		Username: cfg.Username, Password: cfg.Password.Reveal(), DB: cfg.DB, TLSConfig: tlsConfig,
		// The lock repeats and bounds its requests itself.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	d, err := NewDriver(rdb, append(all, opts...)...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	d.owned = true
	return d, nil
}
