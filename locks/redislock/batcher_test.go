package redislock

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A login that fails is the error of every command of a pipeline: none of them has an
// answer that looks like one.
func TestFailedLoginIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, strings.Repeat("-WRONGPASS invalid username-password pair\r\n", 4))
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	rdb := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1, DialerRetries: 1, Username: "shop", Password: "wrong"})
	t.Cleanup(func() { _ = rdb.Close() })
	b := newBatcher(rdb)
	t.Cleanup(b.close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var commands []*command
	for range 3 {
		commands = append(commands, &command{script: newScripts(false).look, keys: []string{"k"}})
	}
	if err := b.run(ctx, commands...); err != nil {
		t.Fatal(err)
	}
	for i, c := range commands {
		if !redis.HasErrorPrefix(c.err, "WRONGPASS") {
			t.Errorf("command %d: %v, %v; want that of the login", i, c.val, c.err)
		}
	}
}
