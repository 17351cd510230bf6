package cluster_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/golden"
)

// request is the input.yaml of a golden.
type request struct {
	// Kind is outbound (also where empty), inbound, blackhole, passthrough or inbound-passthrough.
	Kind, Subset, Config string
	Services             []cluster.Service
	Port                 uint32
	Protocol, Resolution string
	Endpoints            []cluster.Endpoint
	AutoMTLS             bool
	SANs, Declared       []string
	// Caps are words: v4 (also where none is given), v6, cares, and policies of TLS.
	Caps []string
	settings
}

// settings is what users wrote.
type settings struct {
	Top, SubsetPolicy, Mesh json.RawMessage
}

var resolutions = map[string]cluster.Resolution{
	"": cluster.EDS, "StrictDNS": cluster.StrictDNS, "LogicalDNS": cluster.LogicalDNS, "OriginalDst": cluster.OriginalDst,
}

var capWords = map[string]mesh.Capability{"v4": mesh.IPv4, "v6": mesh.IPv6, "cares": mesh.CaresDNS, "fips-140-2": mesh.FIPS1402, "fips-140-3": mesh.FIPS1403, "pqc": mesh.PQC, "proxy-protocol": mesh.ProxyProtocol}

func (r request) caps() mesh.Capability {
	var c mesh.Capability
	for _, w := range r.Caps {
		c |= capWords[w]
	}
	if !c.Has(mesh.IPv4) && !c.Has(mesh.IPv6) {
		c |= mesh.IPv4
	}
	return c
}

// policies is the policy in force and the mesh's configuration.
func (r request) policies(t *testing.T) (*networking.TrafficPolicy, *meshv1.MeshConfig) {
	t.Helper()
	m := mesh.DefaultMeshConfig()
	proto.Merge(m, golden.Proto(t, r.Mesh, &meshv1.MeshConfig{}))
	var top, subset *networking.TrafficPolicy
	if r.Top != nil {
		top = golden.Proto(t, r.Top, &networking.TrafficPolicy{})
	}
	if r.SubsetPolicy != nil {
		subset = golden.Proto(t, r.SubsetPolicy, &networking.TrafficPolicy{})
	}
	return cluster.MergePolicy(top, subset, r.Port), m
}

func (r request) build(t *testing.T) *clusterv3.Cluster {
	t.Helper()
	p, m := r.policies(t)
	switch r.Kind {
	case "inbound":
		return cluster.BuildInbound(cluster.InboundInput{
			Port: r.Port, Protocol: mesh.ParseProtocol(r.Protocol), Services: r.Services, Mesh: m, Caps: r.caps(),
		})
	case "blackhole":
		return cluster.BlackHole(m)
	case "passthrough":
		return cluster.Passthrough(m)
	case "inbound-passthrough":
		return cluster.InboundPassthrough(m, r.caps())
	}
	return cluster.Build(cluster.Input{
		Service: r.Services[0], Port: r.Port, Protocol: mesh.ParseProtocol(r.Protocol), Subset: r.Subset,
		Resolution: cluster.Resolve(resolutions[r.Resolution], p), Endpoints: r.Endpoints,
		Policy: p, ConfigPath: r.Config,
		AutoMTLS: r.AutoMTLS, SANs: r.SANs, Declared: r.Declared, Mesh: m, Caps: r.caps(),
	})
}

func parse(t *testing.T, input []byte) []*clusterv3.Cluster {
	t.Helper()
	var list []request
	if err := yaml.UnmarshalStrict(input, &list); err != nil {
		t.Fatal(err)
	}
	var out []*clusterv3.Cluster
	for _, r := range list {
		c := r.build(t)
		if err := c.ValidateAll(); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		out = append(out, c)
	}
	return out
}

// TestGolden holds every shape, and has Envoy take all of them at once.
func TestGolden(t *testing.T) {
	all := golden.Run(t, "testdata", parse)
	b := envoytest.Bootstrap()
	for i, c := range all {
		c = proto.Clone(c).(*clusterv3.Cluster)
		c.Name = fmt.Sprintf("%d %s", i, c.Name) // goldens may have the same name; Envoy's may not
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	}
	envoytest.Validate(t, b)
}

// TestEnvoyRefuses shows that the check above is one: without the limit that Build sets,
// Envoy refuses the cluster.
func TestEnvoyRefuses(t *testing.T) {
	b := envoytest.Bootstrap()
	c := cluster.Build(cluster.Input{
		Service: cluster.Service{Host: "a.b"}, Port: 1, Protocol: mesh.TCP, Resolution: cluster.LogicalDNS, Mesh: mesh.DefaultMeshConfig(),
		Endpoints: []cluster.Endpoint{{Address: "x", Port: 1}, {Address: "y", Port: 1}},
	})
	c.LoadAssignment = cluster.Assignment(c.Name, []cluster.Endpoint{{Address: "x", Port: 1}, {Address: "y", Port: 1}})
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	if out, err := envoytest.Check(t, b); err == nil || !strings.Contains(out, "LOGICAL_DNS") {
		t.Fatalf("Envoy took a logical DNS cluster of two endpoints: %v\n%s", err, out)
	}
}

// TestDeterministic: equal input, equal bytes.
func TestDeterministic(t *testing.T) {
	in := []byte(`[{services: [{host: a.b.svc.cluster.local, name: a, namespace: b}], port: 80, protocol: auto, autoMTLS: true, config: /x, subset: v1, sans: [spiffe://x/ns/b/sa/c]}]`)
	golden.Deterministic(t, func() proto.Message { return parse(t, in)[0] })
}

func TestParseSNI(t *testing.T) {
	for _, k := range []cluster.Key{{Port: 80, Host: "api.shop.svc.cluster.local"}, {Port: 65535, Subset: "v1", Host: "a"}} {
		k.Direction = cluster.Outbound
		if got, ok := cluster.ParseSNI(cluster.SNI(k.Port, k.Subset, k.Host)); !ok || got != k {
			t.Errorf("ParseSNI(SNI(%v)) = %v, %v", k, got, ok)
		}
	}
	for _, s := range []string{"", "outbound_.80", "outbound_.80_.v1", "outbound_.x_._.a", "outbound|80||a", "inbound_.80_._.a", "outbound_.-1_._.a"} {
		if got, ok := cluster.ParseSNI(s); ok {
			t.Errorf("ParseSNI(%q) = %v, want none", s, got)
		}
	}
}
