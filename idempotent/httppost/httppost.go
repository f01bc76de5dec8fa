// Package httppost sends an outbox's messages by HTTP: one POST for each, with the
// payload as the body and
//
//	Idempotency-Key    the message's ID, the same for every delivery
//	Solotick-Topic     its topic, and
//	Solotick-Key       its key, if it has one; both percent-encoded as in a URL's path
//	Content-Type       Config.ContentType, unless the message has a header of that name
//
// and the message's own headers.
//
// Guarantees:
//   - A message is called delivered after an answer in the 200s.
//   - It is the relay that repeats a request (net/http does so by itself only where a
//     connection ends under one that has no payload). Redirects are not followed, so
//     headers and payload go to the host that was named.
//   - No error has the URL beyond scheme and host, a header, or a payload.
//   - No answer, and 408, 425, 429, 502, 503, 504 and a 409 with Retry-After (the
//     receiver is at work on it), match message.ErrUnavailable. Every other answer counts
//     against the message.
//
// Not guaranteed: that the receiver acts once. It does if it drops repeats of an
// Idempotency-Key, as package httpkey does, or has an inbox.
package httppost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/idempotent/message"
)

// Config says where messages go. It is kept as secrets, because paths, queries and
// user names often are.
type Config struct {
	// URL, http or https, of every topic that is not in Topics. Required, unless every
	// topic is there.
	URL secret.Value
	// Topics are the URLs of topics that go elsewhere. Default none.
	Topics map[string]secret.Value
	// Headers to send with every message, such as Authorization. Default none.
	Headers map[string]secret.Value
	// ContentType of payloads. Default application/octet-stream.
	ContentType string
	// Timeout of one request, answer included: keep it below half of the relay's lease.
	// Default 3s.
	Timeout time.Duration
	// Concurrency is how many requests are under way at a time. Default 8.
	Concurrency int
	// AllowPlaintext permits URLs of other hosts without TLS. Default false.
	AllowPlaintext bool
}

// Deps are the things passed in code.
type Deps struct {
	// Transport sends the requests. Default http.DefaultTransport.
	Transport http.RoundTripper
}

// reserved headers say what the message is, or how the request is framed.
var reserved = []string{
	"Idempotency-Key", "Solotick-Topic", "Solotick-Key",
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Upgrade", "Te", "Expect",
}

// Publisher implements message.Publisher.
type Publisher struct {
	cfg    Config
	client *http.Client
}

var _ message.Publisher = (*Publisher)(nil)

