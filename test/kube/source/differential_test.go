package source_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// shop has what the two sources could read differently: Services of all types, several EndpointSlices, both families
// of addresses, Nodes with places, rules in all of Istio's kinds, and a route of the Gateway API.
const shop = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {topology.istio.io/network: n1}}
---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nlocalityLbSetting: {enabled: true}\n"}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reviews, namespace: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: shop, labels: {app: reviews, version: v1, security.istio.io/tlsMode: istio}, annotations: {a: b}}
spec: {serviceAccountName: reviews, nodeName: n1, containers: [{name: app, image: app, ports: [{name: web, containerPort: 9080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-2, namespace: shop, labels: {app: reviews, version: v2}}
spec: {serviceAccountName: reviews, nodeName: n2, containers: [{name: app, image: app, ports: [{name: web, containerPort: 9080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 9080, targetPort: web}, {name: db, port: 5432, appProtocol: tcp}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: reviews}, ports: [{name: grpc-x, port: 9090}]}
---
apiVersion: v1
kind: Service
metadata: {name: external, namespace: shop}
spec: {type: ExternalName, externalName: www.example.com, ports: [{name: https, port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: node, namespace: shop, annotations: {networking.istio.io/exportTo: "."}}
spec: {type: NodePort, selector: {app: none}, ports: [{name: http2, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: shop}
spec: {type: LoadBalancer, trafficDistribution: PreferClose, ports: [{port: 7, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reviews-a, namespace: shop, labels: {kubernetes.io/service-name: reviews}}
addressType: IPv4
ports: [{name: http, port: 9080}, {name: db, port: 5432}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, nodeName: n1, zone: z1, targetRef: {kind: Pod, name: reviews-1, namespace: shop}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: reviews-b, namespace: shop, labels: {kubernetes.io/service-name: reviews}}
addressType: IPv4
ports: [{name: http, port: 9080}, {name: db, port: 5432}]
endpoints:
- {addresses: [10.244.0.2], conditions: {ready: true}, nodeName: n2, targetRef: {kind: Pod, name: reviews-2, namespace: shop}}
- {addresses: [10.244.0.3], conditions: {ready: false}}
- {addresses: [10.244.0.4], conditions: {ready: true, terminating: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: headless-a, namespace: shop, labels: {kubernetes.io/service-name: headless}}
addressType: IPv6
ports: [{name: grpc-x, port: 9090}]
endpoints:
- {addresses: ["fd00::1"], conditions: {ready: false}, hostname: reviews-1}
---
apiVersion: v1
kind: Service
metadata: {name: dual, namespace: shop}
spec: {ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4], trafficDistribution: PreferSameNode, ports: [{name: http, port: 80}, {name: db, port: 5432, appProtocol: tcp}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dual-4, namespace: shop, labels: {kubernetes.io/service-name: dual}}
addressType: IPv4
ports: [{name: http, port: 80}, {name: db, port: 5432}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, nodeName: n1, targetRef: {kind: Pod, name: reviews-1, namespace: shop}}
- {addresses: [10.244.0.2], conditions: {ready: true}, nodeName: n2, targetRef: {kind: Pod, name: reviews-2, namespace: shop}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dual-6, namespace: shop, labels: {kubernetes.io/service-name: dual}}
addressType: IPv6
ports: [{name: http, port: 80}, {name: db, port: 5432}]
endpoints:
- {addresses: ["fd00:244::1"], conditions: {ready: true}, nodeName: n1, targetRef: {kind: Pod, name: reviews-1, namespace: shop}}
- {addresses: ["fd00:244::2"], conditions: {ready: true}, nodeName: n2, targetRef: {kind: Pod, name: reviews-2, namespace: shop}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews], http: [{timeout: 5s, route: [{destination: {host: reviews, subset: v1, port: {number: 9080}}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec: {host: reviews, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vm, namespace: shop}
spec: {hosts: [vm.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: vm}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: shop, labels: {app: vm}}
spec: {address: 192.0.2.7, locality: r1/z9}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: other, namespace: shop}
spec: {workloadSelector: {labels: {app: other}}, egress: [{hosts: ["./*"]}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: dual, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: dual, port: 80}]
  rules:
  - matches: [{path: {value: /slow}, headers: [{name: x-a, value: b}]}]
    timeouts: {request: 5s}
    backendRefs: [{name: dual, port: 80, weight: 3}, {name: balanced, port: 7}]
`

// What proxies are sent does not depend on whether the same objects are in a directory or in an API server.
func TestDirectoryAndClusterGiveEqualViews(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	c.InstallCRDs(t, kubetest.Istio, kubetest.GatewayAPI)
	ctx := t.Context()
	for name, zone := range map[string]string{"n1": "z1", "n2": "z2"} {
		if err := c.MakeNode(ctx, name, map[string]string{"topology.kubernetes.io/region": "r1", "topology.kubernetes.io/zone": zone}); err != nil {
			t.Fatal(err)
		}
	}
	wait.NoError(t, "the objects are applied", func() error {
		c.Mapper.Reset() // discovery lists a new kind a little after its objects can be listed
		_, err := c.ApplyYAML(ctx, "", shop)
		return err
	})
	c.PodRunning(t, "shop", "reviews-1", netip.MustParseAddr("10.244.0.1"))
	c.PodRunning(t, "shop", "reviews-2", netip.MustParseAddr("10.244.0.2"))

	dir := t.TempDir()
	export(t, c, filepath.Join(dir, "all.json"))
	fromFiles := serve(t, discovery.Options{ConfigDir: dir, Kubernetes: discovery.KubernetesOptions{Cluster: "Kubernetes"}})
	fromCluster := serve(t, discovery.Options{Kubernetes: discovery.KubernetesOptions{
		API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, c.Config), QPS: -1}, Cluster: "Kubernetes",
	}})
	for _, app := range []string{"reviews", "other", "stranger"} {
		a, b := view(t, fromFiles, app), view(t, fromCluster, app)
		if len(a) < 10 {
			t.Errorf("%s has %d resources: %v", app, len(a), keys(a))
		}
		if e := b[xds.EDS.URL()+" outbound|80||dual.shop.svc.cluster.local"]; app == "reviews" && (!strings.Contains(e, "10.244.0.2") || !strings.Contains(e, "fd00:244::2")) {
			t.Errorf("%s: endpoints of a Service of both families: %q", app, e)
		}
		if routes := b[xds.RDS.URL()+" 80"]; app == "reviews" && !strings.Contains(routes, "shop.dual.0") {
			t.Errorf("%s: no route of the HTTPRoute: %q", app, routes)
		}
		for name := range a {
			if a[name] != b[name] {
				t.Errorf("%s: %s differs:\n%q\n%q", app, name, a[name], b[name])
			}
		}
		for name := range b {
			if _, ok := a[name]; !ok {
				t.Errorf("%s: only from the cluster: %s", app, name)
			}
		}
	}
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

// export writes all objects of the cluster that are read to a file, as kubectl get -o json does.
func export(t *testing.T, c *kubetest.Cluster, file string) {
	t.Helper()
	var items []string
	for _, kind := range object.Kinds() {
		r := decode.ResourceOf(kind)
		l, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: r.Group, Version: r.Versions[0], Resource: r.Name}).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Items {
			text, err := l.Items[i].MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, string(text))
		}
	}
	text := `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(items, ",\n") + "]}"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serve runs a control plane and returns the address of its plaintext port.
func serve(t *testing.T, o discovery.Options) string {
	t.Helper()
	o.StateDir, o.Version, o.Log = t.TempDir(), "test", slog.New(slog.DiscardHandler)
	o.Names = discovery.Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"}
	o.Ports, o.HTTP.Shutdown = discovery.Ports{GRPC: "127.0.0.1:0"}, time.Second
	s, err := discovery.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addresses().GRPC
}

// view returns what a proxy is sent: the bytes of each resource by type and name.
func view(t *testing.T, address, app string) map[string]string {
	t.Helper()
	var out map[string]string
	wait.NoError(t, "a view for "+app+" from "+address, func() (err error) {
		out, err = read(t.Context(), address, app)
		return err
	})
	return out
}

// read asks for all resources that a proxy would ask for, until it has each.
func read(ctx context.Context, address, app string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Bound/4)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": app}, "INSTANCE_IPS": "10.244.0.1,fd00:244::1"})
	if err != nil {
		return nil, err
	}
	node := &corev3.Node{Id: "sidecar~10.244.0.1~" + app + "-1.shop~shop.svc.cluster.local", Metadata: meta}
	ask := func(typ xds.Type, names ...string) {
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typ.URL(), ResourceNamesSubscribe: names}) // Recv returns the error
	}
	have, wanted := map[string]string{}, map[string]bool{}
	want := func(typ xds.Type, name string) {
		if k := typ.URL() + " " + name; name != "" && !wanted[k] {
			wanted[k] = true
			ask(typ, name)
		}
	}
	ask(xds.CDS, "*")
	ask(xds.LDS, "*")
	answered := map[string]bool{}
	for complete := false; !complete; {
		r, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("%d resources of %d: %w", len(have), len(wanted), err)
		}
		answered[r.TypeUrl] = true
		for _, res := range r.Resources {
			k := r.TypeUrl + " " + res.Name
			have[k] = string(res.Resource.GetValue())
			if err := references(res.Resource, want); err != nil {
				return nil, err
			}
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
		complete = answered[xds.CDS.URL()] && answered[xds.LDS.URL()]
		for k := range wanted {
			_, ok := have[k]
			complete = complete && ok
		}
	}
	return have, nil
}

// references calls want with what a resource refers to.
func references(a *anypb.Any, want func(xds.Type, string)) error {
	switch a.GetTypeUrl() {
	case xds.CDS.URL():
		var c clusterv3.Cluster
		if err := a.UnmarshalTo(&c); err != nil {
			return err
		}
		if c.GetType() == clusterv3.Cluster_EDS {
			name := c.GetEdsClusterConfig().GetServiceName()
			if name == "" {
				name = c.Name
			}
			want(xds.EDS, name)
		}
	case xds.LDS.URL():
		var l listenerv3.Listener
		if err := a.UnmarshalTo(&l); err != nil {
			return err
		}
		for _, chain := range append(l.FilterChains, l.DefaultFilterChain) {
			for _, f := range chain.GetFilters() {
				var m hcmv3.HttpConnectionManager
				if f.GetTypedConfig().MessageIs(&m) {
					if err := f.GetTypedConfig().UnmarshalTo(&m); err != nil {
						return err
					}
					want(xds.RDS, m.GetRds().GetRouteConfigName())
				}
			}
		}
	}
	return nil
}
