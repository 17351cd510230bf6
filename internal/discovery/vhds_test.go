package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// changedResources are the resources that differ between two views, as TYPE NAME, with how many bytes the new ones
// have.
func changedResources(before, after *xds.View) (names []string, size int) {
	for _, t := range xds.Types() {
		old, cur := before.Of(t), after.Of(t)
		for r := range cur.All() {
			if o := old.Get(r.Name); o == nil || o.Version != r.Version {
				names, size = append(names, fmt.Sprint(t, " ", r.Name)), size+r.Size()
			}
		}
		for r := range old.All() {
			if cur.Get(r.Name) == nil {
				names = append(names, fmt.Sprint("-", t, " ", r.Name))
			}
		}
	}
	return names, size
}

// One VirtualService moves one virtual host of a proxy that takes them by VHDS, and the route configuration of one
// that does not. A service moves its own virtual host.
func TestAVirtualServiceMovesOneVirtualHost(t *testing.T) {
	p := newPublished()
	p.apply(t, twoWorkloads)
	for i := range 50 {
		p.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.97.0.%[1]d, ports: [{name: http, port: 9090}]}\n", i))
	}
	join := func(id string, virtualHosts bool) *xds.LatestView {
		n := mesh.Node{NodeID: mesh.NodeID{Role: mesh.Sidecar, ID: id, Domain: "shop.svc.cluster.local", IP: netip.MustParseAddr("10.1.0.9")}}
		n.Metadata.VirtualHosts = virtualHosts
		return p.join(id, model.KeyOf(n, ""))
	}
	separate, whole := join("separate", true), join("whole", false)
	const rule = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: b, namespace: shop}\nspec: {hosts: [b], http: [{timeout: %ds, route: [{destination: {host: b}}]}]}\n"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: new, namespace: shop}\nspec: {clusterIP: 10.97.1.1, ports: [{name: http, port: 9090}]}\n"
	for _, s := range []struct {
		what, yaml      string
		gone            bool
		separate, whole []string
	}{
		{"a VirtualService", fmt.Sprintf(rule, 3), false, []string{"VHDS 9090/b.shop.svc.cluster.local:9090"}, []string{"RDS 9090"}},
		{"its change", fmt.Sprintf(rule, 4), false, []string{"VHDS 9090/b.shop.svc.cluster.local:9090"}, []string{"RDS 9090"}},
		{
			"a service", service, false,
			[]string{"CDS outbound|9090||new.shop.svc.cluster.local", "EDS outbound|9090||new.shop.svc.cluster.local", "VHDS 9090/new.shop.svc.cluster.local:9090"},
			[]string{"CDS outbound|9090||new.shop.svc.cluster.local", "EDS outbound|9090||new.shop.svc.cluster.local", "RDS 9090"},
		},
		{
			"its end", service, true,
			[]string{"-CDS outbound|9090||new.shop.svc.cluster.local", "-EDS outbound|9090||new.shop.svc.cluster.local", "-VHDS 9090/new.shop.svc.cluster.local:9090"},
			[]string{"-CDS outbound|9090||new.shop.svc.cluster.local", "-EDS outbound|9090||new.shop.svc.cluster.local", "RDS 9090"},
		},
	} {
		separateBefore, _ := separate.Load()
		wholeBefore, _ := whole.Load()
		changes := changesOf(t, s.yaml)
		if s.gone {
			changes[0].Object = nil
		}
		p.commit(changes)
		separateNow, _ := separate.Load()
		wholeNow, _ := whole.Load()
		names, size := changedResources(separateBefore, separateNow)
		if !slices.Equal(names, s.separate) {
			t.Errorf("%s: %q changed, want %q", s.what, names, s.separate)
		}
		wholeNames, wholeSize := changedResources(wholeBefore, wholeNow)
		if !slices.Equal(wholeNames, s.whole) {
			t.Errorf("%s: without VHDS %q changed, want %q", s.what, wholeNames, s.whole)
		}
		if size*10 > wholeSize {
			t.Errorf("%s: %d bytes changed, %d without VHDS: want less than a tenth", s.what, size, wholeSize)
		}
		if separateNow.Of(xds.RDS) != separateBefore.Of(xds.RDS) {
			t.Errorf("%s: the set of route configurations is another", s.what)
		}
	}
}
