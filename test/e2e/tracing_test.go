package e2e_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// span is what a collector of any kind was told of one request at one proxy.
type span struct {
	Trace, ID, Parent, Service string
	Client                     bool
	Tags                       map[string]string
}

// spans are those that a collector has received.
type spans struct {
	mutex sync.Mutex
	list  []span
	held  chan struct{} // until it is closed, the collector does not answer; nil for none
}

func (s *spans) add(list ...span) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.list = append(s.list, list...)
}

// hold has the collector not answer until the test ends.
func (s *spans) hold(t *testing.T) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	held := make(chan struct{})
	s.held = held
	t.Cleanup(func() { close(held) })
}

// wait waits until the collector is to answer.
func (s *spans) wait(ctx context.Context) {
	s.mutex.Lock()
	held := s.held
	s.mutex.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// of returns the spans of a trace.
func (s *spans) of(trace string) (out []span) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range s.list {
		if one.Trace == trace {
			out = append(out, one)
		}
	}
	return out
}

// chain returns the spans of a trace from the first to the last, an error if they are no chain of n.
func (s *spans) chain(trace string, n int) ([]span, error) {
	list := s.of(trace)
	out := make([]span, 0, n)
	for parent := ""; ; parent = out[len(out)-1].ID {
		i := slices.IndexFunc(list, func(one span) bool { return one.Parent == parent })
		if i < 0 {
			break
		}
		out = append(out, list[i])
		list = slices.Delete(list, i, i+1)
	}
	if len(out) != n || len(list) > 0 {
		return nil, fmt.Errorf("trace %s: a chain of %d: %+v, and beside it %+v; want a chain of %d", trace, len(out), out, list, n)
	}
	return out, nil
}

// zipkin takes spans in Zipkin's JSON.
func (s *spans) zipkin(w http.ResponseWriter, r *http.Request) {
	var list []struct {
		TraceID, ID, ParentID, Kind string
		LocalEndpoint               struct{ ServiceName string }
		Tags                        map[string]string
	}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil || r.Method != http.MethodPost {
		http.Error(w, fmt.Sprint(r.Method, err), http.StatusBadRequest)
		return
	}
	s.wait(r.Context())
	for _, one := range list {
		s.add(span{one.TraceID, one.ID, one.ParentID, one.LocalEndpoint.ServiceName, one.Kind == "CLIENT", one.Tags})
	}
	w.WriteHeader(http.StatusAccepted)
}

// openTelemetry takes spans in OpenTelemetry's protobuf over HTTP.
func (s *spans) openTelemetry(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	list := &tracev1.TracesData{} // a request has the same fields
	if err == nil {
		err = proto.Unmarshal(body, list)
	}
	if err != nil || r.Method != http.MethodPost || r.Header.Get("X-Key") != "k" {
		http.Error(w, fmt.Sprint(r.Method, r.Header, err), http.StatusBadRequest)
		return
	}
	s.export(list, "")
}

// traceService takes spans in OpenTelemetry's gRPC.
var traceService = grpc.ServiceDesc{
	ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		list := &tracev1.TracesData{}
		if err := decode(list); err != nil {
			return nil, err
		}
		token := metadata.ValueFromIncomingContext(ctx, "lightstep-access-token")
		s.(*spans).export(list, strings.Join(token, ","))
		return &emptypb.Empty{}, nil
	}}},
}

// export adds spans, each with the tag "token" if there is a token.
func (s *spans) export(list *tracev1.TracesData, token string) {
	text := func(of []*commonv1.KeyValue) map[string]string {
		out := map[string]string{}
		for _, one := range of {
			out[one.GetKey()] = one.GetValue().GetStringValue()
		}
		return out
	}
	for _, of := range list.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				tags := text(one.GetAttributes())
				if token != "" {
					tags["token"] = token
				}
				s.add(span{
					hex.EncodeToString(one.GetTraceId()), hex.EncodeToString(one.GetSpanId()), hex.EncodeToString(one.GetParentSpanId()),
					text(of.GetResource().GetAttributes())["service.name"], one.GetKind() == tracev1.Span_SPAN_KIND_CLIENT, tags,
				})
			}
		}
	}
}

