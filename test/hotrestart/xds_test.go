package hotrestart_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"                     // named by the resources below
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3" // likewise
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"               // likewise
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"                   // likewise
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// sdsDefault is the certificate that the agent got for its Envoys.
const sdsDefault = `
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_certificate_sds_secret_configs:
            - name: default
              sds_config:
                resource_api_version: V3
                api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}`

func into(t *testing.T, text string, m proto.Message) proto.Message {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = protojson.Unmarshal(asJSON, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// httpListener is one that Envoy binds itself.
func httpListener(t *testing.T, name, address, transport string) proto.Message {
	return into(t, `
    name: `+name+`
    traffic_direction: INBOUND
    address: `+strings.TrimSuffix(strings.TrimPrefix(socketAddress(address), "{address: "), "}")+`
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          drain_timeout: 1s
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: app}}]}]}
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]`+transport,
		&listenerv3.Listener{})
}

func tcpListener(t *testing.T, address string) proto.Message {
	return into(t, `
    name: tcp
    traffic_direction: INBOUND
    address: `+strings.TrimSuffix(strings.TrimPrefix(socketAddress(address), "{address: "), "}")+`
    filter_chains:
    - filters:
      - name: tcp
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: lines}`,
		&listenerv3.Listener{})
}

func cluster(t *testing.T, name, address string) proto.Message {
	return into(t, `{name: `+name+`, connect_timeout: 5s, type: STATIC, load_assignment: {cluster_name: `+name+
		`, endpoints: [{lb_endpoints: [{endpoint: `+socketAddress(address)+`}]}]}}`, &clusterv3.Cluster{})
}

// bound is a built agent whose Envoys bind what a control plane sends: HTTP, HTTP over TLS, TCP.
type bound struct {
	*proxy
	*agenttest.Process
	https string
}

func upOverADS(t *testing.T) *bound {
	t.Helper()
	b := &bound{https: fakeenvoy.FreeAddress(t), proxy: &proxy{
		t: t, http: fakeenvoy.FreeAddress(t), tcp: fakeenvoy.FreeAddress(t), served: &atomic.Int64{},
	}}
	b.app()
	plane := agenttest.NewPlane(t)
	plane.Give(agenttest.ClusterType, map[string]proto.Message{
		"app": cluster(t, "app", b.upstreamHTTP), "lines": cluster(t, "lines", b.upstreamTCP),
	})
	plane.Give(agenttest.ListenerType, map[string]proto.Message{
		"http": httpListener(t, "http", b.http, ""), "https": httpListener(t, "https", b.https, sdsDefault), "tcp": tcpListener(t, b.tcp),
	})
	plane.Start()
	b.Process = agenttest.New(t, plane, fmt.Sprintf(`drainDuration: %v
proxyStatsMatcher:
  inclusionSuffixes: [upstream_cx_connect_fail, ssl.connection_error, ssl.handshake]`, drain), "PARENT_SHUTDOWN_DURATION="+shutdown.String())
	b.Write("etc/istio/pod/annotations", nil)
	b.Start()
	agenttest.Until(t, "the proxy is ready", b.Ready)
	return b
}

// dial makes TLS connections to the listener that wants them.
func (b *bound) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address != b.https {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	// The certificate names an identity and no host.
	return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, network, address)
}

// epoch waits until an epoch serves alone, and returns when it was found live.
func (b *bound) epoch(want int) (live time.Time) {
	b.t.Helper()
	agenttest.Until(b.t, fmt.Sprintf("epoch %d serves alone", want), func() error {
		var info struct {
			State   string
			Options struct {
				Epoch int `json:"restart_epoch"`
			} `json:"command_line_options"`
		}
		var page struct {
			Detail struct {
				Restarts struct{ Processes []struct{ Since time.Time } }
			}
		}
		_, text, err := b.Get(b.Admin, "/server_info")
		_, status, statusErr := b.Get(b.Status, "/debug/status")
		if err := errors.Join(err, statusErr); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal([]byte(text), &info), json.Unmarshal([]byte(status), &page)); err != nil {
			return err
		}
		run := page.Detail.Restarts.Processes
		if info.State != "LIVE" || info.Options.Epoch != want || len(run) != 1 {
			return fmt.Errorf("%+v, %d Envoys run", info, len(run))
		}
		live = run[0].Since
		return nil
	})
	return live
}

// counts are Envoy's counters by name.
func (b *bound) counts(filter string) map[string]int64 {
	b.t.Helper()
	_, text, err := b.Get(b.Admin, "/stats?filter="+filter)
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(text) {
		var n int64
		name, value, _ := strings.Cut(line, ": ")
		if _, err := fmt.Sscan(value, &n); err == nil {
			out[name] = n
		}
	}
	return out
}

// TestHotRestartsOfListenersOverADS: the clients' listeners are bound by Envoy and come from the control plane.
func TestHotRestartsOfListenersOverADS(t *testing.T) {
	t.Parallel()
	b := upOverADS(t)
	b.epoch(0)
	l := b.trafficBy(b.dial)
	l.KeepAlive(b.https, 4, 10*time.Millisecond)
	l.Churn(b.https, 2, 10*time.Millisecond)
	var live []time.Time
	for i := 1; i <= 3; i++ {
		b.Write("etc/istio/pod/annotations", fmt.Appendf(nil, "proxy.istio.io/config=\"{statNameLength: %d}\"\n", 190+i))
		live = append(live, b.epoch(i))
	}
	b.unharmed(l, live)
	if n := b.counts(`ssl\.handshake$`); len(n) == 0 {
		t.Error("nothing tells of TLS connections")
	}
	bad := b.counts(`(upstream_cx_connect_fail|ssl\.connection_error)$`)
	if _, ok := bad["cluster.app.upstream_cx_connect_fail"]; !ok || len(bad) < 3 {
		t.Errorf("what ought to stay zero is not counted: %v", bad)
	}
	for name, n := range bad {
		// The agent's own sockets come and go with its control plane.
		if n != 0 && !strings.HasPrefix(name, "cluster.xds-grpc.") && !strings.HasPrefix(name, "cluster.sds-grpc.") {
			t.Errorf("%s is %d", name, n)
		}
	}
}
