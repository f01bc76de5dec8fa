package httpjob

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/solotick/solotick/configs/secret"
)

// Config says what to request.
type Config struct {
	// URL, http or https. It is kept as a secret because paths, queries and user
	// names often are. Required.
	URL secret.Value `yaml:"url" short:"true"`
	// Method of the request. Default POST.
	Method string `yaml:"method"`
	// Headers to send. Those that the package comment lists are refused. Default
	// none; Content-Type is application/json where a queue job's arguments are sent.
	Headers map[string]secret.Value `yaml:"headers"`
	// Body to send. Default: the arguments of a queue job, else none.
	Body secret.Value `yaml:"body"`
	// Timeout of one request, answer included. Default 30s.
	Timeout time.Duration `yaml:"timeout"`
	// Expect lists the status codes that mean success. Default 200 to 299.
	Expect []int `yaml:"expect"`
	// Idempotent says that the receiver drops repeats of an Idempotency-Key, which
	// makes the job effectively-once. Default false.
	Idempotent bool `yaml:"idempotent"`
}

const defaultTimeout = 30 * time.Second

// reserved headers say what the run is, or how the request is framed.
var reserved = []string{
	"Idempotency-Key", "Solotick-Job", "Solotick-Tick", "Solotick-Attempt", "Solotick-Fence",
	"Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Upgrade",
}

// Validate reports every field that cannot work, and what would.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("httpjob: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if problem := c.badURL(); problem != "" {
		bad("url", "%s", problem)
	}
	if c.Method != "" && (!isToken(c.Method) || c.Method != strings.ToUpper(c.Method) || c.Method == http.MethodConnect) {
		bad("method", "%.32q cannot be used: write POST, PUT, PATCH, DELETE, GET or HEAD", c.Method)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		value := c.Headers[name].Reveal()
		switch {
		case !isToken(name):
			bad("headers", "%.32q is not the name of a header: use letters, digits and -", name)
		case slices.Contains(reserved, http.CanonicalHeaderKey(name)):
			bad("headers", "%s is set by solotick: remove it", name)
		case strings.ContainsAny(value, "\r\n\x00"):
			bad("headers", "the value of %s has a line break or NUL: headers are one line", name)
		}
	}
	if c.Timeout < 0 {
		bad("timeout", "%v is negative: leave it out for the default", c.Timeout)
	}
	for _, code := range c.Expect {
		if code < 200 || code > 599 {
			bad("expect", "%d is not a status from 200 to 599", code)
		}
	}
	return errors.Join(errs...)
}

// badURL never shows the URL.
func (c Config) badURL() string {
	u, err := url.Parse(c.URL.Reveal())
	switch {
	case c.URL.IsZero():
		return "is empty: write where to send the request, such as https://example.org/hook"
	case err != nil:
		return "is not a URL: write one such as https://example.org/hook"
	case u.Scheme != "http" && u.Scheme != "https":
		return "begins with neither http:// nor https://"
	case u.Hostname() == "":
		return "has no host: write one such as https://example.org/hook"
	case u.Fragment != "":
		return "has a fragment (#...), which is not sent: remove it"
	}
	return ""
}

func isToken(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)) {
			return false
		}
	}
	return s != ""
}

func (c Config) withDefaults() Config {
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.Headers = maps.Clone(c.Headers)
	return c
}
