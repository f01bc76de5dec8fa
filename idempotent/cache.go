package idempotent

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/solotick/solotick/internal/backoff"
	"github.com/solotick/solotick/store"
)

// Cache may answer repeats of Once in place of the database. Nothing depends on
// it: it may lose what it was given, answer late, give a lock to two callers or to
// nobody. Its methods are called from many goroutines, and each within CacheConfig's
// Timeout.
type Cache interface {
	// Get is what Put kept under the key; nil for nothing.
	Get(ctx context.Context, key string) ([]byte, error)
	// Put keeps a value for ttl.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// TryLock takes the key's lock for at most ttl, if it is free, and answers how to
	// give it back; nil if it is taken.
	TryLock(ctx context.Context, key string, ttl time.Duration) (unlock func(ctx context.Context), err error)
}

// CacheConfig is how Once uses a cache.
type CacheConfig struct {
	// Cache is asked. Required.
	Cache Cache
	// Secret signs what is put into the cache, at least 16 bytes and the same in every
	// process: an answer that none of them gave is not believed. Required.
	Secret []byte
	// TTL is how long results stay. Default 24h. Keep it below the retention of keys.
	TTL time.Duration
	// Timeout bounds one call of the cache. Default 50ms.
	Timeout time.Duration
	// Patience is how long a call waits for the result of the one that has the short
	// lock before it asks the database itself. Default 100ms.
	Patience time.Duration
}

// WithCache asks a cache before the database: results of calls that succeeded are
// kept there, so that a repeat costs no query; and of many first calls of a key at
// once one goes to the database, and the others look into the cache for a moment
// before they do. The database decides: only it lets fn run, and what the cache
// answers is believed only if it bears the signature of a process that had read it
// from a committed record, for this key and fingerprint. Failures are not cached.
func WithCache(c CacheConfig) Option {
	return func(o *options) {
		o.cache = &cached{CacheConfig: c}
		if c.TTL <= 0 {
			o.cache.TTL = 24 * time.Hour
		}
		if c.Timeout <= 0 {
			o.cache.Timeout = 50 * time.Millisecond
		}
		if c.Patience <= 0 {
			o.cache.Patience = 100 * time.Millisecond
		}
	}
}

// cached is the cache of one call; nil for none.
type cached struct {
	CacheConfig
	unlock func(context.Context)
}

func (k *cached) check() error {
	switch {
	case k == nil:
		return nil
	case k.Cache == nil:
		return errors.New("idempotent: CacheConfig.Cache is missing: give one, or leave WithCache out")
	case len(k.Secret) < 16:
		return fmt.Errorf("idempotent: CacheConfig.Secret has %d bytes: use 16 or more random ones", len(k.Secret))
	}
	return nil
}

// lockTTL is how long the short lock outlives a process that died with it.
const lockTTL = 2 * time.Second

// answer is a result that the cache has. If there is none, the call has the short
// lock, or has waited for the one that has.
func (k *cached) answer(ctx context.Context, c *call) (Reply[[]byte], bool) {
	if k == nil {
		return Reply[[]byte]{}, false
	}
	give := time.Now().Add(k.Patience)
	for n := 0; ; n++ {
		if r, ok := k.get(ctx, c); ok {
			return r, true
		}
		if n == 0 {
			var failed bool
			if k.unlock, failed = k.lock(ctx, c); failed {
				return Reply[[]byte]{}, false
			}
			continue // look again: the one that had the lock may be through
		}
		if k.unlock != nil || time.Now().After(give) || backoff.Wait(ctx, cachePolls.Delay(n)) != nil {
			return Reply[[]byte]{}, false
		}
	}
}

var cachePolls = backoff.Policy{Base: 5 * time.Millisecond, Max: 25 * time.Millisecond}

func (k *cached) lock(ctx context.Context, c *call) (unlock func(context.Context), failed bool) {
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	unlock, err := k.Cache.TryLock(ctx, c.cacheKey()+":lock", lockTTL)
	return unlock, err != nil
}

// leave gives the short lock back.
func (k *cached) leave(ctx context.Context, _ *call) {
	if k == nil || k.unlock == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.Timeout)
	defer cancel()
	k.unlock(ctx)
}

func (c *call) cacheKey() string {
	return "once:" + store.HashOf("cache", c.key.Namespace, c.key.run().Hash().String()).String()
}

// entry is a result in the cache, behind its signature.
type entry struct {
	Key     string       `json:"key"`
	Print   store.Hash   `json:"print"`
	ID      store.ID     `json:"id"`
	Attempt int          `json:"attempt"`
	Until   store.Millis `json:"until"`
	Result  []byte       `json:"result"` // sealed
}

func (k *cached) sign(text []byte) []byte {
	m := hmac.New(sha256.New, k.Secret)
	m.Write([]byte("solotick/once/v1\n"))
	m.Write(text)
	return m.Sum(nil)
}

func (k *cached) get(ctx context.Context, c *call) (Reply[[]byte], bool) {
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	value, err := k.Cache.Get(ctx, c.cacheKey())
	if err != nil || len(value) < sha256.Size {
		return Reply[[]byte]{}, false
	}
	sum, text := value[:sha256.Size], value[sha256.Size:]
	var e entry
	if !hmac.Equal(sum, k.sign(text)) || json.Unmarshal(text, &e) != nil ||
		e.Key != c.cacheKey() || e.Print != c.fingerprint.hash() || e.Until < store.MillisOf(time.Now()) {
		return Reply[[]byte]{}, false
	}
	payload, err := unseal(c.codec, e.Result)
	return Reply[[]byte]{Value: payload, Replayed: true, ID: e.ID, Attempt: e.Attempt}, err == nil
}

// keep puts a committed result into the cache. What becomes of it is the cache's
// affair.
func (k *cached) keep(ctx context.Context, c *call, e store.Execution, result []byte) {
	if k == nil || len(result) == 0 {
		return
	}
	text, err := json.Marshal(entry{
		Key: c.cacheKey(), Print: c.fingerprint.hash(), ID: e.ID, Attempt: e.Attempt,
		Until: store.MillisOf(time.Now().Add(k.TTL)), Result: result,
	})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.Timeout)
	defer cancel()
	_ = k.Cache.Put(ctx, c.cacheKey(), append(k.sign(text), text...), k.TTL)
}
