package xds

import (
	"runtime"
	"sync"
	"weak"
)

// Pool stores equal resources once. A resource that no view holds any more is
// forgotten. Any goroutine may use it; the zero Pool is ready.
type Pool struct {
	mu   sync.Mutex
	seen map[poolKey]weak.Pointer[Resource]
}

type poolKey struct {
	typ           Type
	name, version string
}

// Intern returns the pool's resource that equals r, which is r itself if there is none.
func (p *Pool) Intern(r *Resource) *Resource {
	key := poolKey{r.Type, r.Name, r.Version}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.seen[key].Value(); old != nil && old.equal(r) {
		return old
	}
	if p.seen == nil {
		p.seen = map[poolKey]weak.Pointer[Resource]{}
	}
	w := weak.Make(r)
	p.seen[key] = w
	runtime.AddCleanup(r, func(w weak.Pointer[Resource]) { p.forget(key, w) }, w)
	return r
}

func (p *Pool) forget(key poolKey, w weak.Pointer[Resource]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[key] == w {
		delete(p.seen, key)
	}
}

// Len is the number of different resources that are in use.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.seen)
}
