// Package transport is how the plugins of backends reach a server over a network:
// the part of a configuration that asks for TLS, and the rule that no secret
// crosses a network in plain text unless the operator said so.
package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// TLS is the tls part of a backend's configuration: an encrypted connection to a
// server whose certificate is verified, TLS 1.2 or later. It is on where Enabled or
// any other field is set; the zero TLS is off.
type TLS struct {
	Enabled    bool   `yaml:"enabled"`     // encrypt, also where no other field is set; default false
	CAFile     string `yaml:"ca_file"`     // PEM of those who sign the servers' certificates; default the system's authorities
	CertFile   string `yaml:"cert_file"`   // PEM of this client's certificate; default none
	KeyFile    string `yaml:"key_file"`    // PEM of its key; required with cert_file
	ServerName string `yaml:"server_name"` // the name in the servers' certificates; default the host of the address
}

// On reports whether TLS is asked for.
func (c TLS) On() bool { return c != TLS{} }

// Check reports what cannot work without reading a file.
func (c TLS) Check() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("tls: cert_file and key_file go together: set both or none")
	}
	return nil
}

// Config reads the files, for a connection to host, which may be empty where the
// client fills in the name. The client's certificate is read again for each new
// connection, so that it can be rotated while the program runs. Config returns nil
// where TLS is off.
func (c TLS) Config(host string) (*tls.Config, error) {
	if err := c.Check(); err != nil || !c.On() {
		return nil, err
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
	if c.CertFile == "" {
		return t, nil
	}
	t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.pair() }
	_, err := c.pair()
	return t, err
}

func (c TLS) pair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file, tls.key_file: %w", err)
	}
	return &pair, nil
}

// IsLocal reports whether host is this machine without asking a resolver for it: a
// loopback address, the name localhost, the path of a socket, or nothing.
func IsLocal(host string) bool {
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" || host == "" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// CheckPlaintext refuses to send a secret to host in plain text: beyond this
// machine, it needs TLS or the operator's word that the network is trusted.
func CheckPlaintext(host string, encrypted, allowed bool) error {
	if encrypted || allowed || IsLocal(host) {
		return nil
	}
	return fmt.Errorf("the password would cross the network to %q in plain text: set tls.enabled (and tls.ca_file), or allow_plaintext where the network is trusted", host)
}

// HostPort splits an address of the form host:port, both required.
func HostPort(addr string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("%q: write it as host:port", addr)
	}
	return host, port, nil
}
