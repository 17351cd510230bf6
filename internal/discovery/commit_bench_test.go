package discovery

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/object"
)

// BenchmarkCommitWithProblems commits one changed endpoint in a mesh of 10,000 objects of
// which 500 have an error.
func BenchmarkCommitWithProblems(b *testing.B) {
	log := slog.New(slog.DiscardHandler)
	l := newLoop("cluster.local", compile.Options{}, Lenience{}, openKeeper(b.TempDir(), "", log), log)
	var all object.Batch
	add := func(o object.Object) { all.Changes = append(all.Changes, object.Change{Key: o.Key, Object: &o}) }
	for i := range 9500 {
		add(slice(i, 0))
	}
	for i := range 500 {
		add(object.Object{
			Key:    object.Key{Kind: object.VirtualService, Namespace: "default", Name: fmt.Sprintf("broken-%d", i)},
			Origin: object.Origin{File: "mesh/broken.yaml", Line: 10*i + 1},
			Spec: &networking.VirtualService{Hosts: []string{"web"}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{
				{Destination: &networking.Destination{Host: "web"}, Weight: -1},
			}}}},
		})
	}
	all.Synced = true
	l.commit(all)
	if n := len(l.allProblems()); n < 500 {
		b.Fatalf("%d problems stand, want at least 500", n)
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		o := slice(7, n)
		l.commit(object.Batch{Changes: []object.Change{{Key: o.Key, Object: &o}}})
	}
}

// slice returns an EndpointSlice with one endpoint, whose address depends on the revision.
func slice(i, revision int) object.Object {
	return object.Object{
		Key:    object.Key{Kind: object.EndpointSlice, Namespace: "default", Name: fmt.Sprintf("web-%d", i)},
		Origin: object.Origin{File: "mesh/endpoints.yaml", Line: 10*i + 1},
		Spec: &object.EndpointSliceSpec{Service: fmt.Sprintf("web-%d", i), Ports: []object.SlicePort{{Name: "http", Port: 80, Protocol: "TCP"}},
			Endpoints: []object.SliceEndpoint{{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(revision >> 8), byte(revision), 1})}, Ready: true}}},
	}
}
