package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// namesAgent is an agent that asks for its name table in the state-of-the-world protocol, as Istio's does.
type namesAgent struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
}

func (p *plane) namesAgent(pod, ns string, meta map[string]any) *namesAgent {
	p.t.Helper()
	conn, err := grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(p.t.Context(), wait.Bound)
	p.t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]any{"NAMESPACE": ns, "DNS_CAPTURE": "true"}
	for k, v := range meta {
		all[k] = v
	}
	m, err := structpb.NewStruct(all)
	if err != nil {
		p.t.Fatal(err)
	}
	a := &namesAgent{t: p.t, stream: stream}
	a.send(&discoveryv3.DiscoveryRequest{TypeUrl: mesh.NameTableType, Node: &corev3.Node{Id: "sidecar~10.99.7.1~" + pod + "." + ns + "~" + ns + ".svc.cluster.local", Metadata: m}})
	return a
}

func (a *namesAgent) send(r *discoveryv3.DiscoveryRequest) {
	a.t.Helper()
	if err := a.stream.Send(r); err != nil {
		a.t.Fatal(err)
	}
}

// next acknowledges the next table and returns it as "host ip,ip registry short.namespace".
func (a *namesAgent) next() []string {
	a.t.Helper()
	m, err := a.stream.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	if m.GetTypeUrl() != mesh.NameTableType || len(m.GetResources()) != 1 || m.GetResources()[0].GetTypeUrl() != mesh.NameTableType {
		a.t.Fatalf("%v, want one name table", m)
	}
	a.send(&discoveryv3.DiscoveryRequest{TypeUrl: m.TypeUrl, ResponseNonce: m.Nonce, VersionInfo: m.VersionInfo})
	list, err := mesh.ParseNameTable(m.GetResources()[0].GetValue())
	if err != nil {
		a.t.Fatal(err)
	}
	var out []string
	for _, n := range list {
		line := n.Host + " " + strings.Trim(strings.ReplaceAll(fmt.Sprint(n.IPs), " ", ","), "[]") + " " + n.Registry
		if n.Short != "" {
			line += " " + n.Short + " " + n.Namespace
		}
		out = append(out, line)
	}
	return out
}

const named = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: se, namespace: shop}
spec:
  hosts: [auto.example.com, "*.wild.example.com"]
  ports: [{number: 5000, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.99.5.6}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: se2, namespace: other}
spec:
  hosts: [ADDR.example.com]
  addresses: [10.30.0.1, 10.30.1.0/24]
  ports: [{number: 5001, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.99.5.5}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: other}
spec:
  hosts: [private.example.com]
  addresses: [10.30.0.9]
  exportTo: ["."]
  ports: [{number: 5001, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.99.5.5}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: not, namespace: other, labels: {networking.istio.io/enable-autoallocate-ip: "false"}}
spec: {hosts: [not.example.com], ports: [{number: 5001, name: tcp, protocol: TCP}], resolution: DNS}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: none, namespace: other}
spec: {hosts: [none.example.com], ports: [{number: 5001, name: tcp, protocol: TCP}], resolution: NONE}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db}}
spec: {subdomain: db}
status: {phase: Running, podIP: 10.99.1.1}
---
apiVersion: v1
kind: Pod
metadata: {name: db-1, namespace: shop, labels: {app: db}}
spec: {hostname: second, subdomain: db}
status: {phase: Running, podIP: 10.99.1.2}
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec: {type: ExternalName, externalName: example.org}
`

// auto is the first allocated address of auto.example.com, which is a function of its object's name: it must never change.
const auto = "240.240.186.229"

func TestNameTable(t *testing.T) {
	p := start(t)
	p.emit(named, true)
	agent, other, plain := p.namesAgent("web-1", "shop", nil), p.namesAgent("o-1", "other", nil), p.namesAgent("p-1", "shop", map[string]any{"DNS_CAPTURE": "false"})
	want := []string{
		"addr.example.com 10.30.0.1 External",
		"auto.example.com " + auto + " External",
		"db-0.db.shop.svc.cluster.local 10.99.1.1 Kubernetes db-0.db shop",
		"db.shop.svc.cluster.local 10.99.1.1,10.99.1.2 Kubernetes db shop",
		"second.db.shop.svc.cluster.local 10.99.1.2 Kubernetes second.db shop",
		"web.shop.svc.cluster.local 10.96.1.1 Kubernetes web shop",
	}
	if got := agent.next(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	private := slices.Insert(slices.Clone(want), 4, "private.example.com 10.30.0.9 External")
	if got := other.next(); !slices.Equal(got, private) {
		t.Errorf("in another namespace: %q, want %q", got, private)
	}
	if got := plain.next(); len(got) > 0 {
		t.Errorf("an agent whose application's queries are not captured got %q", got)
	}
	// One table is sent for each change that concerns it, and none for others.
	p.emit(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: private, namespace: other}
spec: {hosts: [private.example.com], addresses: [10.30.0.8], exportTo: ["."], ports: [{number: 5001, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.99.5.5}]}
`, false)
	if got := other.next(); !slices.Contains(got, "private.example.com 10.30.0.8 External") {
		t.Errorf("after the change: %q", got)
	}
	p.emit(`
apiVersion: v1
kind: Pod
metadata: {name: db-1, namespace: shop, labels: {app: other}}
status: {phase: Running, podIP: 10.99.1.2}
`, false)
	want[3] = "db.shop.svc.cluster.local 10.99.1.1 Kubernetes db shop"
	want = slices.Delete(want, 4, 5)
	if got := agent.next(); !slices.Equal(got, want) {
		t.Errorf("without a Pod: %q, want %q", got, want)
	}

	code, body := p.get(p.addr.HTTP, "/debug/ndsz?proxyID=web-1.shop")
	var page struct {
		Table map[string]struct {
			IPs                            []string
			Registry, Shortname, Namespace string
		}
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if n := page.Table["web.shop.svc.cluster.local"]; len(page.Table) != len(want) || !slices.Equal(n.IPs, []string{"10.96.1.1"}) || n.Registry != "Kubernetes" || n.Shortname != "web" || n.Namespace != "shop" {
		t.Errorf("/debug/ndsz: %s", body)
	}
}

