package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// dual is a Service of both families, db a headless one, with two Pods, of which the second has IPv6 only.
const dual = `apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIPs: [10.96.0.7, "fd00:1::7"], ipFamilies: [IPv4, IPv6], selector: {app: api}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 90, targetPort: 9090}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, ipFamilies: [IPv6, IPv4], selector: {app: api}, ports: [{name: tcp, port: 6379}]}
---
apiVersion: v1
kind: Pod
metadata: {name: api-0, namespace: shop, labels: {app: api}}
status: {podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: api-1, namespace: shop, labels: {app: api}}
status: {podIPs: [{ip: "fd00::2"}]}
---
apiVersion: v1
kind: Service
metadata: {name: six, namespace: shop}
spec: {clusterIP: "fd00:1::6", selector: {app: six}, ports: [{name: tcp, port: 90}]}
---
apiVersion: v1
kind: Pod
metadata: {name: six-0, namespace: shop, labels: {app: six}}
status: {podIPs: [{ip: "fd00::6"}]}
`

// endpointsAt returns "address+others priority" for each endpoint of a cluster, in order.
func endpointsAt(t *testing.T, w *world, class mesh.Class, name string) (out []string) {
	t.Helper()
	for k, body := range w.bytes(class) {
		if k.Kind != compile.Endpoints || k.Name != name {
			continue
		}
		var la endpointv3.ClusterLoadAssignment
		if err := proto.Unmarshal(body, &la); err != nil {
			t.Fatal(err)
		}
		for _, l := range la.Endpoints {
			for _, e := range l.LbEndpoints {
				all := []string{e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()}
				for _, a := range e.GetEndpoint().GetAdditionalAddresses() {
					all = append(all, a.GetAddress().GetSocketAddress().GetAddress())
				}
				out = append(out, fmt.Sprintf("%s %d", strings.Join(all, "+"), l.Priority))
			}
		}
	}
	slices.Sort(out)
	return out
}

// listeners returns the names of the listeners of a class that begin with an address of a service, sorted.
func serviceListeners(w *world, class mesh.Class) (out []string) {
	for k := range w.bytes(class) {
		if k.Kind == compile.Listener && strings.Contains(k.Name, "_") && !strings.HasPrefix(k.Name, "0.0.0.0") && !strings.HasPrefix(k.Name, "::_") {
			out = append(out, k.Name)
		}
	}
	slices.Sort(out)
	return out
}

// A proxy gets the addresses of its own families: one with both gets both of each endpoint, one with IPv4 none of IPv6. What it
// cannot reach at all stays as it is, so that the error of its connections says why.
func TestProxiesGetAddressesOfTheirFamilies(t *testing.T) {
	for ips, want := range map[string]struct{ api, six, listeners []string }{
		"10.9.0.1": {
			[]string{"10.1.0.1 0"}, []string{"fd00::6 0"},
			[]string{"10.1.0.1_6379", "10.96.0.7_90", "fd00:1::6_90"},
		},
		"fd00:9::1": {
			[]string{"fd00::1 0", "fd00::2 0"}, []string{"fd00::6 0"},
			[]string{"fd00:1::6_90", "fd00:1::7_90", "fd00::1_6379", "fd00::2_6379"},
		},
		"10.9.0.1 fd00:9::1": {
			[]string{"10.1.0.1+fd00::1 0", "fd00::2 0"}, []string{"fd00::6 0"},
			[]string{"10.1.0.1_6379", "10.96.0.7_90", "fd00:1::6_90", "fd00:1::7_90", "fd00::1_6379", "fd00::2_6379"},
		},
	} {
		w := newWorld()
		w.apply(t, dual)
		list := strings.Fields(ips)
		n := proxy(t, "sidecar~"+list[0]+"~client.shop~shop.svc.cluster.local", "app=client")
		for _, ip := range list {
			n.Metadata.InstanceIPs = append(n.Metadata.InstanceIPs, netip.MustParseAddr(ip))
		}
		class := w.join(n)
		if got := endpointsAt(t, w, class, "outbound|80||api.shop.svc.cluster.local"); !slices.Equal(got, want.api) {
			t.Errorf("%s: endpoints %q, want %q", ips, got, want.api)
		}
		if got := endpointsAt(t, w, class, "outbound|90||six.shop.svc.cluster.local"); !slices.Equal(got, want.six) {
			t.Errorf("%s: endpoints of an IPv6 service %q, want %q", ips, got, want.six)
		}
		if got := serviceListeners(w, class); !slices.Equal(got, want.listeners) {
			t.Errorf("%s: listeners %q, want %q", ips, got, want.listeners)
		}
	}
}

