package bench

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/policytest"
)

// BenchmarkMetricsRequests sends requests one after another through real Envoys, with what a server's listener has for Istio's metrics,
// and, for comparison, for the default access log. The Envoys take turns, a hundred requests each, so that what else the machine does
// burdens all alike; the figures are those of the median turn. -benchtime 300x is enough turns.
func BenchmarkMetricsRequests(b *testing.B) {
	const perTurn = 100
	const label = "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: istio-system}\n" +
		"spec: {metrics: [{overrides: [{tagOverrides: {request_host: {value: request.host}, source_principal: {operation: REMOVE}}}]}]}\n"
	cases := []struct {
		name, telemetry, log string
		metrics              bool
		conn                 *policytest.Conn
		turns                []time.Duration
	}{{name: "without"}, {name: "metrics", metrics: true}, {name: "overrides", metrics: true, telemetry: label}, {name: "log", log: "/dev/null"}}
	request := policytest.Request{Method: http.MethodGet, Host: "web", Path: "/", Headers: map[string][]string{mesh.PeerHeader: {"client;shop;client;v1;Kubernetes;client;v1"}}}
	for i := range cases {
		c := &cases[i]
		m := mesh.DefaultMeshConfig()
		m.AccessLogFile = c.log
		if c.metrics {
			m.DefaultProviders = &meshv1.MeshConfig_DefaultProviders{Metrics: []string{"prometheus"}}
		}
		compiled := serverManager(b, m, c.telemetry)
		pki, boot := policytest.NewPKI(b), envoytest.Bootstrap()
		boot.Node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{mesh.WorkloadFactsKey: structpb.NewStringValue("web;shop;web;v1;Kubernetes;web;v1")}}
		filters := slices.DeleteFunc(compiled.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return !strings.HasSuffix(f.GetName(), ".header_to_metadata") })
		chain := policytest.Manager(b, filters, func(h *hcmv3.HttpConnectionManager) { h.AccessLog = compiled.GetAccessLog() })
		boot.StaticResources.Listeners = append(boot.StaticResources.Listeners, pki.Listener(b, "l", chain))
		c.conn = pki.Dial(b, envoytest.Start(b, boot)["l"], "cluster.local/ns/shop/sa/client")
	}
	for b.Loop() {
		for i := range cases {
			began := time.Now()
			for range perTurn {
				if status, _ := cases[i].conn.Ask(b, request); status != http.StatusOK {
					b.Fatalf("status %d", status)
				}
			}
			cases[i].turns = append(cases[i].turns, time.Since(began))
		}
	}
	for _, c := range cases {
		slices.Sort(c.turns)
		b.ReportMetric(perTurn/c.turns[len(c.turns)/2].Seconds(), c.name+"/s")
	}
}

// serverManager returns the connection manager of a server's requests with mutual TLS, in a mesh with a Telemetry or an empty text.
func serverManager(b *testing.B, m *meshv1.MeshConfig, telemetry string) *hcmv3.HttpConnectionManager {
	b.Helper()
	z := size{services: 1, namespaces: 1}
	texts := z.yaml()
	if telemetry != "" {
		texts = append(texts, telemetry)
	}
	w := load(changes(b, texts...))
	w.model.SetMesh(m)
	w.join(z.proxy(b, 0))
	w.graph.Run()
	for _, keys := range w.held {
		for _, k := range keys {
			if k.Kind != compile.ListenerInbound {
				continue
			}
			v, _ := w.compiler.Resource(k.Kind).Value(k)
			a, l := &anypb.Any{}, &listenerv3.Listener{}
			if err := errors.Join(proto.Unmarshal(v.Encoded(), a), a.UnmarshalTo(l)); err != nil {
				b.Fatal(err)
			}
			for _, chain := range l.GetFilterChains() {
				if chain.GetTransportSocket() == nil || chain.GetFilterChainMatch().GetDestinationPort() == nil {
					continue
				}
				if h := (&hcmv3.HttpConnectionManager{}); anypb.UnmarshalTo(chain.GetFilters()[len(chain.GetFilters())-1].GetTypedConfig(), h, proto.UnmarshalOptions{}) == nil {
					return h
				}
			}
		}
	}
	b.Fatal("the server has no connection manager")
	return nil
}
