package sqldialect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/solotick/solotick/configs/secret"
)

// ServerConfig is how to reach a database server. The packages that open one
// (postgresdb, mysqldb) and the plugins over them share it.
type ServerConfig struct {
	// DSN names the server, database and user in the form of its Go driver. Required.
	DSN secret.Value `yaml:"dsn"`
	// Password is used in place of the DSN's. Default none.
	Password secret.Value `yaml:"password"`
	// PasswordFile names a file with the password, read when the database is opened.
	// Default none.
	PasswordFile string `yaml:"password_file"`
	// TLS replaces what the DSN says about encryption. Default: what the DSN says.
	TLS TLSConfig `yaml:"tls"`
	// AllowPlaintext permits a connection to another host without TLS, or with a
	// server that is not verified. Default false.
	AllowPlaintext bool `yaml:"allow_plaintext"`
	// MaxConns bounds the open connections. Default 10; 0 and less stand for it.
	MaxConns int `yaml:"max_conns"`
	// ConnectTimeout bounds the opening of one connection. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// TLSConfig is an encrypted connection with a verified server, TLS 1.2 or later.
// It is on where Enabled or any other field is set.
type TLSConfig struct {
	Enabled    bool   `yaml:"enabled"`
	CAFile     string `yaml:"ca_file"`     // default: the system's authorities
	CertFile   string `yaml:"cert_file"`   // the client's certificate, with KeyFile
	KeyFile    string `yaml:"key_file"`    //
	ServerName string `yaml:"server_name"` // default: the host of the DSN
}

// On reports whether TLS is asked for.
func (c TLSConfig) On() bool { return c != TLSConfig{} }

// Load reads the files. It returns nil where TLS is not asked for.
func (c TLSConfig) Load(host string) (*tls.Config, error) {
	if !c.On() {
		return nil, nil
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("tls: cert_file and key_file go together: set both or none")
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.ServerName != "" {
		t.ServerName = c.ServerName
	}
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
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
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

// Secret is the password to be used in place of the DSN's; the zero Value if the
// DSN's stands.
func (c ServerConfig) Secret() (secret.Value, error) {
	switch {
	case c.PasswordFile == "":
		return c.Password, nil
	case !c.Password.IsZero():
		return secret.Value{}, errors.New("password and password_file: both are set; keep one")
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return secret.Value{}, fmt.Errorf("password_file: %w", err)
	}
	return secret.New(strings.TrimRight(string(text), "\r\n")), nil
}

// CheckTransport refuses to cross a network unencrypted or to an unverified server.
func (c ServerConfig) CheckTransport(host string, t *tls.Config) error {
	if c.AllowPlaintext || t != nil && !t.InsecureSkipVerify || isLocal(host) {
		return nil
	}
	return fmt.Errorf("dsn: the connection to %q would be without TLS, or to a server that is not verified: set tls.enabled (and tls.ca_file), or allow_plaintext where the network is trusted", host)
}

// isLocal reports whether host is this machine: a socket's path or a loopback address.
func isLocal(host string) bool {
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" || host == "" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