// What was allocated stays after a restart, even if it would be computed otherwise, and what a status says counts more.
func TestAllocatedAddressesStay(t *testing.T) {
	dir := wait.Folder(t)
	p := start(t, func(o *Options) { o.StateDir = dir })
	p.emit(named, true)
	saved := ""
	p.server.loop.ask(func() {
		l := p.server.loop
		pair := l.allocated.pairs["ServiceEntry/shop/se/auto.example.com"]
		saved = pair.V4.Next().String()
		moved := map[string]allocate.Pair{"ServiceEntry/shop/se/auto.example.com": {V4: pair.V4.Next(), V6: pair.V6}}
		l.allocated.pairs, l.allocated.version = moved, l.allocated.version+1
		l.kept.changed()
	})
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	p = start(t, func(o *Options) { o.StateDir = dir })
	p.emit(named, true)
	if got := p.namesAgent("web-1", "shop", nil).next(); !slices.Contains(got, "auto.example.com "+saved+" External") {
		t.Errorf("after a restart: %q, want %s", got, saved)
	}
	agent := p.namesAgent("web-2", "shop", nil)
	agent.next()
	p.emit(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: se, namespace: shop}
spec:
  hosts: [auto.example.com, "*.wild.example.com"]
  ports: [{number: 5000, name: tcp, protocol: TCP}]
  resolution: STATIC
  endpoints: [{address: 10.99.5.6}]
status: {addresses: [{host: auto.example.com, value: 240.240.7.7}, {host: other.example.com, value: 240.240.7.8}, {value: x}, 7]}
`, false)
	if got := agent.next(); !slices.Contains(got, "auto.example.com 240.240.7.7 External") {
		t.Errorf("with a status: %q", got)
	}
}

// A Service that only another cluster has gets a name, and an address of which the listeners know.
func TestNamesOfServicesOfOtherClusters(t *testing.T) {
	p := start(t)
	p.emit(named, true)
	agent := p.namesAgent("web-1", "shop", nil)
	agent.next()
	k := object.Key{Kind: object.Service, Namespace: "far", Name: "api", Cluster: "two"}
	ns := object.Key{Kind: object.Namespace, Name: "far", Cluster: "two"}
	spec := &object.ServiceSpec{ClusterIPs: addressList("10.96.1.1"), Ports: []object.ServicePort{{Name: "tcp", Port: 9000}}}
	p.batch(object.Batch{Changes: []object.Change{{Key: ns, Object: &object.Object{Key: ns}}, {Key: k, Object: &object.Object{Key: k, Spec: spec}}}})
	got := agent.next()
	i := slices.IndexFunc(got, func(line string) bool { return strings.HasPrefix(line, "api.far.svc.cluster.local 240.240.") })
	if i < 0 {
		t.Fatalf("%q, want an allocated address for api.far", got)
	}
	ip := strings.Fields(got[i])[1]
	_, body := p.get(p.addr.HTTP, "/debug/config_dump?proxyID=web-1.shop&types=lds")
	if !strings.Contains(body, ip+"_9000") {
		t.Errorf("no listener at %s:9000: %s", ip, body)
	}
	if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, "web.shop.svc.cluster.local 10.96.1.1 ") }) {
		t.Errorf("%q: the address of a Service of the own cluster is another one", got)
	}
}

func addressList(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}
