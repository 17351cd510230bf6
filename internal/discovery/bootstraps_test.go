package discovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// bootstrapAgent is an agent that asks for what it merges into its bootstrap, in one of the two protocols.
type bootstrapAgent struct {
	t     *testing.T
	sotw  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	delta discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// bootstrapAgent opens a stream whose first request is for a type.
func (p *plane) bootstrapAgent(delta bool, node, typ, says string) *bootstrapAgent {
	p.t.Helper()
	conn, err := grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(p.t.Context(), wait.Bound)
	p.t.Cleanup(cancel)
	a, client := &bootstrapAgent{t: p.t}, discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if delta {
		a.delta, err = client.DeltaAggregatedResources(ctx)
	} else {
		a.sotw, err = client.StreamAggregatedResources(ctx)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	_, ns, _ := strings.Cut(strings.Split(node, "~")[2], ".")
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": ns, mesh.BootstrapKey: says, "LABELS": map[string]any{"app": "a"}})
	if err != nil {
		p.t.Fatal(err)
	}
	a.ask(&corev3.Node{Id: node, Metadata: meta}, typ, "", nil)
	return a
}

func (a *bootstrapAgent) ask(node *corev3.Node, typ, nonce string, refusal *status.Status) {
	a.t.Helper()
	var err error
	if a.delta != nil {
		err = a.delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: refusal})
	} else {
		err = a.sotw.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: refusal})
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// receive returns the type, the nonce and the resources of the next response.
func (a *bootstrapAgent) receive() (typ, nonce string, bodies [][]byte) {
	a.t.Helper()
	if a.delta == nil {
		m, err := a.sotw.Recv()
		if err != nil {
			a.t.Fatal(err)
		}
		for _, r := range m.GetResources() {
			bodies = append(bodies, r.GetValue())
		}
		return m.GetTypeUrl(), m.GetNonce(), bodies
	}
	m, err := a.delta.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	for _, r := range m.GetResources() {
		bodies = append(bodies, r.GetResource().GetValue())
	}
	return m.GetTypeUrl(), m.GetNonce(), bodies
}

// next acknowledges the next bootstrap, or refuses it, and returns it.
func (a *bootstrapAgent) next(refusal *status.Status) *bootstrapv3.Bootstrap {
	a.t.Helper()
	typ, nonce, bodies := a.receive()
	b := &bootstrapv3.Bootstrap{}
	if typ != mesh.BootstrapType || len(bodies) != 1 || proto.Unmarshal(bodies[0], b) != nil {
		a.t.Fatalf("%s with %d resources, want one bootstrap", typ, len(bodies))
	}
	a.ask(nil, typ, nonce, refusal)
	return b
}

const bootstrapFilter = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: NAME, namespace: NS}
spec:
  workloadSelector: {labels: {app: a}}
  configPatches:
  - applyTo: BOOTSTRAP
    match: {context: CONTEXT}
    patch: {operation: MERGE, value: {stats_config: {stats_tags: [{tag_name: NAME, fixed_value: VALUE}]}}}
