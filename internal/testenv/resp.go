//go:build linux

package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// redisError is an error that the server answered.
type redisError string

func (e redisError) Error() string { return string(e) }

// redisDo sends the commands, whose words are separated by blanks, over one
// connection and returns the last answer: a string, an int64, nil or a []any. A
// whole client would make every test that uses a server link it.
func redisDo(ctx context.Context, addr string, commands ...string) (any, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	in := bufio.NewReader(c)
	var answer any
	for _, command := range commands {
		if _, err := io.WriteString(c, command+"\r\n"); err != nil {
			return nil, err
		}
		if answer, err = readAnswer(in); err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
	}
	return answer, nil
}

func readAnswer(in *bufio.Reader) (any, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("empty answer")
	}
	rest := line[1:]
	switch line[0] {
	case '+':
		return rest, nil
	case '-':
		return nil, redisError(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("answer %q: %w", line, err)
	}
	switch {
	case line[0] == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case line[0] == '$':
		text := make([]byte, n+2)
		_, err := io.ReadFull(in, text)
		return string(text[:n]), err
	case line[0] == '*':
		list := make([]any, n)
		for i := range list {
			if list[i], err = readAnswer(in); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, fmt.Errorf("answer %q is not understood", line)
}
