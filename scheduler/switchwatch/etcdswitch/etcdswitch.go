// Package etcdswitch keeps the setting of the degradation switch in a key of etcd,
// solotick/locks/switch:NAMESPACE by default: beside the locks, so that what may be
// done there may be done here. Watching is a watch of that key.
//
// # Privileges
//
// Reading the key, and writing it where the switch is thrown:
//
//	etcdctl role grant-permission worker read solotick/locks/switch:shop
//	etcdctl role grant-permission operator readwrite solotick/locks/switch:shop
//
// # What happens when
//
//	etcd is down, slow, has no leader   the last setting stays in force until it ends; the watch begins anew
//	a member is cut off                 its watches end (require-leader), and begin at another
//	history is compacted                the watch begins anew, from the value as it is
package etcdswitch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
)

// DefaultPrefix begins the key.
const DefaultPrefix = "solotick/locks"

// Options of a Centre.
type Options struct {
	// Prefix begins the key, before a slash. Default [DefaultPrefix].
	Prefix string
}

// Centre is the configuration centre in etcd. It is safe for concurrent use.
type Centre struct {
	client *clientv3.Client
	key    string
}

var _ switchwatch.Centre = (*Centre)(nil)

// New makes a centre over a client, which its maker closes. It sends nothing. Nil
// options are the defaults. Of the client the time after which a silent connection is
// given up matters (DialKeepAliveTime).
func New(client *clientv3.Client, namespace string, o *Options) (*Centre, error) {
	if client == nil {
		return nil, errors.New("etcdswitch: no client")
	}
	if err := scheduler.ValidateName(namespace); err != nil {
		return nil, err
	}
	if o == nil {
		o = new(Options)
	}
	return &Centre{client: client, key: strings.TrimSuffix(cmp.Or(o.Prefix, DefaultPrefix), "/") + "/switch:" + namespace}, nil
}

// Key is the key that holds the setting.
func (c *Centre) Key() string { return c.key }

// Load implements [switchwatch.Centre].
func (c *Centre) Load(ctx context.Context) ([]byte, error) {
	value, _, err := c.load(ctx)
	return value, err
}

func (c *Centre) load(ctx context.Context) (value []byte, revision int64, err error) {
	resp, err := c.client.Get(clientv3.WithRequireLeader(ctx), c.key)
	if err != nil {
		return nil, 0, fmt.Errorf("etcdswitch: read %s: %w", c.key, err)
	}
	if len(resp.Kvs) > 0 {
		value = resp.Kvs[0].Value
	}
	return value, resp.Header.Revision, nil
}

// Save implements [switchwatch.Centre].
func (c *Centre) Save(ctx context.Context, value []byte) (err error) {
	ctx = clientv3.WithRequireLeader(ctx)
	if len(value) == 0 {
		_, err = c.client.Delete(ctx, c.key)
	} else {
		_, err = c.client.Put(ctx, c.key, string(value))
	}
	if err != nil {
		return fmt.Errorf("etcdswitch: write %s: %w", c.key, err)
	}
	return nil
}

// Watch implements [switchwatch.Centre].
func (c *Centre) Watch(ctx context.Context, changed func([]byte)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	value, revision, err := c.load(ctx)
	if err != nil {
		return err
	}
	changed(value)
	for resp := range c.client.Watch(ctx, c.key, clientv3.WithRev(revision+1)) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("etcdswitch: watch %s: %w", c.key, err)
		}
		if n := len(resp.Events); n > 0 {
			changed(resp.Events[n-1].Kv.Value) // none of a deletion
		}
	}
	return context.Cause(ctx)
}
