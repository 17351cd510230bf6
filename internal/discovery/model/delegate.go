package model

import (
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/delegate"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// rootBucket is the bucket of the VirtualServices that delegate to the one with that key.
func rootBucket(key string) string { return "root of:" + key }

// Routes returns the spec of a VirtualService, with the http routes of its delegates in place of the routes that name them; nil for nil.
// [control-plane 1.7.26]
func (m *Model) Routes(r *incr.Reader, v *VirtualService) *networking.VirtualService {
	if v == nil || !delegate.Any(v.Spec) {
		return v.GetSpec()
	}
	return m.rules.merged.Of(r, v.Key())
}

// merged returns the spec of the VirtualService with that key as Routes does, nil if there is none.
func (m *Model) merged(r *incr.Reader, key string) *networking.VirtualService {
	v, ok := incr.Get(r, m.tables.virtuals, key)
	if !ok {
		return nil
	}
	return m.mergedSpec(r, v)
}

func (m *Model) mergedSpec(r *incr.Reader, v *VirtualService) *networking.VirtualService {
	http, _ := delegate.Merge(v.Namespace, v.Spec, delegate.Mesh{
		Domain: m.domain, ExportTo: m.Mesh(r).DefaultVirtualServiceExportTo,
		Find: func(namespace, name string) *networking.VirtualService {
			d, _ := incr.Get(r, m.tables.virtuals, Row{Namespace: namespace, Name: name}.Key())
			return d.GetSpec()
		},
	})
	out := proto.CloneOf(v.Spec)
	out.Http = http
	return out
}

// roots returns a VirtualService, or for a delegate those that delegate to it.
func (m *Model) roots(r *incr.Reader, v *VirtualService) (out []*VirtualService) {
	if len(v.Hosts) > 0 {
		return []*VirtualService{v}
	}
	for _, root := range incr.In(r, m.tables.virtuals, rootBucket(v.Key())) {
		out = append(out, root)
	}
	return out
}
