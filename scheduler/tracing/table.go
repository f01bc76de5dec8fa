package tracing

import "sync"

// table is a map for concurrent use that forgets the oldest entries beyond most; 0
// means no bound.
type table[K comparable, V any] struct {
	most int

	mu      sync.Mutex
	entries map[K]V
	order   []K // of the entries when they were put, those taken since included
}

func (t *table[K, V]) put(k K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	t.entries[k] = v
	if t.most == 0 {
		return
	}
	t.order = append(t.order, k)
	for len(t.order) > t.most {
		delete(t.entries, t.order[0])
		t.order = t.order[1:]
	}
}

func (t *table[K, V]) get(k K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[k]
	return v, ok
}

func (t *table[K, V]) take(k K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[k]
	delete(t.entries, k)
	return v, ok
}
