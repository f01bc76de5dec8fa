package redlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/solotick/solotick/internal/mutation"
	"github.com/solotick/solotick/locks/driver"
)

// node is one of the masters.
type node struct {
	rdb  redis.UniversalClient
	pipe *pipe // what the scripts go through

	mu    sync.Mutex
	runID string // of the start that is trusted; empty before it is known
}

// nodeTimeout bounds one request to one node.
func (d *Driver) nodeTimeout(ttl time.Duration) time.Duration {
	if d.timeout > 0 {
		return d.timeout
	}
	return max(minNodeTimeout, ttl/20)
}

const minNodeTimeout = 50 * time.Millisecond

// do runs a script on the node.
func (n *node) do(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	answers, err := n.pipe.run(ctx, s, request{keys, args})
	if err != nil {
		return nil, err
	}
	return answers[0].Result()
}

// vote is a node's answer to an acquire.
type vote struct {
	at      int // which node
	granted bool
	fence   int64
	held    *driver.Holder
	err     error // no answer, or one that is no grant
}

// errYoung is the answer of a node that has started lately.
type errYoung struct{ maxTTL time.Duration }

func (e errYoung) Error() string {
	return fmt.Sprintf("it has started within the longest TTL (%v) and may have forgotten a grant", e.maxTTL)
}

func (d *Driver) ask(ctx context.Context, at int, r driver.Request) vote {
	n := d.nodes[at]
	n.mu.Lock()
	known := n.runID
	n.mu.Unlock()
	if known == "" && d.trust {
		known = "*"
	}
	youth := d.maxTTL + time.Second // uptime is told in whole seconds
	if mutation.On("redlock-restart-rule") {
		youth = 0
	}
	val, err := n.do(ctx, acquireScript, d.keys(r.Key, r.Token), r.Token.String(), r.TTL.Milliseconds(), r.Label, youth.Milliseconds(), known)
	v := vote{at: at, err: err}
	if err != nil {
		return v
	}
	a, _ := val.([]any)
	if len(a) < 2 {
		v.err = fmt.Errorf("an answer that is none: %v", val)
		return v
	}
	id, _ := a[1].(string)
	switch {
	case a[0] == int64(1) && len(a) == 3:
		v.granted = true
		_, v.err = fmt.Sscan(fmt.Sprint(a[2]), &v.fence)
	case a[0] == int64(0) && len(a) == 4:
		text, _ := a[2].(string)
		ttl, _ := a[3].(int64)
		h := parse(r.Key, text, ttl)
		v.held = &h
		if known != "*" {
			return v // says nothing of whether the node may be trusted
		}
	case a[0] == int64(2):
		v.err = errYoung{d.maxTTL}
		return v
	default:
		v.err = errTakenBack
		return v
	}
	n.mu.Lock()
	n.runID = id
	n.mu.Unlock()
	return v
}
