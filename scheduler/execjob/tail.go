package execjob

import (
	"bytes"
	"strings"
	"sync"
)

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	most int
	buf  []byte
	cut  bool
}

// Write never fails, so that a command is never stopped by its own output.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-t.most):]...)
	t.cut = t.cut || len(p) > t.most
	// Moved only now and then: a copy per write would make long outputs quadratic.
	if len(t.buf) > 2*t.most {
		t.cut = true
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.most:]...)
	}
	return len(p), nil
}

// bytes is what was written last, from the beginning of a line if some is missing.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	if len(b) > t.most {
		b, t.cut = b[len(b)-t.most:], true
	}
	if t.cut {
		for i, c := range b {
			if c == '\n' && i+1 < len(b) {
				return append([]byte(nil), b[i+1:]...)
			}
		}
	}
	return append([]byte(nil), b...)
}

// lastLine is the last line that is not blank, cut to what fits an error.
func (t *tail) lastLine() string {
	const most = 200
	b := bytes.TrimSpace(t.bytes())
	b = bytes.TrimSpace(b[bytes.LastIndexByte(b, '\n')+1:])
	return strings.ToValidUTF8(string(b[:min(len(b), most)]), "")
}
