package discovery

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// script is a source that emits the batches that a test sends it.
type script struct {
	batches chan object.Batch
	behind  atomic.Bool
}

func (s *script) Behind() (time.Time, bool) { return time.Now(), s.behind.Load() }

func (s *script) Run(ctx context.Context, emit func(object.Batch)) error {
	for {
		select {
		case b := <-s.batches:
			emit(b)
		case <-ctx.Done():
			return nil
		}
	}
}

// plane is a control plane under test.
type plane struct {
	t      *testing.T
	server *Server
	source *script
	addr   Ports
	// stop ends the control plane, and returns what Run returned.
	stop func() error
}

func start(t *testing.T, change ...func(*Options)) *plane {
	t.Helper()
	p := &plane{t: t, source: &script{batches: make(chan object.Batch)}}
	any := "127.0.0.1:0"
	o := Options{
		StateDir: wait.Folder(t), Names: Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"}, Version: "test",
		Ports: Ports{HTTP: any, GRPC: any, SecureGRPC: any, Monitoring: any}, HTTP: HTTPOptions{Shutdown: time.Second}, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	srv, err := newServer(t.Context(), o, multi.Options{First: p.source}, openKeeper(o.StateDir, o.ConfigDir, o.Log))
	if err != nil {
		t.Fatal(err)
	}
	p.server, p.addr = srv, srv.Addresses()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	p.stop = sync.OnceValue(func() error {
		stop()
		return <-ended
	})
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return p
}

// emit sends the control plane a batch of YAML and waits until the loop has applied it.
func (p *plane) emit(yaml string, synced bool) {
	p.t.Helper()
	res := decode.Documents("input.yaml", []byte(yaml))
	b := object.Batch{Synced: synced, Problems: res.Problems}
	for _, o := range res.Objects {
		b.Changes = append(b.Changes, object.Change{Key: o.Key, Object: &o})
	}
	p.batch(b)
}

func (p *plane) batch(b object.Batch) {
	p.t.Helper()
	p.source.batches <- b
	// The empty batch is received after the first; the question is answered after both.
	p.source.batches <- object.Batch{}
	p.server.loop.ask(func() {})
	wait.Until(p.t, "the loop takes the batch", func() bool { return len(p.server.loop.batches) == 0 })
	p.server.loop.ask(func() {})
}

// get is the body and status of one of the plane's pages.
func (p *plane) get(addr, path string) (int, string) {
	p.t.Helper()
	resp, err := http.Get("http://" + addr + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (p *plane) objects() []objectEntry {
	p.t.Helper()
	_, body := p.get(p.addr.HTTP, "/debug/objectz")
	var out []objectEntry
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

const shop = `
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: reviews}, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reviews-1, namespace: shop, labels: {app: reviews}}
status: {phase: Running, podIP: 10.99.0.1}
`

func route(body string) string {
	return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop}\nspec: {hosts: [reviews], http: [" + body + "]}\n"
}

func TestNothingIsServedBeforeTheSourceIsRead(t *testing.T) {
	p := start(t)
	if code, body := p.get(p.addr.HTTP, "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not been read") {
		t.Errorf("/ready before the source has synced: %d %q", code, body)
	}
	p.emit(shop, false)
	c := p.dial("", "")
	if err := c.refusal(); !strings.Contains(err.Error(), "Unavailable") || !strings.Contains(err.Error(), "not been read") {
		t.Errorf("stream before the source has synced: %v", err)
	}
	p.batch(object.Batch{Synced: true})
	if code, _ := p.get(p.addr.HTTP, "/ready"); code != http.StatusOK {
		t.Errorf("/ready after the source has synced: %d", code)
	}
	p.dial("", "").open().expect("CDS", "outbound|9080||reviews.shop.svc.cluster.local")
}

func TestInvalidEditKeepsTheLastGoodVersion(t *testing.T) {
	var log wait.Output
	p := start(t, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	p.emit(shop+"---"+"\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	c := p.dial("", "").open()
	c.expect("RDS", "9080")
	if !strings.Contains(c.text("9080"), "first") {
		t.Fatalf("the route is not there: %q", c.text("9080"))
	}
	p.emit(route("{name: second, route: [{destination: {host: reviews}, weight: -1}]}"), false)
	got := p.objects()
	if len(got) != 1 || got[0].Severity != "error" || got[0].Object != "VirtualService shop/reviews" || got[0].Origin == "" || !strings.Contains(got[0].Field, "http[0]") {
		t.Errorf("problems %+v, want one error that names VirtualService shop/reviews, its place and its field", got)
	}
	p.emit("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n", false)
	if n := strings.Count(log.String(), "its last good value stays"); n != 1 {
		t.Errorf("the log tells of it %d times, want once:\n%s", n, log.String())
	}
	p.emit(route("{name: third, route: [{destination: {host: reviews}}]}"), false)
	c.until("9080", "third")
	if strings.Contains(strings.Join(c.seen, " "), "second") {
		t.Error("the bad value reached a proxy")
	}
	if got := p.objects(); len(got) != 0 {
		t.Errorf("problems after the repair: %+v", got)
	}
	if !strings.Contains(log.String(), "configuration problem is gone") {
		t.Errorf("the log does not tell of the repair:\n%s", log.String())
	}
}

// Two proxies of one namespace, with different services, share their outbound resources.
func TestSharedResourcesRemainWhenAProxyDisconnects(t *testing.T) {
	p := start(t)
	p.emit(shop+"---\n"+route("{name: first, route: [{destination: {host: reviews}}]}"), true)
	stays := p.dial("", "").open()
	stays.until("9080", "first")
	leaves := p.connectAs("other", p.addr.GRPC, insecure.NewCredentials(), "").open()
	leaves.until("9080", "first")
	connected := func() int {
		var list []any
		_, body := p.get(p.addr.HTTP, "/debug/syncz")
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := connected(); n != 2 {
		t.Fatalf("%d proxies are connected", n)
	}
	if err := leaves.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "one proxy has left", func() bool { return connected() == 1 })
	p.emit(route("{name: second, route: [{destination: {host: reviews}}]}"), false)
	stays.until("9080", "second")
	if err := stays.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "nobody is connected", func() bool { return connected() == 0 })
	var ahead time.Duration // of the time; more each time, since a class may become idle in between
	wait.Until(t, "nothing is kept for nobody", func() (nothing bool) {
		p.server.loop.ask(func() {
			v := p.server.loop.views
			ahead += v.idle.limits.age
			v.now = func() time.Time { return time.Now().Add(ahead) }
			v.dropIdle()
			nothing = len(v.classes)+len(v.layers.byKey)+len(v.proxies)+len(v.byKey) == 0
		})
		return nothing
	})
}

func TestPolicyChangesTheClassOfAProxy(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.expect("LDS", "virtualInbound")
	if !strings.Contains(c.text("virtualInbound"), "raw_buffer") {
		t.Fatal("a permissive workload must take plaintext")
	}
	p.emit("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: w, namespace: shop}\nspec: {selector: {matchLabels: {app: reviews}}, mtls: {mode: STRICT}}\n", false)
	c.untilGone("virtualInbound", "raw_buffer")
	_, body := p.get(p.addr.HTTP, "/debug/syncz")
	if !strings.Contains(body, "policies=shop/w") {
		t.Errorf("/debug/syncz does not tell the new class: %s", body)
	}
}

func TestConfigMapOverridesMeshFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(file, []byte("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, func(o *Options) { o.MeshFile = file })
	p.emit(shop, true)
	c := p.dial("", "").open()
	c.until("9080", "block_all")
	p.emit("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"outboundTrafficPolicy: {mode: ALLOW_ANY}\"}\n", false)
	c.until("9080", "allow_any")
}

func TestDebugPages(t *testing.T) {
	p := start(t)
	p.emit(shop, true)
	type entry struct {
		syncEntry
		ClusterSent  string `json:"cluster_sent"`
		ClusterAcked string `json:"cluster_acked"`
		RouteAcked   string `json:"route_acked"`
	}
	syncz := func() (got []entry) {
		_, body := p.get(p.addr.HTTP, "/debug/syncz")
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	c := p.dial("", "")
	c.expect("CDS", "outbound|9080||reviews.shop.svc.cluster.local")
	wait.Until(t, "the proxy has acknowledged clusters and asked for nothing else", func() bool {
		got := syncz()
		if len(got) != 1 || got[0].ClusterAcked == "" {
			return false
		}
		for _, typ := range []string{"CDS", "EDS", "LDS", "RDS"} {
			if st, ok := got[0].Types[typ]; !ok || st.Asked != (typ == "CDS") {
				t.Errorf("%s is %+v, listed: %v", typ, st, ok)
			}
		}
		return got[0].Applied == 0
	})
	if got := syncz()[0].NotApplied; len(got) != 1 || got[0] != "proxyHeaders" {
		t.Errorf("not applied of the proxy's configuration: %q", got)
	}
	c.open()
	c.expect("RDS", "9080")
	wait.Until(t, "the proxy has applied its generation", func() bool {
		got := syncz()
		return len(got) == 1 && got[0].Proxy == "reviews-1.shop" && got[0].Applied == got[0].Generation && got[0].Applied > 0 &&
			got[0].ClusterSent == got[0].ClusterAcked && got[0].ClusterSent != "" && got[0].RouteAcked != "" && got[0].Types["CDS"].Resources > 0
	})
	code, body := p.get(p.addr.HTTP, "/debug/config_dump?proxyID=reviews-1.shop")
	for _, want := range []string{"ClustersConfigDump", "ListenersConfigDump", "RoutesConfigDump", "EndpointsConfigDump", "10.99.0.1"} {
		if code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("config dump (%d) lacks %s", code, want)
		}
	}
	if code, body := p.get(p.addr.HTTP, "/debug/config_dump?proxyID=nobody.shop"); code != http.StatusNotFound || !strings.Contains(body, "not connected") {
		t.Errorf("config dump of nobody: %d %q", code, body)
	}
	_, metrics := p.get(p.addr.Monitoring, "/metrics")
	for _, want := range []string{
		`pilot_info{version="test"} 1`, `istio_build{component="pilot",tag="test"} 1`, "pilot_services 1", `pilothouse_classes{part="class"} 1`, `pilothouse_classes{part="scope"} 1`,
		"istiod_uptime_seconds", "citadel_server_csr_count", `pilothouse_rule_runs_total{rule="cluster"}`, "pilot_xds_pushes", "pilothouse_xds_stuck 0",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}
