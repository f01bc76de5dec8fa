package zklock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/configs/transport"
	"github.com/solotick/solotick/internal/leaseclock"
	"github.com/solotick/solotick/locks"
	"github.com/solotick/solotick/locks/driver"
)

// Defaults of the options.
const (
	DefaultPrefix         = "/solotick/locks"
	DefaultSessionTimeout = 15 * time.Second
	DefaultConnectTimeout = 5 * time.Second
)

// Option changes how New and NewDriver connect.
type Option func(*options)

type options struct {
	session, connect time.Duration
	prefix           string
	user             string
	password         secret.Value
	plaintext        bool
	tls              *tls.Config
	dial             func(ctx context.Context, network, address string) (net.Conn, error)
	log              *slog.Logger
}

func defaults() options {
	return options{session: DefaultSessionTimeout, connect: DefaultConnectTimeout, prefix: DefaultPrefix, dial: new(net.Dialer).DialContext, log: slog.Default()}
}

// WithSessionTimeout sets the session timeout to ask the server for: the time after
// which the locks of a dead process are free. A lease lives for two thirds of it.
// Default for [New] one and a half times the TTL, else [DefaultSessionTimeout].
func WithSessionTimeout(d time.Duration) Option { return func(o *options) { o.session = d } }

// WithPrefix sets the node below which the keys lie, chroot included. It is made if
// it is missing. Default [DefaultPrefix].
func WithPrefix(path string) Option {
	return func(o *options) { o.prefix = cmp.Or(path, DefaultPrefix) }
}

// WithDigest authenticates by name and password. All nodes that this driver makes
// can then be read and changed by that user alone. Without TLS the password
// crosses the network in clear, so servers other than loopback ones are refused
// unless [WithPlaintextPassword] allows it. Default none.
func WithDigest(user string, password secret.Value) Option {
	return func(o *options) { o.user, o.password = user, password }
}

// WithPlaintextPassword allows the password to cross a network without TLS.
func WithPlaintextPassword() Option { return func(o *options) { o.plaintext = true } }

// WithTLS connects to the servers' secure ports. The server's name is that of the
// address unless cfg has one. Default no TLS.
func WithTLS(cfg *tls.Config) Option { return func(o *options) { o.tls = cfg } }

// WithDialer sets how a server is connected to. Default a [net.Dialer].
func WithDialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithConnectTimeout sets how long New and NewDriver wait for a session before
// they fail. A negative one does not wait: requests then wait for it. Default
// [DefaultConnectTimeout].
func WithConnectTimeout(d time.Duration) Option {
	return func(o *options) { o.connect = cmp.Or(d, DefaultConnectTimeout) }
}

// WithLogger sets where trouble with the connection is told. Default
// [slog.Default].
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// New returns a Locker on the servers, each host:port; the port may be left out. A
// nil cfg is the zero Config. It waits until there is a session; a session timeout
// that the server does not grant for the TTL asked for is an error that matches
// [locks.ErrInvalid] and says what would do. The Locker owns the connection.
func New(ctx context.Context, servers []string, cfg *locks.Config, opts ...Option) (*locks.Locker, error) {
	if cfg == nil {
		cfg = new(locks.Config)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ttl := cmp.Or(cfg.TTL, 10*time.Second)
	d, err := NewDriver(ctx, servers, append([]Option{WithSessionTimeout(sessionFor(ttl))}, opts...)...)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*locks.Locker, error) {
		_ = d.Close() // the error that matters is the first
		return nil, err
	}
	if longest := d.Limits().MinTTL; d.leaseTTL() > 0 && ttl > longest {
		return fail(fmt.Errorf("zklock: ttl: %w %v: the session is for %v, which carries leases of %v; lower ttl to that, or raise session_timeout here and maxSessionTimeout at the server",
			locks.ErrInvalid, ttl, d.sessionTimeout(), longest))
	}
	l, err := locks.New(d, *cfg)
	if err != nil {
		return fail(err)
	}
	return l, nil
}

// A lease ends at two thirds of the session timeout after the last sign of life
// was sent. The rest covers what the ensemble knows later than we do: a follower
// tells the leader of our requests only at its next ping.
func leaseFor(session time.Duration) time.Duration {
	return (session * 2 / 3).Truncate(time.Millisecond)
}

func sessionFor(ttl time.Duration) time.Duration {
	s := (ttl*3 + 1) / 2
	if rest := s % time.Millisecond; rest > 0 {
		s += time.Millisecond - rest
	}
	return s
}

