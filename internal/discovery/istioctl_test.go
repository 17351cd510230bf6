package discovery

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/test/wait"
)

// istioctl opens a stream and asks for one type, as istioctl 1.31 does: the node of a sidecar in namespace
// "default", whatever its identity is, and a nonce of its own; it acknowledges nothing.
func (p *plane) istioctl(addr, token, url string, names ...string) (*discoveryv3.DiscoveryResponse, error) {
	p.t.Helper()
	creds := insecure.NewCredentials()
	ctx, cancel := context.WithTimeout(p.t.Context(), wait.Bound)
	p.t.Cleanup(cancel)
	if token != "" {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	meta, err := structpb.NewStruct(map[string]any{"GENERATOR": "event", "SERVICE_ACCOUNT": "default", "NAMESPACE": "istio-system", "ISTIO_VERSION": "65536.65536.65536"})
	if err != nil {
		p.t.Fatal(err)
	}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{ // Recv returns the error
		Node:    &corev3.Node{Id: "sidecar~10.1.1.9~test-1.default~default.svc.cluster.local", Metadata: meta},
		TypeUrl: url, ResourceNames: names, ResponseNonce: time.Now().String(),
	})
	return stream.Recv()
}

// synced returns the plane with one proxy that has applied everything.
func synced(t *testing.T, change ...func(*Options)) *plane {
	t.Helper()
	p := start(t, change...)
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.expect("RDS", "9080")
	c.wait("the proxy has applied its configuration", func() bool {
		all := p.server.xds.Connections()
		if len(all) != 1 || all[0].Applied == 0 {
			return false
		}
		for _, s := range all[0].Types {
			if !s.Synced {
				return false
			}
		}
		return true
	})
	return p
}

func TestIstioctlProxyStatusAndVersion(t *testing.T) {
	p := synced(t, func(o *Options) { o.Names.Instance = "pilot-0" })
	m, err := p.istioctl(p.addr.GRPC, "", "istio.io/debug/syncz")
	if err != nil {
		t.Fatal(err)
	}
	if m.TypeUrl != "istio.io/debug/syncz" || len(m.Resources) != 1 {
		t.Fatalf("type %s, %d resources, want one proxy", m.TypeUrl, len(m.Resources))
	}
	var c statusv3.ClientConfig
	if err := m.Resources[0].UnmarshalTo(&c); err != nil {
		t.Fatal(err)
	}
	if c.Node.GetId() != "reviews-1.shop" || c.Node.Metadata.Fields["NAMESPACE"].GetStringValue() != "shop" {
		t.Errorf("node %v", c.Node)
	}
	states := map[string]statusv3.ConfigStatus{}
	for _, g := range c.GenericXdsConfigs {
		states[g.TypeUrl] = g.ConfigStatus
		if g.LastUpdated == nil {
			t.Errorf("%s has no time", g.TypeUrl)
		}
	}
	for _, typ := range xds.Types() {
		if typ == xds.VHDS || typ == xds.ECDS {
			continue // the proxy has whole route configurations, and no filter that names an extension configuration
		}
		if states[typ.URL()] != statusv3.ConfigStatus_SYNCED {
			t.Errorf("%s is %s, want SYNCED", typ, states[typ.URL()])
		}
	}
	var id struct {
		Component, ID string
		Info          struct {
			Version string `json:"version"`
		}
	}
	if err := json.Unmarshal([]byte(m.ControlPlane.GetIdentifier()), &id); err != nil {
		t.Fatal(err)
	}
	if id.Component != "pilot-discovery" || id.ID != "pilot-0" || id.Info.Version != "test" {
		t.Errorf("identifier %+v", id)
	}
	if m, err := p.istioctl(p.addr.GRPC, "", "istio.io/connections"); err != nil || len(m.Resources) != 1 || m.Resources[0].TypeUrl != "type.googleapis.com/envoy.config.core.v3.Node" {
		t.Errorf("connections: %v, %v", m, err)
	}
}

func TestIstioctlConfigDump(t *testing.T) {
	p := synced(t)
	m, err := p.istioctl(p.addr.GRPC, "", "istio.io/debug/config_dump", "reviews-1.shop")
	if err != nil {
		t.Fatal(err)
	}
	clusters := 0
	for _, r := range m.Resources {
		var d adminv3.ClustersConfigDump
		if r.UnmarshalTo(&d) == nil {
			clusters += len(d.DynamicActiveClusters)
		}
	}
	if clusters == 0 {
		t.Errorf("%d parts, and no cluster in them", len(m.Resources))
	}
	if m, err := p.istioctl(p.addr.GRPC, "", "istio.io/debug/config_dump", "nobody.shop"); err != nil || len(m.Resources) != 0 {
		t.Errorf("dump of nobody: %v, %v; want an answer without resources", m, err)
	}
	for _, names := range [][]string{nil, {"a", "b"}} {
		if _, err := p.istioctl(p.addr.GRPC, "", "istio.io/debug/config_dump", names...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d names: %v, want InvalidArgument", len(names), err)
		}
	}
}

func TestIstioctlInternalDebug(t *testing.T) {
	p := synced(t)
	page := func(name string) string {
		m, err := p.istioctl(p.addr.GRPC, "", "istio.io/debug", name)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Resources) != 1 || m.Resources[0].TypeUrl != "istio.io/debug" {
			t.Fatalf("%s: %v, want one resource", name, m)
		}
		return string(m.Resources[0].Value)
	}
	for name, want := range map[string]string{
		"syncz":                           `"proxy": "reviews-1.shop"`,
		"edsz?proxyID=reviews-1.shop":     "10.99.0.1",
		"config_dump?proxyID=nobody.shop": "Proxy not connected to this Pilot instance. It may be connected to another instance.",
		"config_dump":                     "You must provide a proxyID in the query string",
		"list":                            `"syncz"`,
		"none":                            "404 page not found",
		"../ready":                        "404 page not found",
		"pprof/cmdline":                   "404 page not found",
		"krtz":                            "not available",
		"inject":                          "nothing is injected",
		"%zz":                             "invalid page",
	} {
		if got := page(name); !strings.Contains(got, want) {
			t.Errorf("%s: %.300q does not contain %q", name, got, want)
		}
	}
	if n := len(p.server.xds.Connections()); n != 1 {
		t.Errorf("%d connections, want that of the proxy: istioctl's are not proxies", n)
	}
}

func TestDebugOverXDSIsForTheControlPlanesNamespace(t *testing.T) {
	p := synced(t)
	for _, url := range []string{"istio.io/debug/syncz", "istio.io/debug", "istio.io/connections"} {
		if _, err := p.istioctl(p.addr.SecureGRPC, p.token("istio-system", "default"), url, "syncz"); err != nil {
			t.Errorf("%s as istio-system: %v", url, err)
		}
		if _, err := p.istioctl(p.addr.SecureGRPC, p.token("shop", "default"), url, "syncz"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s as shop: %v, want PermissionDenied", url, err)
		}
		if _, err := p.istioctl(p.addr.SecureGRPC, "no.such.token", url, "syncz"); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s without identity: %v, want Unauthenticated", url, err)
		}
	}
}
