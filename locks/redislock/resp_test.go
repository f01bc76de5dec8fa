package redislock

import (
	"fmt"
	"reflect"
	"testing"
)

func TestReadReply(t *testing.T) {
	for text, want := range map[string]any{
		"+OK\r\n":                            "OK",
		":-7\r\n":                            int64(-7),
		"$3\r\na\nb\r\n":                     "a\nb",
		"$0\r\n\r\n":                         "",
		"$-1\r\n":                            nil,
		"_\r\n":                              nil,
		"*-1\r\n":                            nil,
		"*0\r\n":                             []any{},
		"-ERR no\r\n":                        serverError("ERR no"),
		"!6\r\nERR no\r\n":                   serverError("ERR no"),
		"%1\r\n+a\r\n:1\r\n":                 []any{"a", int64(1)},
		"*3\r\n:0\r\n$1\r\nx\r\n*1\r\n_\r\n": []any{int64(0), "x", []any{nil}},
	} {
		rest := "+next\r\n"
		val, n, err := readReply([]byte(text+rest), 0)
		if err != nil || n != len(text) || !reflect.DeepEqual(val, want) {
			t.Errorf("%q: %#v, %d bytes, %v; want %#v", text, val, n, err, want)
		}
		for cut := range len(text) {
			if val, n, err := readReply([]byte(text[:cut]), 0); n != 0 || err != nil {
				t.Errorf("%q: %#v, %d bytes, %v from a part", text[:cut], val, n, err)
			}
		}
	}
	deep := ""
	for range 2 * nesting {
		deep += "*1\r\n"
	}
	for _, text := range []string{"x\r\n", "\n", ":x\r\n", "$x\r\n", "HTTP/1.1 400\r\n", deep, "$9223372036854775807\r\nx", "%9223372036854775807\r\n", "*9223372036854775807\r\n"} {
		if _, n, err := readReply([]byte(text), 0); err == nil || n != 0 {
			t.Errorf("%q: %d bytes, %v", text, n, err)
		}
	}
}

func FuzzReadReply(f *testing.F) {
	for _, text := range []string{"*3\r\n:0\r\n$1\r\nx\r\n*1\r\n_\r\n", "$-1\r\n", "*1000000000\r\n", "$99999999999\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		val, n, err := readReply(b, 0)
		if n < 0 || n > len(b) || err != nil && n != 0 {
			t.Fatalf("%d of %d bytes, %v", n, len(b), err)
		}
		if n > 0 {
			again, m, err := readReply(b[:n], 0)
			if m != n || err != nil || fmt.Sprint(again) != fmt.Sprint(val) {
				t.Fatalf("%v and %v", val, again)
			}
		}
	})
}
