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
	rdb redis.UniversalClient

	mu    sync.Mutex
	runID string // of the start that is trusted; empty before it is known
}

// nodeTimeout bounds one request to one node.
func (d *Driver) nodeTimeout(ttl time.Duration) time.Duration {
	if d.timeout > 0 {
		return d.timeout
	}
	return max(50*time.Millisecond, ttl/20)
}

// do runs a script on the node, by its name or where that is unknown by its text.
func (n *node) do(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	val, err := n.rdb.EvalSha(ctx, s.sha, keys, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		val, err = n.rdb.Eval(ctx, s.text, keys, args...).Result()
	}
	return val, err
}

// request is one run of a script.
type request struct {
	keys []string
	args []any
}

// doAll runs a script for each request in one pipeline.
func (n *node) doAll(ctx context.Context, s *script, rs []request) []*redis.Cmd {
	send := func(run func(p redis.Pipeliner, r request) *redis.Cmd, which []int) []*redis.Cmd {
		out := make([]*redis.Cmd, len(which))
		p := n.rdb.Pipeline()
		for i, at := range which {
			out[i] = run(p, rs[at])
		}
		_, _ = p.Exec(ctx) // each has its own error
		return out
	}
	all := make([]int, len(rs))
	for i := range all {
		all[i] = i
	}
	out := send(func(p redis.Pipeliner, r request) *redis.Cmd { return p.EvalSha(ctx, s.sha, r.keys, r.args...) }, all)
	var unknown []int
	for i, cmd := range out {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		for i, cmd := range send(func(p redis.Pipeliner, r request) *redis.Cmd { return p.Eval(ctx, s.text, r.keys, r.args...) }, unknown) {
			out[unknown[i]] = cmd
		}
	}
	return out
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
