package discovery

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/object"
)

// allocator keeps the virtual addresses of hosts that have none of their own: those of ServiceEntries without addresses, and those of
// Services that some cluster lacks. It belongs to the loop's goroutine.
type allocator struct {
	// wants and taken are of each ServiceEntry that has any.
	wants map[object.Key][]allocate.Want
	taken map[object.Key][]netip.Addr
	// services are the clusters of each Service, by namespace and name; those that are headless or have no address are left
	// out. clusters is how many Services each cluster has.
	services map[[2]string]map[string]bool
	clusters map[string]int
	// asked is set if only proxies that ask for addresses use them, so that no status has them.
	asked bool
	// stale is set if the addresses must be computed again.
	stale bool
	// pairs are the current addresses; the map is replaced, never modified. version changes with them.
	pairs   map[string]allocate.Pair
	version uint64
}

func newAllocator(before map[string]allocate.Pair) *allocator {
	return &allocator{
		wants: map[object.Key][]allocate.Want{}, taken: map[object.Key][]netip.Addr{}, services: map[[2]string]map[string]bool{},
		clusters: map[string]int{}, pairs: before,
	}
}

// apply notes a change of an object.
func (a *allocator) apply(c object.Change) {
	switch c.Key.Kind {
	case object.ServiceEntry:
		var wants []allocate.Want
		var taken []netip.Addr
		if c.Object != nil {
			wants, taken = allocate.Wants(c.Object)
		}
		if slices.Equal(wants, a.wants[c.Key]) && slices.Equal(taken, a.taken[c.Key]) {
			return
		}
		a.stale = true
		set(a.wants, c.Key, wants)
		set(a.taken, c.Key, taken)
	case object.Service:
		spec, _ := specOf(c.Object).(*object.ServiceSpec)
		a.service(c.Key, spec != nil && !spec.Headless && len(spec.ClusterIPs) > 0)
	}
}

func specOf(o *object.Object) any {
	if o == nil {
		return nil
	}
	return o.Spec
}

func set[V any](m map[object.Key][]V, k object.Key, list []V) {
	if len(list) == 0 {
		delete(m, k)
		return
	}
	m[k] = list
}

// service notes that a Service with an address exists in a cluster, or not.
func (a *allocator) service(k object.Key, exists bool) {
	name := [2]string{k.Namespace, k.Name}
	if a.services[name][k.Cluster] == exists {
		return
	}
	before := len(a.clusters)
	if exists {
		if a.services[name] == nil {
			a.services[name] = map[string]bool{}
		}
		a.services[name][k.Cluster] = true
		a.clusters[k.Cluster]++
	} else {
		if delete(a.services[name], k.Cluster); len(a.services[name]) == 0 {
			delete(a.services, name)
		}
		if a.clusters[k.Cluster]--; a.clusters[k.Cluster] == 0 {
			delete(a.clusters, k.Cluster)
		}
	}
	a.stale = a.stale || len(a.clusters) > 1 || before > 1
}

// update computes the addresses if something has changed, and gives the model those that differ. changed is called with each
// ServiceEntry that has others.
func (a *allocator) update(m *model.Model, changed func(object.Key)) {
	if !a.stale {
		return
	}
	a.stale = false
	var wants []allocate.Want
	for _, list := range a.wants {
		wants = append(wants, list...)
	}
	if len(a.clusters) > 1 {
		for name, in := range a.services {
			if len(in) < len(a.clusters) {
				wants = append(wants, allocate.Want{Key: model.AllocatedElsewhere(name[0], name[1])})
			}
		}
	}
	taken := map[netip.Addr]bool{}
	for _, list := range a.taken {
		for _, ip := range list {
			taken[ip] = true
		}
	}
	next := allocate.Allocate(wants, a.pairs, taken)
	if maps.Equal(next, a.pairs) && a.version > 0 {
		return
	}
	a.version++
	for key := range a.pairs {
		if _, wanted := next[key]; !wanted {
			m.SetAllocated(key, allocate.Pair{})
		}
	}
	for key, p := range next {
		if a.pairs[key] != p || a.version == 1 {
			m.SetAllocated(key, p)
			if parts := strings.Split(key, "/"); parts[0] == string(object.ServiceEntry) {
				changed(object.Key{Kind: object.ServiceEntry, Namespace: parts[1], Name: parts[2]})
			}
		}
	}
	a.pairs = next
}

// addressesOf returns the addresses that the status of a ServiceEntry shall have, in the order of its hosts.
func (a *allocator) addressesOf(k object.Key) (out []object.HostAddress) {
	if a.asked {
		return nil
	}
	prefix := allocate.Key(k, "")
	for _, w := range a.wants[k] {
		p := a.pairs[w.Key]
		for _, ip := range []netip.Addr{p.V4, p.V6} {
			if ip.IsValid() {
				out = append(out, object.HostAddress{Host: strings.TrimPrefix(w.Key, prefix), Address: ip})
			}
		}
	}
	return out
}
