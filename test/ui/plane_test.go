package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/test/wait"
)

// plane is a control plane that reads a directory.
type plane struct {
	t    *testing.T
	dir  string
	addr discovery.Ports
	stop func()
	// complaint is why proxies refuse something.
	complaint string
}

// start starts a control plane of some YAML, and waits until it is ready.
func start(t *testing.T, yaml string) *plane {
	t.Helper()
	return startWith(t, yaml, nil)
}

// startWith starts one that asks a Prometheus server; nil for none.
func startWith(t *testing.T, yaml string, prometheus *url.URL) *plane {
	t.Helper()
	p := &plane{t: t, dir: t.TempDir(), complaint: "is not a retry policy that this Envoy has"}
	p.write("mesh.yaml", yaml)
	const any = "127.0.0.1:0"
	s, err := discovery.New(t.Context(), discovery.Options{
		ConfigDir: p.dir, StateDir: t.TempDir(), Names: discovery.Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"},
		Ports:     discovery.Ports{HTTP: any, GRPC: any},
		Keepalive: discovery.Keepalive{Interval: 30 * time.Second, Timeout: 10 * time.Second},
		CA:        discovery.CAOptions{Limits: policy.Limits{DefaultTTL: time.Hour, MaxTTL: time.Hour}, RootTTL: 24 * time.Hour},
		HTTP:      discovery.HTTPOptions{Shutdown: 5 * time.Second, Prometheus: prometheus},
		Version:   "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	p.addr = s.Addresses()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(p.stop)
	wait.Until(t, "the configuration to be read", func() bool {
		resp, err := http.Get("http://" + p.addr.HTTP + "/ready")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// page is the URL of the page.
func (p *plane) page() string { return "http://" + p.addr.HTTP + "/ui/" }

// write replaces a file of the directory whole.
func (p *plane) write(name, text string) {
	p.t.Helper()
	spare := filepath.Join(p.t.TempDir(), name)
	if err := os.WriteFile(spare, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(spare, filepath.Join(p.dir, name)); err != nil {
		p.t.Fatal(err)
	}
}

// connect connects a proxy that accepts all but resources with a text in them, until the test ends.
func (p *plane) connect(name, namespace, app, refuses string) {
	p.t.Helper()
	conn, err := grpc.NewClient(p.addr.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	labels, err := structpb.NewStruct(map[string]any{"app": app})
	if err != nil {
		p.t.Fatal(err)
	}
	node := &corev3.Node{
		Id: "sidecar~10.99.0.1~" + name + "." + namespace + "~" + namespace + ".svc.cluster.local", Cluster: app + "." + namespace, UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40}}},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"NAMESPACE": structpb.NewStringValue(namespace), "LABELS": structpb.NewStructValue(labels), "ENVOY_EPOCH": structpb.NewStringValue("2"),
		}},
	}
	const prefix = "type.googleapis.com/envoy.config."
	ask := func(r *discoveryv3.DeltaDiscoveryRequest) {
		r.Node = node
		node = nil
		_ = stream.Send(r) // the test may be over
	}
	for _, typ := range []string{"cluster.v3.Cluster", "listener.v3.Listener"} {
		ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: prefix + typ, ResourceNamesSubscribe: []string{"*"}})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		asked := map[string]bool{}
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
			var routes, endpoints []string
			for _, res := range r.Resources {
				if refuses != "" && bytes.Contains(res.Resource.Value, []byte(refuses)) {
					answer.ErrorDetail = &rpcstatus.Status{Code: 13, Message: res.Name + ": " + refuses + " " + p.complaint}
				}
				if strings.HasSuffix(r.TypeUrl, "Listener") && !asked[res.Name] && !strings.HasPrefix(res.Name, "virtual") && strings.Contains(res.Name, "_") {
					asked[res.Name] = true
					routes = append(routes, strings.SplitN(res.Name, "_", 2)[1])
				}
				if strings.HasSuffix(r.TypeUrl, "Cluster") && !asked[res.Name] && strings.HasPrefix(res.Name, "outbound") {
					asked[res.Name] = true
					endpoints = append(endpoints, res.Name)
				}
			}
			ask(answer)
			if len(endpoints) > 0 {
				ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: prefix + "endpoint.v3.ClusterLoadAssignment", ResourceNamesSubscribe: endpoints})
			}
			if len(routes) > 0 {
				ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: prefix + "route.v3.RouteConfiguration", ResourceNamesSubscribe: routes})
			}
		}
	}()
	p.t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
}

// service is the YAML of a Service with a Pod of each of some versions.
func service(namespace, name string, number int, versions ...string) string {
	out := fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {clusterIP: 10.%[3]d.%[4]d.%[5]d, selector: {app: %[2]s}, ports: [{name: http, port: 9080}]}
---`, namespace, name, 96+number/60000, number/250%250, number%250+1)
	for i, v := range versions {
		out += fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[2]s-%[6]s, namespace: %[1]s, labels: {app: %[2]s, version: %[6]s, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: %[2]s}
status: {phase: Running, podIP: 10.%[3]d.%[4]d.%[5]d, conditions: [{type: Ready, status: "True"}]}
---`, namespace, name, 120+i, number/250%250, number%250+1, v)
	}
	return out
}