// NewDriver returns a driver with a session of its own on the servers. Close ends
// the session, and with it every lock of the driver.
func NewDriver(ctx context.Context, servers []string, opts ...Option) (*Driver, error) {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	servers, err := o.check(servers)
	if err != nil {
		return nil, err
	}
	d := newDriver(o)
	d.wire.asked = o.session
	conn, events, err := zk.Connect(servers, o.session,
		zk.WithDialer(d.wire.Dial), zk.WithHostProvider(d.wire), zk.WithEventCallback(d.event),
		zk.WithLogger(logger{o.log}), zk.WithLogInfo(false))
	if err != nil {
		d.end()
		d.wire.end()
		return nil, fmt.Errorf("zklock: %w", err)
	}
	d.conn, d.events = conn, events
	if o.user != "" {
		d.wg.Go(func() { d.authenticate(o.user, o.password) })
	}
	if o.connect < 0 {
		return d, nil
	}
	call, cancel := context.WithTimeoutCause(ctx, o.connect, fmt.Errorf("no session within %v", o.connect))
	defer cancel()
	if _, err := d.ready(call); err != nil {
		_ = d.Close()
		if errors.Is(err, zk.ErrAuthFailed) {
			return nil, fmt.Errorf("zklock: digest: the server refused the user %q; check name and password: %w", o.user, err)
		}
		return nil, fmt.Errorf("zklock: servers: cannot reach %s; check that ZooKeeper listens there: %w", strings.Join(servers, ", "), err)
	}
	return d, nil
}

func (o *options) check(servers []string) ([]string, error) {
	bad := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("zklock: %w "+format, append([]any{locks.ErrInvalid}, args...)...)
	}
	if len(servers) == 0 {
		return bad("servers: there is none; name at least one host:port")
	}
	all := make([]string, len(servers))
	for i, s := range servers {
		if !strings.Contains(s, ":") {
			s = fmt.Sprintf("%s:%d", s, zk.DefaultPort)
		}
		host, _, err := net.SplitHostPort(s)
		if err != nil || host == "" {
			return bad("servers: %q is not host:port", s)
		}
		if o.user != "" {
			if err := transport.CheckPlaintext(host, o.tls != nil, o.plaintext); err != nil {
				return bad("servers: %v", err)
			}
		}
		all[i] = s
	}
	switch {
	case o.session < 3*time.Millisecond || o.session > 24*time.Hour:
		return bad("session_timeout: %v; take two ticks of the server or more, 15s for example", o.session)
	case !strings.HasPrefix(o.prefix, "/") || strings.HasSuffix(o.prefix, "/") || strings.Contains(o.prefix, "//"):
		return bad("prefix: %q is not the path of a node such as %s", o.prefix, DefaultPrefix)
	case (o.user == "") != o.password.IsZero():
		return bad("digest: it takes both a user and a password")
	case strings.Contains(o.user, ":"):
		return bad("digest: the user has a colon, which ends the name in ZooKeeper's digest scheme")
	case o.dial == nil || o.log == nil:
		return bad("option: a nil dialer or logger; leave the option out for the default")
	}
	return all, nil
}

// logger passes what the library says on. Its texts hold no credentials.
type logger struct{ log *slog.Logger }

func (l logger) Printf(format string, args ...any) {
	l.log.Debug("zklock: the client library says", "text", fmt.Sprintf(format, args...))
}

// Limits implements [driver.Limiter]: a TTL below two thirds of the negotiated
// session timeout would outlive a dead process by more than itself. Longer ones are
// cut to that, which the grant says. Before the first session the timeout that was
// asked for stands in.
func (d *Driver) Limits() driver.Limits {
	if ttl := d.leaseTTL(); ttl > 0 {
		return driver.Limits{MinTTL: ttl}
	}
	return driver.Limits{MinTTL: leaseFor(d.wire.asked)}
}

// sessionTimeout is what the server agreed to; 0 before it has.
func (d *Driver) sessionTimeout() time.Duration {
	_, timeout, _ := d.wire.terms()
	return timeout
}

// leaseTTL is the longest lease that the session carries; 0 before there is one.
func (d *Driver) leaseTTL() time.Duration { return leaseFor(d.sessionTimeout()) }

// contact is when the latest answered request of this session was sent.
func (d *Driver) contact() leaseclock.Instant {
	_, _, contact := d.wire.terms()
	return contact
}
