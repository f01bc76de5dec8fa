package httpjob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/store"
)

// Deps are the things passed in code.
type Deps struct {
	// Transport sends the requests. Default http.DefaultTransport.
	Transport http.RoundTripper
}

// run is what the receiver is told of a *scheduler.Run.
type run interface {
	Job() string
	Tick() time.Time
	Attempt() int
	Fence() int64
	Args() []byte
	Ref() store.Ref
	EffectKey(step string) string
	SetResult(b []byte)
}

var _ run = (*scheduler.Run)(nil)

// StatusError is an answer that was not expected.
type StatusError struct {
	Status int
	// After is what the answer's Retry-After asked for, at most an hour; 0 where it
	// did not.
	After time.Duration
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("httpjob: the answer was %d %s", e.Status, http.StatusText(e.Status))
}

// ErrorCode is http:N, which the scheduler records.
func (e *StatusError) ErrorCode() string { return "http:" + strconv.Itoa(e.Status) }

// RetryAfter is the least time until the next attempt.
func (e *StatusError) RetryAfter() time.Duration { return e.After }

// permanent reports whether a repeat would be answered the same way.
func (e *StatusError) permanent() bool {
	return e.Status >= 400 && e.Status < 500 &&
		e.Status != http.StatusRequestTimeout && e.Status != http.StatusTooEarly && e.Status != http.StatusTooManyRequests
}

// New makes the handler. The error is that of Config.Validate.
func New(cfg Config, deps Deps) (scheduler.Handler, error) {
	s, err := newSender(cfg, deps)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, run *scheduler.Run) error { return s.run(ctx, run) }, nil
}

type sender struct {
	cfg    Config
	client *http.Client
	host   string // scheme and host, for messages
}

const maxRedirects = 5

var errRedirect = errors.New("redirected more than 5 times, to another host, or from https to http: write the final URL")

func newSender(cfg Config, deps Deps) (*sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &sender{cfg: cfg.withDefaults()}
	u, err := url.Parse(s.cfg.URL.Reveal())
	if err != nil {
		return nil, errors.New("httpjob: url: is not a URL") // Validate has parsed it; its text stays hidden
	}
	s.host = u.Scheme + "://" + u.Host
	s.client = &http.Client{Transport: deps.Transport, CheckRedirect: s.redirect}
	return s, nil
}

// redirect keeps headers, which may be secret, on the host they were meant for.
func (s *sender) redirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case first.Method != http.MethodGet && first.Method != http.MethodHead:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects, next.URL.Host != first.URL.Host, first.URL.Scheme == "https" && next.URL.Scheme != "https":
		return errRedirect
	}
	return nil
}

func (s *sender) run(ctx context.Context, r run) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, fmt.Errorf("no whole answer within %v: %w", s.cfg.Timeout, context.DeadlineExceeded))
	defer cancel()
	req, body, err := s.request(ctx, r)
	if err != nil {
		return err
	}
	sent := s.cfg.secrets(body)
	res, err := s.client.Do(req)
	if err != nil {
		return s.failed(ctx, sent, err)
	}
	defer res.Body.Close()
	// Read on by the longest secret, so that none is cut in two and not known again.
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxResult+int64(sent.longest())))
	if err != nil {
		return s.failed(ctx, sent, err)
	}
	if len(answer) > 0 {
		r.SetResult([]byte(sent.hide(string(answer), maxResult)))
	}
	if s.expected(res.StatusCode) {
		return nil
	}
	status := &StatusError{Status: res.StatusCode, After: retryAfter(res.Header.Get("Retry-After"), time.Now())}
	if status.permanent() {
		return scheduler.Permanent(status)
	}
	return status
}

// maxResult is how much of an answer is kept.
const maxResult = 4 << 10

// request is what is sent, and its body.
func (s *sender) request(ctx context.Context, r run) (req *http.Request, body string, err error) {
	body, queued := s.cfg.Body.Reveal(), false
	if body == "" && len(r.Args()) > 0 {
		body, queued = string(r.Args()), true
	}
	req, err = http.NewRequestWithContext(ctx, s.cfg.Method, s.cfg.URL.Reveal(), strings.NewReader(body))
	if err != nil {
		return nil, "", scheduler.Permanent(fmt.Errorf("httpjob: no request to %s can be made", s.host))
	}
	if queued {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "solotick")
	for name, value := range s.cfg.Headers {
		if http.CanonicalHeaderKey(name) == "Host" {
			req.Host = value.Reveal()
			continue
		}
		req.Header.Set(name, value.Reveal())
	}
	req.Header.Set("Idempotency-Key", r.EffectKey("http"))
	req.Header.Set("Solotick-Job", r.Job())
	if t := r.Tick(); !t.IsZero() {
		req.Header.Set("Solotick-Tick", t.UTC().Format(time.RFC3339Nano))
	}
	req.Header.Set("Solotick-Attempt", strconv.Itoa(r.Attempt()))
	req.Header.Set("Solotick-Fence", strconv.FormatInt(r.Fence(), 10))
	return req, body, nil
}

func (s *sender) expected(status int) bool {
	if len(s.cfg.Expect) > 0 {
		return slices.Contains(s.cfg.Expect, status)
	}
	return status >= 200 && status < 300
}

// failed words an error without the URL, which net/http puts into its own.
func (s *sender) failed(ctx context.Context, sent secrets, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	var network net.Error
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, errRedirect):
		return scheduler.Permanent(fmt.Errorf("httpjob: %s: %w", s.host, errRedirect))
	case !errors.As(err, &network):
		// Whatever else net/http says may quote what was sent or received.
		err = errors.New(sent.hide(err.Error(), maxResult))
	}
	return fmt.Errorf("httpjob: %s: %w", s.host, err)
}

func retryAfter(header string, now time.Time) time.Duration {
	var d time.Duration
	if seconds, err := strconv.ParseInt(header, 10, 32); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(header); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), time.Hour)
}
