package etcdlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/configs/secret"
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
	TLS TLSConfig `yaml:"tls"`
	// Prefix begins the keys of etcd. Default solotick/locks.
	Prefix string `yaml:"prefix"`
}

// TLSConfig names the files of TLS. Certificates are always verified.
type TLSConfig struct {
	// Enabled turns it on for endpoints that do not say. Default false, unless one of
	// the files is named.
	Enabled bool `yaml:"enabled"`
	// CAFile has the certificates that sign the servers'. Default those of the system.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile identify this client. They are read again at each new
	// connection, so that they can be rotated. Default none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that the servers' certificates must have. Default that of
	// the endpoint.
	ServerName string `yaml:"server_name"`
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
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("etcdlock: tls: cert_file and key_file: one of them is missing; set both or none")
	}
	for _, endpoint := range c.Endpoints {
		host, plain, err := c.target(endpoint)
		if err != nil {
			return err
		}
		if plain && c.TLS != (TLSConfig{}) {
			return fmt.Errorf("etcdlock: endpoints: %q: it says http, and tls is set; make it https", endpoint)
		}
		if plain && !c.Password.IsZero() && !isLoopback(host) && !c.AllowPlaintext {
			return fmt.Errorf("etcdlock: endpoints: %q: the password would cross the network in the clear; use https, or say allow_plaintext: true", endpoint)
		}
	}
	return nil
}

// target is the host of an endpoint, and whether it is reached without TLS.
func (c PluginConfig) target(endpoint string) (host string, plain bool, err error) {
	plain = c.TLS == TLSConfig{}
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
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", false, fmt.Errorf("etcdlock: endpoints: %q: it is not host:port; add what is missing, such as :2379", endpoint)
	}
	return host, plain, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// tls returns nil where the connection is not to be encrypted.
func (c PluginConfig) tls() (*tls.Config, error) {
	encrypted := c.TLS != TLSConfig{}
	for _, e := range c.Endpoints {
		encrypted = encrypted || strings.HasPrefix(e, "https://")
	}
	if !encrypted {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.TLS.ServerName}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcdlock: tls: ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcdlock: tls: ca_file: %s has no certificate in PEM", c.TLS.CAFile)
		}
	}
	if c.TLS.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("etcdlock: tls: cert_file, key_file: %w", err)
			}
			return &cert, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
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

func (c PluginConfig) open(ctx context.Context) (driver.Driver, error) {
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
	})
	if err != nil {
		return nil, fmt.Errorf("etcdlock: open: %w", err)
	}
	d, err := NewDriver(client, WithPrefix(c.Prefix))
	if err == nil {
		ask, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		// What a lock does first, at the place where it does it, so that a missing
		// privilege shows.
		if _, err = client.Get(ask, d.dir(""), clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil {
			err = fmt.Errorf("etcdlock: open %s: %w", strings.Join(c.Endpoints, ", "), err)
		}
	}
	if err != nil {
		_ = client.Close() // the error that matters is the first
		return nil, err
	}
	return &owned{d, client}, nil
}

// owned is a driver that closes its client.
type owned struct {
	*Driver
	client *clientv3.Client
}

// Close implements io.Closer.
func (o *owned) Close() error { return errors.Join(o.Driver.Close(), o.client.Close()) }
