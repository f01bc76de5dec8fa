package child

import (
	"strings"
	"sync"
)

// Tail keeps the last bytes written to it. It is safe for concurrent use; its
// writes never fail.
type Tail struct {
	limit int
	mu    sync.Mutex
	kept  []byte
	cut   bool
}

// NewTail keeps at most limit bytes.
func NewTail(limit int) *Tail { return &Tail{limit: limit} }

// Write keeps the end of p and of what was written before.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.cut = true
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// Text is what was kept, as valid UTF-8, and whether something was cut off in
// front of it.
func (t *Tail) Text() (text string, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.kept), "\uFFFD"), t.cut
}
