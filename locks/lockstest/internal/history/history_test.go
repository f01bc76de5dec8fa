package history_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/solotick/solotick/locks/driver"
	"github.com/solotick/solotick/locks/lockstest/internal/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// op is an operation of a TTL of 10 s that was called and answered at these seconds.
func op(kind history.Kind, token byte, out history.Outcome, fence int64, call, answer int) history.Op {
	return history.Op{
		Kind: kind, Key: "k", Token: driver.Token{token}, TTL: 10 * time.Second, Outcome: out, Fence: fence,
		From: time.Duration(call) * time.Second, Returned: time.Duration(answer) * time.Second,
		Call: int64(call) * 10, Return: int64(answer)*10 + 1,
	}
}

func TestCheck(t *testing.T) {
	const a, b, c = 1, 2, 3
	acquire, renew, release := history.Acquire, history.Renew, history.Release
	for name, h := range map[string]struct {
		ops []history.Op
		bad bool
	}{
		"hand-over": {ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.Held, 0, 1, 2), op(renew, a, history.OK, 1, 3, 4),
			op(release, a, history.OK, 1, 5, 6), op(acquire, b, history.OK, 2, 7, 8),
		}},
		"takeover after the TTL": {ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.OK, 2, 9, 10),
			op(renew, a, history.NotOurs, 1, 11, 12), op(release, a, history.Other, 1, 13, 14),
		}},
		"a wait that outlasts the holder": {ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.OK, 2, 2, 6), op(release, a, history.OK, 1, 4, 5),
		}},
		"an acquire of unknown outcome, applied and settled": {ops: []history.Op{
			op(acquire, a, history.Unknown, 0, 0, 1), op(acquire, b, history.Held, 0, 2, 3),
			op(release, a, history.OK, 0, 4, 5), op(acquire, b, history.OK, 2, 6, 7),
		}},
		"an acquire of unknown outcome, not applied": {ops: []history.Op{
			op(acquire, a, history.Unknown, 0, 0, 1), op(acquire, b, history.OK, 1, 2, 3), op(release, a, history.Other, 0, 4, 5),
		}},
		"an acquire repeated with its token": {ops: []history.Op{
			op(acquire, a, history.Unknown, 0, 0, 1), op(acquire, a, history.OK, 1, 2, 3), op(renew, a, history.OK, 1, 11, 12),
		}},
		"a release of unknown outcome": {ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(release, a, history.Unknown, 1, 2, 3), op(acquire, b, history.OK, 2, 4, 5),
			op(release, a, history.Other, 1, 6, 7),
		}},

		"two holders": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.OK, 2, 5, 6),
		}},
		"two holders, the first renewed": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(renew, a, history.OK, 1, 8, 9), op(acquire, b, history.OK, 2, 16, 17),
		}},
		"two grants at once": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 5), op(acquire, b, history.OK, 2, 1, 4),
		}},
		"a fence twice": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(release, a, history.OK, 1, 2, 3), op(acquire, b, history.OK, 1, 4, 5),
		}},
		"a fence twice, over a grant of unknown fence": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(release, a, history.OK, 1, 2, 3),
			op(acquire, b, history.Unknown, 0, 4, 5), op(acquire, b, history.OK, 1, 6, 7),
		}},
		"a new fence for the same grant": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, a, history.OK, 2, 2, 3),
		}},
		"release by a stranger": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(release, b, history.OK, 0, 2, 3),
		}},
		"a release that frees the next holder": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.OK, 2, 12, 13), op(release, a, history.OK, 1, 14, 15),
		}},
		"renewal of what another holds": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(acquire, b, history.OK, 2, 12, 13), op(renew, a, history.OK, 1, 14, 15),
		}},
		"a healthy holder is told that it is none": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(renew, a, history.NotOurs, 1, 3, 4),
		}},
		"held by nobody": {bad: true, ops: []history.Op{
			op(acquire, a, history.OK, 1, 0, 1), op(release, a, history.OK, 1, 2, 3), op(acquire, b, history.Held, 0, 4, 5),
			op(acquire, c, history.OK, 2, 6, 7),
		}},
	} {
		err := history.Check(h.ops, time.Minute)
		if (err != nil) != h.bad {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "acquire k by") {
			t.Errorf("%s: the history is not shown: %v", name, err)
		}
	}
}
