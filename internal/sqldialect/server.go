package sqldialect

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
)

// ServerConfig is how to reach a database server. The packages that open one
// (postgresdb, mysqldb) and the plugins over them share it.
type ServerConfig struct {
	// DSN names the server, database and user in the form of its Go driver. Required.
	DSN secret.Value `yaml:"dsn"`
	// Password is used in place of the DSN's. Default none.
	Password secret.Value `yaml:"password"`
	// TLS replaces what the DSN says about encryption. Default: what the DSN says.
	TLS transport.TLS `yaml:"tls"`
	// AllowPlaintext permits a connection to another host without TLS, or with a
	// server that is not verified. Default false.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// MaxConns bounds the open connections. Default 10; 0 and less stand for it.
	MaxConns int `yaml:"max_conns"`
	// ConnectTimeout bounds the opening of one connection. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// Defaults fills in what is not set.
func (c ServerConfig) Defaults() ServerConfig {
	if c.MaxConns <= 0 {
		c.MaxConns = 10
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	return c
}

// CheckTransport refuses to cross a network unencrypted or to an unverified server.
func (c ServerConfig) CheckTransport(host string, t *tls.Config) error {
	if c.AllowPlaintext || t != nil && !t.InsecureSkipVerify || transport.IsLocal(host) {
		return nil
	}
	return fmt.Errorf("dsn: the connection to %q would be without TLS, or to a server that is not verified: set tls.enabled (and tls.ca_file), or allow_plaintext where the network is trusted", host)
}
