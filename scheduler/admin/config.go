package admin

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
)

// Config is what an operator writes. The zero value serves nothing.
type Config struct {
	// Listen is the address to serve at, such as 127.0.0.1:9464. Default none: off.
	Listen string `yaml:"listen"`
	// Token is what a request that changes something has to bear, and beyond loopback
	// every request for /api; at least 16 bytes. Default none: nothing can be changed.
	Token secret.Value `yaml:"token"`
	// CertFile and KeyFile, both PEM, make it HTTPS. They are read again for each
	// connection. Default none.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// Insecure permits an address beyond loopback without token and TLS. Default false.
	Insecure bool `yaml:"insecure"`
}

// On reports whether there is something to serve.
func (c Config) On() bool { return c.Listen != "" }

const minToken = 16

// Validate reports every field that cannot work, and what would.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("admin: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if n := len(c.Token.Reveal()); n > 0 && n < minToken {
		bad("token", "is shorter than %d bytes: make one with `openssl rand -hex 32`", minToken)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		bad("cert_file", "goes together with key_file: set both or none")
	}
	if !c.On() {
		return errors.Join(errs...)
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if n, bad := strconv.Atoi(port); err == nil && (bad != nil || n < 0 || n > 65535) {
		err = fmt.Errorf("port %q", port)
	}
	if err != nil {
		bad("listen", "%q: write it as host:port, such as 127.0.0.1:9464", c.Listen)
		return errors.Join(errs...)
	}
	if loopback(host) || c.Insecure {
		return errors.Join(errs...)
	}
	if c.Token.IsZero() || c.CertFile == "" {
		bad("listen", "%q can be reached from other hosts: set token, cert_file and key_file, listen at 127.0.0.1, or write insecure: true where the network is trusted", c.Listen)
	}
	return errors.Join(errs...)
}

// loopback reports whether only this host reaches the address. Nothing, as in ":80",
// is every address.
func loopback(host string) bool { return host != "" && transport.IsLocal(host) }

// tls is nil for plain HTTP.
func (c Config) tls() (*tls.Config, error) {
	if c.CertFile == "" {
		return nil, nil
	}
	pair := func() (*tls.Certificate, error) {
		p, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("admin: cert_file, key_file: %w", err)
		}
		return &p, nil
	}
	if _, err := pair(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair() },
	}, nil
}

// Handler serves the paths of the package, for those who have a server of their own;
// they answer for its address, TLS and limits. Listen is not looked at.
func Handler(cfg Config, deps Deps) (http.Handler, error) {
	cfg.Listen = "" // who reaches the handler is not known
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newAPI(cfg, deps), nil
}
