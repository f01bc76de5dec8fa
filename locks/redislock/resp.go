package redislock

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// serverError is an error that the server answered.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError makes it a redis.Error.
func (serverError) RedisError() {}

var errProtocol = errors.New("the server's answer is not of its protocol")

// appendText appends a bulk string of the protocol.
func appendText[T string | []byte](b []byte, parts ...T) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, '\r', '\n')
	for _, p := range parts {
		b = append(b, p...)
	}
	return append(b, '\r', '\n')
}

// nesting is how deep the arrays of an answer may lie in each other.
const nesting = 8

// longest is the longest text that a server has, and more than any list.
const longest = 512 << 20

// readReply reads one answer at the beginning of b: nil, an int64, a string, a
// serverError, or a list of these. It has none (n is 0) where more bytes are needed.
func readReply(b []byte, depth int) (val any, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return nil, 0, nil
	}
	if end < 2 || b[end-1] != '\r' || depth > nesting {
		return nil, 0, errProtocol
	}
	line, n := b[1:end-1], end+1
	switch b[0] {
	case '+':
		return string(line), n, nil
	case '-':
		return serverError(line), n, nil
	case '_':
		return nil, n, nil
	case '#':
		return string(line), n, nil
	}
	size, perr := strconv.ParseInt(string(line), 10, 64)
	if perr != nil {
		return nil, 0, fmt.Errorf("%w: %q", errProtocol, b[:end])
	}
	switch b[0] {
	case ':':
		return size, n, nil
	}
	if size > longest {
		return nil, 0, fmt.Errorf("%w: %q", errProtocol, b[:end])
	}
	switch b[0] {
	case '$', '=', '!':
		if size < 0 {
			return nil, n, nil
		}
		if int64(len(b)) < int64(n)+size+2 {
			return nil, 0, nil
		}
		text := string(b[n : n+int(size)])
		n += int(size) + 2
		if b[0] == '!' {
			return serverError(text), n, nil
		}
		return text, n, nil
	case '*', '~', '>', '%':
		if size < 0 {
			return nil, n, nil
		}
		if b[0] == '%' {
			size *= 2
		}
		list := make([]any, 0, min(size, 1024))
		for range size {
			one, used, err := readReply(b[n:], depth+1)
			if used == 0 || err != nil {
				return nil, 0, err
			}
			list, n = append(list, one), n+used
		}
		return list, n, nil
	}
	return nil, 0, fmt.Errorf("%w: %q", errProtocol, b[:end])
}
