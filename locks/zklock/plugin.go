package zklock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/solotick/solotick/configs/secret"
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
	// User and Password authenticate by the digest scheme. Default nobody.
	User     string       `yaml:"user"`
	Password secret.Value `yaml:"password"`
	// AllowPlaintextPassword lets the password cross a network without TLS. Default
	// false.
	AllowPlaintextPassword bool `yaml:"allow_plaintext_password"`
	// TLS connects to the servers' secure ports. Default off.
	TLS *TLSConfig `yaml:"tls"`
}

// TLSConfig names the files of a TLS connection, in PEM.
type TLSConfig struct {
	// CA signed the servers' certificates. Default the system's roots.
	CA string `yaml:"ca"`
	// Cert and Key are the client's. Default none.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// ServerName is the name that the servers' certificates must have. Default the
	// host of the address.
	ServerName string `yaml:"server_name"`
}

// Validate reports the first setting that cannot work.
func (c PluginConfig) Validate() error {
	if len(c.Servers) == 0 {
		return errors.New("zklock: servers: there is none; name at least one host:port")
	}
	if c.SessionTimeout < 0 {
		return fmt.Errorf("zklock: session_timeout: %v is negative; leave it out for the default", c.SessionTimeout)
	}
	if c.TLS != nil && (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return errors.New("zklock: tls: it takes both cert and key, or neither")
	}
	return nil
}

func (c PluginConfig) options() ([]Option, error) {
	opts := []Option{WithPrefix(c.Prefix), WithConnectTimeout(c.ConnectTimeout), WithDigest(c.User, c.Password)}
	if c.SessionTimeout > 0 {
		opts = append(opts, WithSessionTimeout(c.SessionTimeout))
	}
	if c.AllowPlaintextPassword {
		opts = append(opts, WithPlaintextPassword())
	}
	if c.TLS != nil {
		cfg, err := c.TLS.load()
		if err != nil {
			return nil, fmt.Errorf("zklock: tls: %w", err)
		}
		opts = append(opts, WithTLS(cfg))
	}
	return opts, nil
}

func (c TLSConfig) load() (*tls.Config, error) {
	cfg := &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s holds no certificate in PEM", c.CA)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("cert: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
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
