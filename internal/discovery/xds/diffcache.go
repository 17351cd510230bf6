package xds

import "sync"

// maxDiffs bounds the differences that are remembered. More than a few are wanted only
// while classes change at the same time; a forgotten one is computed again.
const maxDiffs = 128

// diffCache shares differences between streams that go from the same set of resources to the
// same other one. Any goroutine may use it; the zero diffCache is ready.
type diffCache struct {
	mu   sync.Mutex
	seen map[[2]*TypeView]*Delta
}

func (s *diffCache) diff(old, cur *TypeView) *Delta {
	if old == cur {
		return &Delta{Union: cur}
	}
	key := [2]*TypeView{old, cur}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.seen[key]; d != nil {
		return d
	}
	if s.seen == nil || len(s.seen) >= maxDiffs {
		s.seen = make(map[[2]*TypeView]*Delta, maxDiffs)
	}
	d := Diff(old, cur)
	s.seen[key] = d
	return d
}
