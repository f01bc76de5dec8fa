package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/solotick/solotick/configs"
	"github.com/solotick/solotick/locks/etcdlock"
	"github.com/solotick/solotick/locks/redislock"
	"github.com/solotick/solotick/locks/zklock"
	"github.com/solotick/solotick/scheduler"
	"github.com/solotick/solotick/scheduler/switchwatch"
	"github.com/solotick/solotick/scheduler/switchwatch/etcdswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/redisswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/storeswitch"
	"github.com/solotick/solotick/scheduler/switchwatch/zkswitch"
)

// openCentre makes a centre from its part of the file. It may wait for a server.
type openCentre func(namespace string, decode func(any) error) (c switchwatch.Centre, closer func() error, err error)

// centreBackends are the configuration centres that this program is linked with,
// beside the store.
var centreBackends = map[string]openCentre{
	"etcd": func(ns string, decode func(any) error) (switchwatch.Centre, func() error, error) {
		var cfg etcdlock.PluginConfig
		if err := decode(&cfg); err != nil {
			return nil, nil, usageError(err)
		}
		client, err := cfg.Client()
		if err != nil {
			return nil, nil, err
		}
		c, err := etcdswitch.New(client, ns, &etcdswitch.Options{Prefix: cfg.Prefix})
		return c, client.Close, err
	},
	"redis": func(ns string, decode func(any) error) (switchwatch.Centre, func() error, error) {
		var cfg redislock.PluginConfig
		if err := decode(&cfg); err != nil {
			return nil, nil, usageError(err)
		}
		client, err := cfg.Client()
		if err != nil {
			return nil, nil, err
		}
		c, err := redisswitch.New(client, ns, &redisswitch.Options{Prefix: cfg.Prefix})
		return c, client.Close, err
	},
	"zookeeper": func(ns string, decode func(any) error) (switchwatch.Centre, func() error, error) {
		var cfg zklock.PluginConfig
		if err := decode(&cfg); err != nil {
			return nil, nil, usageError(err)
		}
		conn, err := cfg.Connect()
		if err != nil {
			return nil, nil, err
		}
		c, err := zkswitch.New(conn, ns, &zkswitch.Options{Prefix: cfg.Prefix, Username: cfg.Username, Password: cfg.Password})
		return c, func() error { conn.Close(); return nil }, err
	},
}

func centreDrivers() []string {
	names := make([]string, 0, len(centreBackends))
	for name := range centreBackends {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkCentre is what the loader asks about the centre's own part, which has the form
// of the locks'.
func checkCentre(driver string, decode func(any) error) error { return checkLocks(driver, decode) }

// centre is the configuration centre of the file; nil if it has none. It sends nothing
// yet. With the store as the centre, the store must be open.
func (s *site) centre() (switchwatch.Centre, error) {
	switch driver := s.loaded.Degradation.Centre.Driver; driver {
	case configs.NoCentre:
		return nil, nil
	case configs.CentreInStore:
		return storeswitch.New(s.store, s.namespace(), nil)
	default:
		c := &lateCentre{open: func() (switchwatch.Centre, func() error, error) {
			return centreBackends[driver](s.namespace(), s.loaded.DecodeCentre)
		}}
		s.closed = append(s.closed, c.close)
		return c, nil
	}
}

// lateCentre is opened by the first that asks it something, since that may wait for a
// server or be refused by it.
type lateCentre struct {
	open func() (switchwatch.Centre, func() error, error)

	mu     sync.Mutex
	opened switchwatch.Centre
	closer func() error
	closed bool
}

func (l *lateCentre) get() (switchwatch.Centre, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened != nil {
		return l.opened, nil
	}
	if l.closed {
		return nil, context.Canceled
	}
	c, closer, err := l.open()
	if err != nil {
		if closer != nil {
			_ = closer() // the error that matters is the first
		}
		return nil, fmt.Errorf("degradation.centre: %w", err)
	}
	l.opened, l.closer = c, closer
	return c, nil
}

func (l *lateCentre) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.closer == nil {
		return nil
	}
	return l.closer()
}

func (l *lateCentre) Load(ctx context.Context) ([]byte, error) {
	c, err := l.get()
	if err != nil {
		return nil, err
	}
	return c.Load(ctx)
}

func (l *lateCentre) Save(ctx context.Context, value []byte) error {
	c, err := l.get()
	if err != nil {
		return err
	}
	return c.Save(ctx, value)
}

func (l *lateCentre) Watch(ctx context.Context, changed func([]byte)) error {
	c, err := l.get()
	if err != nil {
		return err
	}
	return c.Watch(ctx, changed)
}

// centreTimeout bounds what a command asks of the centre.
const centreTimeout = 5 * time.Second

// watchSwitch keeps the switch in step with the centre until the function that it
// returns is called.
func (w *worker) watchSwitch(ctx context.Context, s *scheduler.Scheduler) (stop func(), err error) {
	c, err := w.site.centre()
	if c == nil || err != nil {
		return func() {}, err
	}
	watcher, err := switchwatch.New(c, s.Switch(), &switchwatch.Options{Logger: w.log})
	if err != nil {
		return func() {}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watcher.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}
