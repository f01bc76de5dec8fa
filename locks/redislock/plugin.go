package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
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
	TLS transport.TLS `yaml:"tls"`
	// AllowPlaintext lets a password go over the network without TLS. Default
	// false: then only to this host.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// Prefix begins every key and channel. Default "solotick:".
	Prefix string `yaml:"prefix"`
	// Fair keeps those who do not wait behind those who stand in line. Default false.
	Fair bool `yaml:"fair"`
	// Replicas is how many replicas must have a grant before it counts. Default 0.
	Replicas int `yaml:"replicas"`
	// ReplicasWait is how long they have. Default 100ms.
	ReplicasWait time.Duration `yaml:"replicas_wait"`
}

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
	secret := !c.Password.IsZero() || !c.SentinelPassword.IsZero()
	for _, addr := range c.Addrs {
		host, _, err := transport.HostPort(addr)
		if err == nil && secret {
			err = transport.CheckPlaintext(host, c.TLS.On(), c.AllowPlaintext)
		}
		if err != nil {
			return fmt.Errorf("redislock: addrs: %w", err)
		}
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("redislock: %w", err)
	}
	if err := checkPrefix(c.Prefix); err != nil {
		return err
	}
	return nil
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
	rdb, err := cfg.Client()
	if err != nil {
		return nil, err
	}
	all := []Option{WithPrefix(cfg.Prefix), WithReplicas(cfg.Replicas, cfg.ReplicasWait)}
	if cfg.Fair {
		all = append(all, Fair())
	}
	d, err := NewDriver(rdb, append(all, opts...)...)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	d.owned = true
	return d, nil
}

// Client makes a client of the servers, for what else is kept there; the caller closes
// it. It sends nothing. Requests are bounded by their context, and not repeated.
func (c PluginConfig) Client() (redis.UniversalClient, error) {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Config("")
	if err != nil {
		return nil, fmt.Errorf("redislock: %w", err)
	}
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: c.Addrs, MasterName: c.SentinelMaster, IsClusterMode: c.Cluster,
		SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword.Reveal(),
		Username: c.Username, Password: c.Password.Reveal(), DB: c.DB, TLSConfig: tlsConfig,
		// The lock repeats and bounds its requests itself.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		// Servers announce their maintenance in a cloud only; others refuse to be asked,
		// which costs every connection a round trip.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}), nil
}