// New makes a publisher. It sends nothing. The error names the field that cannot work.
func New(cfg Config, deps Deps) (*Publisher, error) {
	if cfg.URL.IsZero() && len(cfg.Topics) == 0 {
		return nil, errors.New("httppost: URL is empty: write where to send messages, such as https://example.org/hook")
	}
	if !cfg.URL.IsZero() {
		if err := cfg.checkURL(cfg.URL); err != nil {
			return nil, fmt.Errorf("httppost: URL %w", err)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(cfg.Topics)) {
		if err := cfg.checkURL(cfg.Topics[topic]); err != nil {
			return nil, fmt.Errorf("httppost: Topics: that of %q %w", topic, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Headers)) {
		if err := checkHeader(name, cfg.Headers[name].Reveal()); err != nil {
			return nil, fmt.Errorf("httppost: Headers: %w", err)
		}
	}
	if cfg.Timeout < 0 || cfg.Concurrency < 0 {
		return nil, fmt.Errorf("httppost: Timeout of %v and Concurrency of %d: use 0, for the default, or more", cfg.Timeout, cfg.Concurrency)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 3 * time.Second
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 8
	}
	if cfg.ContentType == "" {
		cfg.ContentType = "application/octet-stream"
	}
	cfg.Topics, cfg.Headers = maps.Clone(cfg.Topics), maps.Clone(cfg.Headers)
	return &Publisher{cfg, &http.Client{
		Transport:     deps.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// checkURL never shows the URL.
func (c Config) checkURL(s secret.Value) error {
	u, err := url.Parse(s.Reveal())
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("is no URL: write one such as https://example.org/hook")
	case u.Fragment != "":
		return errors.New("has a fragment (#...), which is not sent: remove it")
	case u.Scheme == "http" && !c.AllowPlaintext && !transport.IsLocal(u.Hostname()):
		return errors.New("would send messages over the network in plain text: use https, or set AllowPlaintext where the network is trusted")
	}
	return nil
}

func checkHeader(name, value string) error {
	token := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	})
	switch {
	case !token:
		return fmt.Errorf("%.32q is not the name of a header: use letters, digits, \"-\", \"_\" and \".\"", name)
	case slices.Contains(reserved, http.CanonicalHeaderKey(name)):
		return fmt.Errorf("%s is set by the publisher: leave it out", name)
	case strings.ContainsAny(value, "\r\n\x00"):
		return fmt.Errorf("the value of %s has a line break or NUL: headers are one line", name)
	}
	return nil
}

// Publish implements message.Publisher.
func (p *Publisher) Publish(ctx context.Context, msgs []message.Message) []error {
	errs := make([]error, len(msgs))
	var all sync.WaitGroup
	next := make(chan int)
	for range min(p.cfg.Concurrency, len(msgs)) {
		all.Go(func() {
			for i := range next {
				errs[i] = p.post(ctx, msgs[i])
			}
		})
	}
	for i := range msgs {
		next <- i
	}
	close(next)
	all.Wait()
	return errs
}

// StatusError is an answer that is not in the 200s.
type StatusError struct{ Status int }

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the answer was %d %s", e.Status, http.StatusText(e.Status))
}

// readMax is how much of an answer is read, so that its connection can be used again.
const readMax = 4 << 10

func (p *Publisher) post(ctx context.Context, m message.Message) error {
	target, ok := p.cfg.Topics[m.Topic]
	if !ok {
		target = p.cfg.URL
	}
	if target.IsZero() {
		return fmt.Errorf("httppost: no URL for topic %q: add it to Topics, or set URL", m.Topic)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("no whole answer within %v: %w", p.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.Reveal(), bytes.NewReader(m.Payload))
	if err != nil {
		return errors.New("httppost: no request can be made of the URL")
	}
	req.GetBody = nil // else the transport repeats a request whose connection was lost
	req.Header.Set("User-Agent", "solotick")
	req.Header.Set("Content-Type", p.cfg.ContentType)
	for name, value := range m.Headers {
		if err := checkHeader(name, value); err != nil {
			return fmt.Errorf("httppost: the message's header %w", err)
		}
		req.Header.Set(name, value)
	}
	for name, value := range p.cfg.Headers { // they win: a message is no place for credentials
		req.Header.Set(name, value.Reveal())
	}
	req.Header.Set("Idempotency-Key", m.ID)
	req.Header.Set("Solotick-Topic", url.PathEscape(m.Topic))
	if m.Key != "" {
		req.Header.Set("Solotick-Key", url.PathEscape(m.Key))
	}
	host := req.URL.Scheme + "://" + req.URL.Host
	res, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("httppost: %s: %w: %w", host, message.ErrUnavailable, bare(ctx, err))
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, readMax))
	switch status := (&StatusError{res.StatusCode}); {
	case passing(res):
		return fmt.Errorf("httppost: %s: %w: %w", host, message.ErrUnavailable, status)
	case res.StatusCode < 200 || res.StatusCode > 299:
		return fmt.Errorf("httppost: %s: %w", host, status)
	case err != nil: // it says yes, and that is what was asked
	}
	return nil
}

// passing reports an answer that is not about the message.
func passing(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusConflict:
		return res.Header.Get("Retry-After") != ""
	}
	return false
}

// bare is an error without the URL, which net/http puts into its own.
func bare(ctx context.Context, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}
