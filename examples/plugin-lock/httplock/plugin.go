package httplock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// Config is the plugin's part of a configuration file.
type Config struct {
	// URL of the server, such as https://locks.example.org:7171. Required.
	URL string `yaml:"url"`
	// Token is what the server wants to see. Default none.
	Token secret.Value `yaml:"token"`
	// TLS of a URL that begins with https. Default: the system's authorities.
	TLS transport.TLS `yaml:"tls"`
	// AllowPlaintext lets the token go over the network without TLS. Default false:
	// then only to this host.
	AllowPlaintext bool `yaml:"allow_plaintext"`
}

// Validate reports the first setting that cannot work, by its name in the file.
func (c Config) Validate() error {
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		return errors.New("httplock: url: it is empty; name the server, such as http://127.0.0.1:7171")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("httplock: url: it is none; write it as http://host:port or https://host:port")
	case u.User != nil:
		return errors.New("httplock: url: it has a user in it; give a token instead")
	case c.TLS.On() && u.Scheme == "http":
		return errors.New("httplock: url: it says http, and tls is set; make it https")
	}
	if !c.Token.IsZero() {
		if err := transport.CheckPlaintext(u.Hostname(), u.Scheme == "https", c.AllowPlaintext); err != nil {
			return fmt.Errorf("httplock: url: %w", err)
		}
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("httplock: %w", err)
	}
	return nil
}

// Plugin returns the backend called "http". It does not wait for the server.
func Plugin() locks.Plugin {
	return locks.Plugin{
		Name: "http",
		Open: func(_ context.Context, decode func(into any) error) (driver.Driver, error) {
			var cfg Config
			if err := decode(&cfg); err != nil {
				return nil, err
			}
			return NewDriver(cfg)
		},
	}
}

// NewDriver returns a driver of the configuration. It sends nothing.
func NewDriver(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	encryption, err := cfg.TLS.Config("")
	if err != nil {
		return nil, fmt.Errorf("httplock: %w", err)
	}
	return &Driver{
		url: strings.TrimRight(cfg.URL, "/"), token: cfg.Token,
		client: &http.Client{
			// Every request has a context that ends; a redirect would carry the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DialContext:     (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				TLSClientConfig: encryption, TLSHandshakeTimeout: 5 * time.Second,
				MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute,
			},
		},
	}, nil
}