// A Service, or a ServiceEntry, that prefers near endpoints has priorities without outlier detection, of which the setting of a
// DestinationRule takes precedence and that of the mesh does not. The client is in r1/z1/s1 on n1.
func TestTrafficDistribution(t *testing.T) {
	const place = "apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {topology.kubernetes.io/region: %s, topology.kubernetes.io/zone: %s, topology.istio.io/subzone: %s}}\n---\n"
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop, labels: {app: %[2]s%[3]s}}\nspec: {nodeName: %[4]s}\nstatus: {podIP: %[5]s}\n---\n"
	base := fmt.Sprintf(place, "n1", "r1", "z1", "s1") + fmt.Sprintf(place, "n2", "r1", "z1", "s1") + fmt.Sprintf(place, "n3", "r1", "z1", "s2") +
		fmt.Sprintf(place, "n4", "r1", "z2", "s1") + fmt.Sprintf(place, "n5", "r2", "z1", "s1") + fmt.Sprintf(pod, "client", "client", "", "n1", "10.9.0.1")
	for n := 1; n <= 5; n++ {
		base += fmt.Sprintf(pod, fmt.Sprintf("api-%d", n), "api", "", fmt.Sprintf("n%d", n), fmt.Sprintf("10.1.0.%d", n))
	}
	base += fmt.Sprintf(pod, "api-6", "api", ", topology.istio.io/network: other", "n1", "10.1.0.6")
	service := func(more string) string {
		return base + "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: shop" + more + ", ports: [{name: http, port: 80}]}\n---\n"
	}
	spec := "}\nspec: {clusterIP: 10.96.0.7, selector: {app: api}"
	rule := func(policy string) string {
		return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: api, namespace: shop}\nspec: {host: api, trafficPolicy: {" + policy + "}}\n"
	}
	at := func(priorities ...int) (out []string) {
		for i, p := range priorities {
			out = append(out, fmt.Sprintf("10.1.0.%d %d", i+1, p))
		}
		return out
	}
	meshDistributes, verdicts := config.MeshConfig("localityLbSetting: {distribute: [{from: '*', to: {'r2/*': 100}}]}")
	if len(verdicts) > 0 {
		t.Fatal(verdicts)
	}
	for name, tt := range map[string]struct {
		yaml string
		mesh *meshv1.MeshConfig
		want []string
	}{
		"none":                     {service(spec), nil, at(0, 0, 0, 0, 0, 0)},
		"PreferClose":              {service(spec + ", trafficDistribution: PreferClose"), nil, at(0, 0, 1, 2, 3, 4)},
		"PreferSameZone":           {service(spec + ", trafficDistribution: PreferSameZone"), nil, at(0, 0, 1, 2, 3, 4)},
		"PreferSameNode":           {service(spec + ", trafficDistribution: PreferSameNode"), nil, at(0, 1, 2, 3, 4, 5)},
		"the annotation":           {service(", annotations: {networking.istio.io/traffic-distribution: PreferClose}" + spec), nil, at(0, 0, 1, 2, 3, 4)},
		"the field before it":      {service(", annotations: {networking.istio.io/traffic-distribution: PreferSameNode}" + spec + ", trafficDistribution: PreferClose"), nil, at(0, 0, 1, 2, 3, 4)},
		"one that is not known":    {service(spec + ", trafficDistribution: Nearby"), nil, at(0, 0, 0, 0, 0, 0)},
		"the client's Node only":   {service(spec + ", internalTrafficPolicy: Local"), nil, []string{"10.1.0.1 0", "10.1.0.6 0"}},
		"any Node":                 {service(spec + ", internalTrafficPolicy: Cluster"), nil, at(0, 0, 0, 0, 0, 0)},
		"a rule that turns it off": {service(spec+", trafficDistribution: PreferClose") + rule("loadBalancer: {localityLbSetting: {enabled: false}}"), nil, at(0, 0, 0, 0, 0, 0)},
		"a rule about other things": {
			service(spec+", trafficDistribution: PreferClose") + rule("outlierDetection: {consecutive5xxErrors: 5}"), meshDistributes, at(0, 0, 1, 2, 3, 4),
		},
		"a ServiceEntry": {
			base + "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: api, namespace: shop, annotations: {networking.istio.io/traffic-distribution: PreferClose}}\n" +
				"spec: {hosts: [api.shop.svc.cluster.local], location: MESH_INTERNAL, resolution: STATIC, workloadSelector: {labels: {app: api}}, ports: [{name: http, number: 80, protocol: HTTP}]}\n",
			nil, at(0, 0, 1, 2, 3, 4),
		},
	} {
		w := newWorld()
		if tt.mesh != nil {
			w.model.SetMesh(tt.mesh)
		}
		w.apply(t, tt.yaml)
		n := proxy(t, "sidecar~10.9.0.1~client.shop~shop.svc.cluster.local", "app=client")
		if got := endpointsAt(t, w, w.join(n), "outbound|80||api.shop.svc.cluster.local"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
