// Package hotrestart_test restarts real Envoys under load; no request may fail.
//
// Here the Runner of internal/agent/envoy runs Envoys with static bootstraps on this machine's
// loopback, and the built agent runs some whose listeners come from a control plane; the whole agent in a mesh is in test/e2e. Requests sent equal requests served:
// nothing on the way may send one twice.
package hotrestart_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
	"github.com/pilothouse/pilothouse/test/load"
)

const (
	patience = 60 * time.Second
	drain    = 2 * time.Second
	shutdown = 4 * time.Second
)

// buffer is a writer that several may use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// proxy is a Runner with real Envoys in front of an app.
type proxy struct {
	*envoy.Runner
	t                         testing.TB
	admin, http, tcp          string
	upstreamHTTP, upstreamTCP string
	served                    *atomic.Int64
	log                       *buffer
	cancel                    context.CancelFunc
	ended                     chan error
}

// slowest is the longest time in nanoseconds that an Envoy of this process took to be live.
var slowest atomic.Int64

// up starts a Runner and waits until its first Envoy is live; adjust may change the options.
func up(t testing.TB, adjust func(*envoy.Options)) *proxy {
	t.Helper()
	p := &proxy{
		t: t, admin: fakeenvoy.FreeAddress(t), http: fakeenvoy.FreeAddress(t), tcp: fakeenvoy.FreeAddress(t),
		served: &atomic.Int64{}, log: &buffer{}, ended: make(chan error, 1),
	}
	p.app()
	policy := supervise.HotPolicy()
	policy.Drain, policy.Grace, policy.Backoff = 200*time.Millisecond, 5*time.Second, 50*time.Millisecond
	o := envoy.Options{
		Admin: p.admin, Policy: policy, Hot: envoy.Hot{ParentShutdown: shutdown}, InboundOnly: true,
		Launch: p.launch("first", 2), Stdout: p.log, Stderr: p.log, Log: slog.New(slog.NewTextHandler(p.log, nil)),
	}
	if adjust != nil {
		adjust(&o)
	}
	p.Runner = envoy.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		p.Quit()
		p.await("the end of the runner", func(s *envoy.State) bool { return s.Over })
		if t.Failed() {
			t.Logf("log:\n%s", p.log)
		}
	})
	p.await("the first Envoy", func(s *envoy.State) bool { return s.Live })
	s := p.State()
	slowest.Store(max(slowest.Load(), int64(s.Since.Sub(s.Started))))
	return p
}

// app is the upstream of Envoy: an HTTP/1.1 server that counts requests, and a TCP server that echoes lines.
func (p *proxy) app() {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		p.served.Add(1)
		_, _ = io.WriteString(w, "hello")
	}))
	s.Config.Protocols = protocols
	s.Start()
	p.t.Cleanup(s.Close)
	p.upstreamHTTP = s.Listener.Addr().String()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	p.upstreamTCP = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func socketAddress(a string) string {
	host, port, _ := strings.Cut(a, ":")
	return fmt.Sprintf("{address: {socket_address: {address: %s, port_value: %s}}}", host, port)
}

// bootstrap writes a configuration; mark is the only difference between two of them.
func (p *proxy) bootstrap(mark string) string {
	inner := func(a string) string { return strings.TrimSuffix(strings.TrimPrefix(socketAddress(a), "{"), "}") }
	cluster := func(name, a string) string {
		return `{name: ` + name + `, connect_timeout: 5s, type: STATIC, load_assignment: {cluster_name: ` + name +
			`, endpoints: [{lb_endpoints: [{endpoint: ` + socketAddress(a) + `}]}]}}`
	}
	text := `
node: {id: ` + mark + `, cluster: test}
admin: ` + socketAddress(p.admin) + `
static_resources:
  listeners:
  - name: http
    traffic_direction: INBOUND
    ` + inner(p.http) + `
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          drain_timeout: 1s
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: app}}]}]}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
  - name: tcp
    traffic_direction: INBOUND
    ` + inner(p.tcp) + `
    filter_chains:
    - filters:
      - name: tcp
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: lines}
  clusters: [` + cluster("app", p.upstreamHTTP) + `, ` + cluster("lines", p.upstreamTCP) + `]
`
	return write(p.t, text)
}

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// launch is a configuration of that name.
func (p *proxy) launch(mark string, workers int) envoy.Launch {
	return envoy.Launch{
		Hash: mark, Binary: envoytest.Binary(p.t), Workers: workers,
		Args: spec.Arguments{Bootstrap: p.bootstrap(mark), Drain: drain, HotRestart: true}.List(),
	}
}

func (p *proxy) await(what string, holds func(*envoy.State) bool) {
	p.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds(p.State()) {
		select {
		case <-tick.C:
		case <-deadline:
			p.t.Fatalf("waited %v for %s; state %+v", patience, what, *p.State())
		}
	}
}

// restart asks for a configuration and waits until it serves alone.
func (p *proxy) restart(l envoy.Launch) *envoy.State {
	p.t.Helper()
	p.Desire(l)
	p.await(l.Hash+" to serve alone", func(s *envoy.State) bool { return s.Live && s.Hash == l.Hash && len(s.Epochs) == 1 })
	return p.State()
}

// traffic begins a load on both listeners.
func (p *proxy) traffic() *load.Load { return p.trafficBy((&net.Dialer{}).DialContext) }

func (p *proxy) trafficBy(dial load.Dial) *load.Load {
	l := load.New(p.t.Context(), dial)
	l.KeepAlive(p.http, 8, 10*time.Millisecond)
	l.Churn(p.http, 4, 10*time.Millisecond)
	l.HTTP2(p.http, 4, 10*time.Millisecond)
	l.Streams(p.tcp, 4, 50*time.Millisecond)
	return l
}

// unharmed stops a load and fails the test if anything failed.
func (p *proxy) unharmed(l *load.Load, live []time.Time) {
	p.t.Helper()
	r := l.Stop()
	if len(r.Failures) > 0 {
		p.t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	if n := p.served.Load(); n != r.Sent {
		p.t.Errorf("%d requests sent, %d served", r.Sent, n)
	}
	if b := r.Broken(live, drain); len(b) > 0 {
		p.t.Errorf("%d streams of %d were broken, the first: %+v", len(b), len(r.Ends), b[0])
	}
	p.t.Logf("%d requests in %v (%.0f/s): %v; %d streams ended after their drain", r.Sent, r.Took.Round(time.Millisecond), r.Rate(), r.Answers, len(r.Ends))
}

func TestHotRestartsLoseNothing(t *testing.T) {
	p := up(t, nil)
	l := p.traffic()
	var live []time.Time
	for i := 1; i <= 3; i++ {
		s := p.restart(p.launch(fmt.Sprint("next-", i), 2))
		live = append(live, s.Since)
		if s.Epoch != i {
			t.Errorf("epoch %d after restart %d", s.Epoch, i)
		}
		p.adminAnswersFor(i)
	}
	p.unharmed(l, live)
}
