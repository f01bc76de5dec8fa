// Package zkswitch keeps the setting of the degradation switch in the data of a node
// of ZooKeeper, /solotick/locks/switch:NAMESPACE by default. Watching is a watch of
// that node, over one connection. The watcher's session keeps nothing on the server.
//
// # Privileges
//
// Reading the node; where the switch is thrown also writing it, and creating it below
// the prefix. With a digest user, nodes are made for that user alone (creator all);
// without one, for anybody. Nodes that are there keep their ACL.
//
// # What happens when
//
//	the servers are down, slow, cut off   the last setting stays in force until it ends; the watch begins anew
//	the session expires                   the client makes another, and the watch begins anew, from the value as it is
//	the node is deleted                   as if the setting had been cleared
package zkswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/solotick/solotick/configs/secret"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
)

// DefaultPrefix is the node below which the setting lies.
const DefaultPrefix = "/solotick/locks"

// Options of a Centre.
type Options struct {
	// Prefix is the node below which the setting lies, chroot included. Default
	// [DefaultPrefix].
	Prefix string
	// Username and Password authenticate by the digest scheme. Default nobody.
	Username string
	Password secret.Value
	// Timeout bounds one request. Default 2s.
	Timeout time.Duration
}

// Centre is the configuration centre in ZooKeeper. It is safe for concurrent use.
type Centre struct {
	conn *zk.Conn
	path string
	acl  []zk.ACL
	o    Options

	mu     sync.Mutex
	authed bool
}

var _ switchwatch.Centre = (*Centre)(nil)

// New makes a centre over a connection, which its maker closes. It sends nothing. Nil
// options are the defaults.
func New(conn *zk.Conn, namespace string, o *Options) (*Centre, error) {
	if conn == nil {
		return nil, errors.New("zkswitch: no connection")
	}
	if err := scheduler.ValidateName(namespace); err != nil {
		return nil, err
	}
	c := &Centre{conn: conn}
	if o != nil {
		c.o = *o
	}
	if c.o.Timeout < 0 {
		return nil, fmt.Errorf("zkswitch: Timeout: %v is negative: leave it out for the default", c.o.Timeout)
	}
	c.o.Prefix = cmp.Or(c.o.Prefix, DefaultPrefix)
	if !strings.HasPrefix(c.o.Prefix, "/") || strings.HasSuffix(c.o.Prefix, "/") || strings.Contains(c.o.Prefix, "//") {
		return nil, fmt.Errorf("zkswitch: prefix: %q is not the path of a node such as %s", c.o.Prefix, DefaultPrefix)
	}
	c.path = c.o.Prefix + "/switch:" + namespace
	c.acl = zk.WorldACL(zk.PermAll)
	if c.o.Username != "" {
		c.acl = zk.AuthACL(zk.PermAll)
	}
	c.o.Timeout = cmp.Or(c.o.Timeout, 2*time.Second)
	return c, nil
}

// Path is the node that holds the setting.
func (c *Centre) Path() string { return c.path }

// call bounds a request of the library, which knows no context and waits for a
// connection without an end. A request that is given up ends when the connection does
// something, or is closed.
func call[T any](ctx context.Context, c *Centre, what string, request func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.o.Timeout, fmt.Errorf("no answer within %v", c.o.Timeout))
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		var a answer
		if a.err = c.authenticate(); a.err == nil {
			a.value, a.err = request()
		}
		got <- a
	}()
	var none T
	select {
	case a := <-got:
		if a.err != nil {
			return none, fmt.Errorf("zkswitch: %s %s: %w", what, c.path, a.err)
		}
		return a.value, nil
	case <-ctx.Done():
		return none, fmt.Errorf("zkswitch: %s %s: %w", what, c.path, context.Cause(ctx))
	}
}

// authenticate sends the credentials once; from then on the library sends them on
// every new connection before anything else.
func (c *Centre) authenticate() error {
	if c.o.Username == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.authed {
		return nil
	}
	err := c.conn.AddAuth("digest", []byte(c.o.Username+":"+c.o.Password.Reveal()))
	c.authed = err == nil
	return err
}

// node is the value with the watch on it.
type node struct {
	value []byte
	came  bool // between the two requests of a look
	next  <-chan zk.Event
}

// Load implements [switchwatch.Centre]. What a follower answers may be as old as its
// last word from the leader; what this connection has seen is never unseen.
func (c *Centre) Load(ctx context.Context) ([]byte, error) {
	return call(ctx, c, "read", func() ([]byte, error) {
		value, _, err := c.conn.Get(c.path)
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return value, err
	})
}

// Save implements [switchwatch.Centre].
func (c *Centre) Save(ctx context.Context, value []byte) error {
	_, err := call(ctx, c, "write", func() (struct{}, error) { return struct{}{}, c.save(value) })
	return err
}

func (c *Centre) save(value []byte) error {
	if len(value) == 0 {
		if err := c.conn.Delete(c.path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		return nil
	}
	// Somebody may delete the node between the two.
	for {
		_, err := c.conn.Set(c.path, value, -1)
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		for at := 1; at > 0; {
			next := strings.IndexByte(c.path[at:], '/')
			if next < 0 {
				break
			}
			at += next
			if _, err := c.conn.Create(c.path[:at], nil, 0, c.acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return err
			}
			at++
		}
		if _, err = c.conn.Create(c.path, value, 0, c.acl); !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
}

// Watch implements [switchwatch.Centre].
func (c *Centre) Watch(ctx context.Context, changed func([]byte)) error {
	for {
		n, err := c.look(ctx)
		if err != nil {
			return err
		}
		changed(n.value)
		select {
		case e := <-n.next:
			if e.Err != nil {
				return fmt.Errorf("zkswitch: watch %s: %w", c.path, e.Err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look reads the value and sets a watch; where there is no node, on its coming.
func (c *Centre) look(ctx context.Context) (node, error) {
	for {
		n, err := call(ctx, c, "watch", func() (node, error) {
			value, _, next, err := c.conn.GetW(c.path)
			if !errors.Is(err, zk.ErrNoNode) {
				return node{value: value, next: next}, err
			}
			there, _, next, err := c.conn.ExistsW(c.path)
			return node{came: there, next: next}, err
		})
		if err != nil || !n.came {
			return n, err
		}
	}
}
