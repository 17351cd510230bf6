package discovery

import (
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/object"
)

// proxyConfigs are the ProxyConfig objects in force, for the injector. Only the loop's goroutine uses it.
type proxyConfigs struct {
	objects map[string]inject.ProxyConfig // by namespace and name
	changed bool
}

// apply takes note of a change of any object. Those of remote clusters are for the Pods there, which other injectors
// inject.
func (p *proxyConfigs) apply(c object.Change) {
	if c.Key.Kind != object.ProxyConfig || c.Key.Cluster != "" {
		return
	}
	if p.changed = true; p.objects == nil {
		p.objects = map[string]inject.ProxyConfig{}
	}
	name := c.Key.Namespace + "/" + c.Key.Name
	if c.Object == nil {
		delete(p.objects, name)
		return
	}
	p.objects[name] = inject.ProxyConfigOf(c.Object)
}

// take returns all objects, and whether they have changed since the last call.
func (p *proxyConfigs) take() (*inject.ProxyConfigs, bool) {
	if !p.changed {
		return nil, false
	}
	p.changed = false
	all := make([]inject.ProxyConfig, 0, len(p.objects))
	for _, o := range p.objects {
		all = append(all, o)
	}
	return inject.NewProxyConfigs(all), true
}