// serveOn runs a server of HTTP in a Pod. It ends with the test, or when the function is called.
func serveOn(t *testing.T, m *meshup.Mesh, pod, addr string, h http.Handler) (stop func()) {
	t.Helper()
	l, err := m.Pod(pod).Net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: h}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	stop = sync.OnceFunc(func() {
		if err := errors.Join(s.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// traceHeaders are those that an application passes on.
var traceHeaders = []string{"X-Request-Id", "X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Flags", "Traceparent", "Tracestate", "Sw8",
	"X-Datadog-Trace-Id", "X-Datadog-Parent-Id", "X-Datadog-Sampling-Priority", "X-Datadog-Tags", "X-Datadog-Origin"}

// serveCalling answers in a Pod with the headers of each request, after one to another service with its headers about traces.
func serveCalling(t *testing.T, m *meshup.Mesh, pod, addr, next string) {
	t.Helper()
	serveOn(t, m, pod, addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers := http.Header{}
		for _, name := range traceHeaders {
			if v := r.Header.Get(name); v != "" {
				headers.Set(name, v)
			}
		}
		got, err := ask(r.Context(), m, pod, "", next+r.URL.Path, headers)
		if err != nil || got.Status != http.StatusOK {
			http.Error(w, fmt.Sprintf("status %d, error %v", got.Status, err), http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(r.Header) // an error means that the caller has gone
	}))
}

// tracing is a mesh of which the gateway, a server that calls another, and this one may send spans.
type tracing struct {
	*meshup.Mesh
	config string
	spans  spans
	stop   func() // ends the collector
}

// startTracing starts the mesh with these providers, whose services are collector.tokens.svc.cluster.local:9411.
func startTracing(t *testing.T, providers string, adjust func(*meshup.Options)) *tracing {
	t.Helper()
	m, config := startWith(t, "tokens", adjust)
	x := &tracing{Mesh: m, config: config}
	serveCalling(t, m, "server-1.tokens", ":9090", "http://canary:9090")
	serveHeaders(t, m, "canary-1.tokens", ":9090")
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v2/spans", x.spans.zipkin)
	mux.HandleFunc("/v1/traces", x.spans.openTelemetry)
	mux.HandleFunc("/v0.4/traces", x.spans.datadog)
	x.stop = serveOn(t, m, "outside-1.tokens", ":9411", mux)
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, config, "mesh.yaml", strings.NewReplacer(
		"  mesh: |\n", "  mesh: |\n    extensionProviders:\n"+providers,
		"ports: [{name: http, port: 9080}]}", "ports: [{name: http, port: 9080}, {name: http-own, port: 9090}]}",
	).Replace(string(text)))
	put(t, config, "collector.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: collector, namespace: tokens}\nspec: {clusterIP: 10.96.40.9, selector: {app: outside}, ports: [{name: http, port: 9411}, {name: grpc, port: 4317}]}\n")
	return x
}

// put sets the tracing of all proxies.
func (x *tracing) put(t *testing.T, spec string) {
	t.Helper()
	put(t, x.config, "telemetry.yaml", "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: all, namespace: istio-system}\nspec:\n  tracing: "+spec+"\n")
}

// through makes a request through the gateway, and returns the headers that the first server saw.
func (x *tracing) through(ctx context.Context, path string, header http.Header) (http.Header, error) {
	got, err := ask(ctx, x.Mesh, "outside-1.tokens", "shop.example.com", "http://10.99.0.9:8080"+path, header)
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("status %d", got.Status)
	}
	return got.Header, err
}

// awaitChain makes requests until the spans of one are the chain of a request's way: the gateway, the server's sidecar twice, and the
// other server's.
func (x *tracing) awaitChain(t *testing.T, what string, header http.Header, id func(http.Header) string, check func([]span) error) {
	t.Helper()
	n := 0
	await(t, what, func(ctx context.Context) error {
		n++
		got, err := x.through(ctx, fmt.Sprintf("/%s-%d", strings.ReplaceAll(what, " ", "-"), n), header)
		if err != nil {
			return err
		}
		trace := id(got)
		if trace == "" {
			return fmt.Errorf("no trace: %v", got)
		}
		return meshup.Await(ctx, 12*time.Second, what, func(context.Context) error {
			list, err := x.spans.chain(trace, 4)
			if err != nil {
				return err
			}
			return check(list)
		})
	})
}

func b3(h http.Header) string { return h.Get("X-B3-Traceid") }

// way checks who has sent the spans of a request's way.
func way(list []span) error {
	for i, want := range []span{{Service: "ingress-1.istio-system", Client: true}, {Service: "server.tokens"}, {Service: "server.tokens", Client: true}, {Service: "canary.tokens"}} {
		if list[i].Service != want.Service || list[i].Client != want.Client {
			return meshup.Final(fmt.Errorf("span %d is of %q, client %v; want %q, %v", i, list[i].Service, list[i].Client, want.Service, want.Client))
		}
	}
	return nil
}

// hasTags checks tags of a span.
func hasTags(s span, want map[string]string) error {
	got := map[string]string{}
	for name := range want {
		got[name] = s.Tags[name]
	}
	if !maps.Equal(got, want) {
		return meshup.Final(fmt.Errorf("tags %v, want %v of %v", got, want, s.Tags))
	}
	return nil
}

// TestTracesOfZipkin has the spans of a request's way be one trace, with the tags and the share that the Telemetry says. A collector that
// is slow or away harms no request.
func TestTracesOfZipkin(t *testing.T) {
	t.Parallel() // it waits most of the time
	x := startTracing(t, "    - {name: zipkin, zipkin: {service: collector.tokens.svc.cluster.local, port: 9411}}\n", func(*meshup.Options) {})
	const tags = "customTags: {lit: {literal: {value: a}}, hdr: {header: {name: x-user}}, fmt: {formatter: {value: '%REQ(:METHOD)%'}}}"
	x.put(t, "[{providers: [{name: zipkin}], randomSamplingPercentage: 100, "+tags+"}]")
	x.awaitChain(t, "all proxies send spans", http.Header{"X-User": {"ann"}}, b3, func(list []span) error {
		if err := way(list); err != nil {
			return err
		}
		return errors.Join(
			hasTags(list[0], map[string]string{"lit": "a", "hdr": "ann", "fmt": "GET", "istio.namespace": "istio-system", "http.status_code": "200"}),
			hasTags(list[1], map[string]string{"lit": "a", "hdr": "ann", "fmt": "GET", "istio.namespace": "tokens", "istio.mesh_id": "unknown", "istio.cluster_id": "Kubernetes", "istio.canonical_revision": "v1", "istio.canonical_service": "server-of-all"}),
			hasTags(list[3], map[string]string{"hdr": "", "istio.canonical_revision": "latest", "istio.canonical_service": "unknown"}),
		)
	})

	// A decision that was made before is kept.
	seen := map[string]bool{}
	for _, sampled := range []string{"0", "1"} {
		trace := fmt.Sprintf("1%031x", 0xabc0+len(seen)) // with 64 bits of zeros first, Envoy writes the other 64 only
		got, err := x.through(t.Context(), "/decided", http.Header{"X-B3-Traceid": {trace}, "X-B3-Spanid": {"00000000000000aa"}, "X-B3-Sampled": {sampled}})
		if err != nil || b3(got) != trace || got.Get("X-B3-Sampled") != sampled {
			t.Errorf("sampled %s: %v, error %v", sampled, got, err)
		}
		seen[trace] = sampled == "1"
	}
	x.put(t, "[{providers: [{name: zipkin}], randomSamplingPercentage: 50}]")
	await(t, "about half of the requests are traced", func(ctx context.Context) error {
		const all = 100
		n := 0
		for range all {
			got, err := x.through(ctx, "/share", nil)
			if err != nil {
				return err
			}
			if seen[b3(got)] = got.Get("X-B3-Sampled") == "1"; seen[b3(got)] {
				n++
			}
		}
		if n < all/4 || n > all*3/4 {
			return fmt.Errorf("%d of %d", n, all)
		}
		return nil
	})
	// Envoy sends spans once, and counts those that it loses: a sampled trace is not sure to arrive.
	await(t, "sampled traces have arrived, and no others", func(context.Context) error {
		arrived, want := 0, 0
		for trace, sampled := range seen {
			n := len(x.spans.of(trace))
			switch {
			case !sampled && n > 0:
				return meshup.Final(fmt.Errorf("%s is not sampled and has %d spans", trace, n))
			case sampled:
				want++
			}
			if n == 4 {
				arrived++
			}
		}
		if arrived < want*3/4 {
			return fmt.Errorf("%d of %d have all their spans", arrived, want)
		}
		return nil
	})

	x.put(t, "[{providers: [{name: zipkin}], randomSamplingPercentage: 100}]")
	x.spans.hold(t)
	works := func(ctx context.Context) error {
		got, err := x.through(ctx, "/unharmed", nil)
		if err == nil && got.Get("X-B3-Sampled") != "1" {
			err = fmt.Errorf("not traced: %v", got)
		}
		return err
	}
	steady(t, "requests are answered while the collector is not", works)
	x.stop()
	steady(t, "requests are answered without a collector", works)

	x.put(t, "[{disableSpanReporting: true}]")
	steady(t, "nothing is traced", func(ctx context.Context) error {
		got, err := x.through(ctx, "/off", nil)
		if err == nil && b3(got) != "" {
			err = fmt.Errorf("traced: %v", got)
		}
		return err
	})
}

// collect serves a gRPC service, which is given the spans, at port 4317 of the Pod outside.
func (x *tracing) collect(t *testing.T, service *grpc.ServiceDesc) {
	t.Helper()
	l, err := x.Pod("outside-1.tokens").Net.Listen("tcp", ":4317")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(service, &x.spans)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestTracesOfOpenTelemetry has the spans of a request's way be one trace at a collector of OpenTelemetry, by HTTP and by gRPC, each with
// the name of its proxy's service.
func TestTracesOfOpenTelemetry(t *testing.T) {
	t.Parallel() // it waits most of the time
	const at = "opentelemetry: {service: collector.tokens.svc.cluster.local, port: "
	x := startTracing(t, "    - {name: http, "+at+"9411, http: {path: /v1/traces, headers: [{name: x-key, value: k}]}}}\n    - {name: grpc, "+at+"4317}}\n", func(*meshup.Options) {})
	x.collect(t, &traceService)
	for _, provider := range []string{"http", "grpc"} {
		x.put(t, "[{providers: [{name: "+provider+"}], randomSamplingPercentage: 100, customTags: {by: {literal: {value: "+provider+"}}}}]")
		x.awaitChain(t, "all proxies send spans by "+provider, nil, traceparent, func(list []span) error {
			if err := way(list); err != nil {
				return err
			}
			for _, one := range list {
				if by := one.Tags["by"]; by != provider {
					return fmt.Errorf("a span came by %s, want %s", by, provider) // its proxy does not have the new provider yet
				}
			}
			return hasTags(list[1], map[string]string{"istio.namespace": "tokens", "istio.canonical_service": "server-of-all"})
		})
	}
}

// traceparent is the trace that a request belongs to.
func traceparent(h http.Header) string {
	_, rest, _ := strings.Cut(h.Get("Traceparent"), "-")
	id, _, _ := strings.Cut(rest, "-")
	return id
}

// TestTracesOfLightstep has proxies send spans to a collector of Lightstep, which takes OpenTelemetry from those with its token.
func TestTracesOfLightstep(t *testing.T) {
	t.Parallel() // it waits most of the time
	x := startTracing(t, "      []\n", func(o *meshup.Options) {
		o.ProxyConfig += "\ntracing: {sampling: 100, lightstep: {address: '10.99.0.10:4317', accessToken: secret-of-lightstep}}"
	})
	x.collect(t, &traceService)
	x.awaitChain(t, "all proxies send spans", nil, traceparent, func(list []span) error {
		return errors.Join(way(list), hasTags(list[1], map[string]string{"token": "secret-of-lightstep", "istio.namespace": "tokens"}))
	})
}

// TestTracesOfTheBootstrap has proxies use the tracers of their bootstraps, as ProxyConfig says, until enableTracing is false.
func TestTracesOfTheBootstrap(t *testing.T) {
	t.Parallel() // it waits most of the time
	x := startTracing(t, "      []\n", func(o *meshup.Options) {
		o.ProxyConfig += "\ntracing: {sampling: 100, zipkin: {address: '10.99.0.10:9411'}, customTags: {own: {literal: {value: mine}}}, enableIstioTags: false}"
	})
	x.awaitChain(t, "all proxies send spans", nil, b3, func(list []span) error {
		if got, ok := list[1].Tags["istio.namespace"]; ok {
			return fmt.Errorf("the tag istio.namespace is %q, want none", got)
		}
		return errors.Join(way(list), hasTags(list[1], map[string]string{"own": "mine"}))
	})
	text, err := os.ReadFile(filepath.Join(x.config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, x.config, "mesh.yaml", strings.Replace(string(text), "  mesh: |\n", "  mesh: |\n    enableTracing: false\n", 1))
	steady(t, "nothing is traced", func(ctx context.Context) error {
		got, err := x.through(ctx, "/off", nil)
		if err == nil && b3(got) != "" {
			err = fmt.Errorf("traced: %v", got)
		}
		return err
	})
}
