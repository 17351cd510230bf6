package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

const outside = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: se, namespace: shop}
spec:
  hosts: [outside.example.com]
  ports: [{number: 5000, name: tcp, protocol: TCP}, {number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.9}]
`

// Only proxies whose agents answer DNS use allocated addresses: applications of others would not find them. Each gets those of
// its address families, and with the option only if it asks for them.
func TestAllocatedAddressesAreForThoseThatFindThem(t *testing.T) {
	pair := allocate.Pair{V4: netip.MustParseAddr("240.240.1.1"), V6: netip.MustParseAddr("2001:2::1")}
	for _, tt := range []struct {
		name                string
		captured, asks, opt bool
		ips                 string
		want                []string
	}{
		{"no DNS", false, true, false, "10.0.0.1", []string{"0.0.0.0_5000"}},
		{"DNS", true, false, false, "10.0.0.1", []string{"240.240.1.1_5000"}},
		{"IPv6", true, false, false, "fd00::1", []string{"2001:2::1_5000"}},
		{"the option", true, false, true, "10.0.0.1", []string{"0.0.0.0_5000"}},
		{"the option, and asked for", true, true, true, "10.0.0.1", []string{"240.240.1.1_5000"}},
	} {
		w := newWorld()
		if tt.opt {
			w.model.AllocateOnlyForThoseThatAsk()
		}
		w.apply(t, outside)
		w.model.SetAllocated("ServiceEntry/shop/se/outside.example.com", pair)
		n := proxy(t, "sidecar~"+tt.ips+"~client.shop~shop.svc.cluster.local", "app=client")
		n.Metadata.DNSCapture, n.Metadata.DNSAutoAllocate = tt.captured, tt.asks
		n.Metadata.InstanceIPs = []netip.Addr{netip.MustParseAddr(tt.ips)}
		class := w.join(n)
		var got []string
		for k := range w.bytes(class) {
			if k.Kind == compile.Listener && k.Name != mesh.VirtualOutbound && k.Name != "0.0.0.0_80" && k.Name != "::_80" {
				got = append(got, k.Name)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: listeners %q, want %q", tt.name, got, tt.want)
		}
		list, err := mesh.ParseNameTable(w.compiler.NameTables().Want(compile.NamesKey{Scope: class.Scope.ID()}).Body)
		if named := tt.want[0] != "0.0.0.0_5000"; err != nil || (len(list) == 1) != named {
			t.Errorf("%s: names %+v, %v", tt.name, list, err)
		}
	}
}

// Namespaces in which everything is exported to all share one table, and a change of what has no name moves none.
func TestNameTablesAreShared(t *testing.T) {
	w := newWorld()
	w.apply(t, outside+`---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: own, namespace: other, annotations: {networking.istio.io/exportTo: "."}}
spec: {clusterIP: 10.96.1.2, selector: {app: own}, ports: [{name: http, port: 80}]}
`)
	tables := map[string]*compile.NameTable{}
	keys := map[string]compile.NamesKey{}
	for _, ns := range []string{"shop", "third", "other"} {
		n := proxy(t, "sidecar~10.0.0.1~client."+ns+"~"+ns+".svc.cluster.local", "app=client")
		n.Metadata.DNSCapture = true
		keys[ns] = compile.NamesKey{Scope: w.join(n).Scope.ID()}
		tables[ns] = w.compiler.NameTables().Want(keys[ns])
	}
	if tables["shop"] != tables["third"] || tables["shop"] == tables["other"] || tables["shop"].Version == tables["other"].Version {
		t.Errorf("versions %v", tables)
	}
	moves := func(yaml string) (out int) {
		w.apply(t, yaml)
		for _, m := range w.graph.Run() {
			if _, ok := m.Key.(compile.NamesKey); ok {
				out++
			}
		}
		return out
	}
	if n := moves(`
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
status: {phase: Running, podIP: 10.99.0.1}
`); n != 0 {
		t.Errorf("an endpoint moved %d tables", n)
	}
	if n := moves(`
apiVersion: v1
kind: Service
metadata: {name: own, namespace: other, annotations: {networking.istio.io/exportTo: "."}}
spec: {clusterIP: 10.96.1.3, selector: {app: own}, ports: [{name: http, port: 80}]}
`); n != 1 {
		t.Errorf("a Service of one namespace moved %d tables", n)
	}
}