`

func TestBootstrapsOverXDS(t *testing.T) {
	p := start(t)
	filter := func(name, ns, context, value string) string {
		return strings.NewReplacer("NAME", name, "NS", ns, "CONTEXT", context, "VALUE", value).Replace(bootstrapFilter)
	}
	p.emit(shop+"---"+filter("root", "istio-system", "ANY", "one")+"---"+filter("own", "shop", "SIDECAR_INBOUND", "two")+"---"+filter("gateways", "istio-system", "GATEWAY", "three"), true)
	tags := func(b *bootstrapv3.Bootstrap) (out []string) {
		for _, t := range b.GetStatsConfig().GetStatsTags() {
			out = append(out, t.GetTagName()+"="+t.GetFixedValue())
		}
		return out
	}
	var id string
	for i, delta := range []bool{false, true} {
		pod := fmt.Sprintf("a-%d.shop", i)
		id = "sidecar~10.99.7.1~" + pod + "~shop.svc.cluster.local"
		p.emit(filter("own", "shop", "SIDECAR_INBOUND", "two"), false)
		before := p.bootstrapAgent(delta, id, mesh.BootstrapType, "true")
		if got := tags(before.next(nil)); !slices.Equal(got, []string{"root=one", "own=two"}) {
			t.Errorf("delta %v: %v", delta, got)
		}
		if got := tags(p.bootstrapAgent(delta, "router~10.99.7.2~gw.istio-system~istio-system.svc.cluster.local", mesh.BootstrapType, "true").next(nil)); !slices.Equal(got, []string{"gateways=three", "root=one"}) {
			t.Errorf("delta %v: of a router: %v", delta, got)
		}
		if got := tags(p.bootstrapAgent(delta, "sidecar~10.99.7.3~b-1.other~other.svc.cluster.local", mesh.BootstrapType, "true").next(nil)); !slices.Equal(got, []string{"root=one"}) {
			t.Errorf("delta %v: in another namespace: %v", delta, got)
		}
		if _, listed := p.sync()[pod]; listed {
			t.Errorf("delta %v: an agent that asks before Envoy's start is listed as a proxy", delta)
		}
		// On Envoy's stream, too; and a change reaches both.
		with := p.bootstrapAgent(delta, id, "type.googleapis.com/envoy.config.listener.v3.Listener", "true")
		typ, nonce, _ := with.receive()
		with.ask(nil, typ, nonce, nil)
		with.ask(nil, mesh.BootstrapType, "", nil)
		if got := tags(with.next(&status.Status{Code: 3, Message: "no"})); !slices.Equal(got, []string{"root=one", "own=two"}) {
			t.Errorf("delta %v: on Envoy's stream: %v", delta, got)
		}
		p.emit(filter("own", "shop", "SIDECAR_INBOUND", "changed"), false)
		for _, a := range []*bootstrapAgent{before, with} {
			if got := tags(a.next(nil)); !slices.Equal(got, []string{"root=one", "own=changed"}) {
				t.Errorf("delta %v: after a change: %v", delta, got)
			}
		}
	}
	// Agents of Istio 1.9 to 1.12 would take the differences for the whole.
	old := p.bootstrapAgent(false, id, mesh.BootstrapType, "")
	if typ, _, bodies := old.receive(); typ != mesh.BootstrapType || len(bodies) != 0 {
		t.Errorf("an agent that does not say that it merges got %d bootstraps", len(bodies))
	}
}

// What is left out of a bootstrap is told as of other patches, and a patch that takes effect is told to do so at the start only.
func TestProblemsOfBootstraps(t *testing.T) {
	p := start(t)
	p.emit(shop+`---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: f, namespace: shop}
spec:
  configPatches:
  - {applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {static_resources: {clusters: [{name: xds-grpc}]}}}}
  - {applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 9s}}}
`, true)
	has := func(severity, field, text string) bool {
		return slices.ContainsFunc(p.objects(), func(e objectEntry) bool {
			return e.Object == "EnvoyFilter shop/f" && e.Severity == severity && e.Field == field && strings.Contains(e.Text, text)
		})
	}
	if !has("info", "spec.configPatches[1].applyTo", "BOOTSTRAP_XDS_AGENT=true") {
		t.Errorf("nothing says when it takes effect: %v", p.objects())
	}
	if has("warning", "spec.configPatches[0]", "") {
		t.Error("a patch of the bootstrap is spoken of although no agent has asked")
	}
	got := p.bootstrapAgent(true, "sidecar~10.99.7.1~a-1.shop~shop.svc.cluster.local", mesh.BootstrapType, "true").next(nil)
	if got.GetStatsFlushInterval().GetSeconds() != 9 || got.GetStaticResources() != nil {
		t.Errorf("got %v", got)
	}
	if !has("warning", "spec.configPatches[0]", `left out at 1 resources, such as bootstrap of a-1.shop: there would be two static clusters "xds-grpc"`) {
		t.Errorf("nothing says what is left out: %v", p.objects())
	}
	if has("warning", "spec.configPatches[1]", "") {
		t.Error("the other patch is spoken of")
	}
}
