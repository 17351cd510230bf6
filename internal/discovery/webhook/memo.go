package webhook

import "sync"

// The bounds of one generation of a Memo.
const (
	memoEntries = 64
	memoBytes   = 1 << 20 // of keys
)

// Memo is an inject.Memo. It has two generations: the younger one takes values until it is full, and becomes the elder
// one then, whose values are forgotten. What is asked for moves to the younger one. The zero value is ready for use.
type Memo struct {
	mu             sync.Mutex
	younger, elder map[string]any
	bytes          int // of the keys of younger
}

// Get implements inject.Memo.
func (m *Memo) Get(key string) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.younger[key]; ok {
		return v
	}
	v, ok := m.elder[key]
	if ok {
		m.put(key, v)
	}
	return v
}

// Put implements inject.Memo.
func (m *Memo) Put(key string, value any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, value)
}

func (m *Memo) put(key string, value any) {
	if len(key) > memoBytes/4 {
		return
	}
	if m.younger == nil || len(m.younger) == memoEntries || m.bytes+len(key) > memoBytes {
		m.elder, m.younger, m.bytes = m.younger, map[string]any{}, 0
	}
	if _, ok := m.younger[key]; !ok {
		m.bytes += len(key)
	}
	m.younger[key] = value
}
