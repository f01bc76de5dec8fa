package switchwatchtest

import (
	"bytes"
	"context"
	"sync"

	"github.com/solotick/solotick/scheduler/switchwatch"
)

// Memory is a centre in memory, for users' tests. It is safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	value []byte
	next  chan struct{} // closed at the next change
}

var _ switchwatch.Centre = (*Memory)(nil)

// NewMemory makes a centre without a value.
func NewMemory() *Memory { return &Memory{next: make(chan struct{})} }

func (m *Memory) look() ([]byte, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.value), m.next
}

// Load implements switchwatch.Centre.
func (m *Memory) Load(ctx context.Context) ([]byte, error) {
	value, _ := m.look()
	return value, ctx.Err()
}

// Save implements switchwatch.Centre.
func (m *Memory) Save(ctx context.Context, value []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value = bytes.Clone(value)
	close(m.next)
	m.next = make(chan struct{})
	return nil
}

// Watch implements switchwatch.Centre.
func (m *Memory) Watch(ctx context.Context, changed func([]byte)) error {
	for {
		value, next := m.look()
		changed(value)
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
