package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	metricsservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// metricsService counts the messages that name a proxy.
type metricsService struct {
	metricsservicev3.UnimplementedMetricsServiceServer
	node atomic.Pointer[string]
}

func (m *metricsService) StreamMetrics(s metricsservicev3.MetricsService_StreamMetricsServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if id := r.GetIdentifier().GetNode().GetId(); id != "" && len(r.GetEnvoyMetrics()) > 0 {
			m.node.Store(&id)
		}
	}
}

// A real Envoy sends its statistics to the collectors that the proxy configuration names, and starts though the address of one cannot be found.
func TestStatisticsReachTheirCollectors(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &metricsService{}
	server := grpc.NewServer()
	metricsservicev3.RegisterMetricsServiceServer(server, service)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, strings.Join([]string{
		"statsdUdpAddress: " + udp.LocalAddr().String(),
		"envoyMetricsService: {address: \"" + l.Addr().String() + "\"}",
		"envoyAccessLogService: {address: \"nowhere.invalid:1\"}",
		"tracing: {zipkin: {address: \"nowhere.invalid:9411\"}}",
	}, "\n"))
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if err := udp.SetReadDeadline(time.Now().Add(agenttest.Bound)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	n, _, err := udp.ReadFrom(buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), "envoy.") {
		t.Errorf("statsd got %q, %v", buf[:n], err)
	}
	agenttest.Until(t, "the metrics service has metrics of the proxy", func() error {
		if id := service.node.Load(); id == nil || !strings.Contains(*id, "~a.b~") {
			return errors.New("it has not")
		}
		return nil
	})
	_, clusters, err := a.Get(a.Admin, "/clusters")
	for _, name := range []string{"envoy_accesslog_service::", "zipkin::", "envoy_metrics_service::"} {
		if err != nil || !strings.Contains(clusters, name) {
			t.Errorf("Envoy has no cluster %s (%v)", name, err)
		}
	}
}

// loadService remembers the node of a report on load.
type loadService struct {
	loadstatsv3.UnimplementedLoadReportingServiceServer
	node atomic.Pointer[string]
}

func (l *loadService) StreamLoadStats(s loadstatsv3.LoadReportingService_StreamLoadStatsServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}
	id := r.GetNode().GetId()
	l.node.Store(&id)
	<-s.Context().Done()
	return nil
}

// A real Envoy reports its load to the service that a setting names, and gets the endpoints of its own service.
func TestLoadIsReportedAndTheOwnServiceIsKnown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := &loadService{}
	server := grpc.NewServer()
	loadstatsv3.RegisterLoadReportingServiceServer(server, service)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	plane := agenttest.NewPlane(t)
	plane.Give("type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", map[string]proto.Message{"local_cluster": &endpointv3.ClusterLoadAssignment{
		ClusterName: "local_cluster", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{Zone: "z7"},
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: "10.1.2.3", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}},
			}}}},
		}},
	}})
	plane.Start()
	a := agenttest.New(t, plane, "envoyMetricsService: {address: \""+l.Addr().String()+"\"}", "ISTIO_META_ENABLE_SELF_DISCOVERY=true",
		`ISTIO_META_LOAD_STATS_CONFIG_JSON={"apiType": "GRPC", "transportApiVersion": "V3", "grpcServices": [{"envoyGrpc": {"clusterName": "envoy_metrics_service"}}]}`)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	agenttest.Until(t, "the load is reported", func() error {
		if id := service.node.Load(); id == nil || !strings.Contains(*id, "~a.b~") {
			return errors.New("it is not")
		}
		return nil
	})
	agenttest.Until(t, "Envoy knows its own service", func() error {
		_, clusters, err := a.Get(a.Admin, "/clusters")
		if err == nil && !strings.Contains(clusters, "local_cluster::10.1.2.3:80::zone::z7") {
			err = errors.New("it does not")
		}
		return err
	})
}

// A control plane before Istio 1.23 sends clusters whose statistics do not end their name with a delimiter; those of later ones do.
func TestTagsOfUndelimitedNames(t *testing.T) {
	plane := agenttest.NewPlane(t)
	const plain, delimited, outside = "outbound|80||a.b.svc.cluster.local", "outbound|81||c.b.svc.cluster.local", "outbound|443||www.example.org"
	clusters := map[string]proto.Message{}
	for name, stat := range map[string]string{plain: "", delimited: delimited + ";", outside: outside + ";"} {
		clusters[name] = &clusterv3.Cluster{Name: name, AltStatName: stat, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}
	}
	plane.Give(agenttest.ClusterType, clusters)
	listeners := map[string]proto.Message{}
	for _, prefix := range []string{"0.0.0.0_80", "outbound_0.0.0.0_81;"} {
		port, err := strconv.ParseUint(agenttest.Port(t), 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		listeners[prefix] = &listenerv3.Listener{
			Name: prefix,
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
			}}},
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
				Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, &hcmv3.HttpConnectionManager{
					StatPrefix: prefix, RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{}},
					HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, &routerv3.Router{})}}},
				})},
			}}}},
		}
	}
	plane.Give(agenttest.ListenerType, listeners)
	plane.Start()
	a := agenttest.New(t, plane, "proxyStatsMatcher: {inclusionPrefixes: [cluster., http.]}", "ENABLE_DELIMITED_STATS_TAG_REGEX=false")
	a.Start()
	agenttest.Until(t, "names of clusters are tags", func() error {
		_, page, err := a.Get(a.Admin, "/stats/prometheus")
		for _, want := range []string{
			`envoy_cluster_membership_total{cluster_name="` + plain + `"}`, `envoy_cluster_membership_total{cluster_name="` + delimited + `"}`,
			`envoy_cluster_membership_total{cluster_name="` + outside + `"}`, `envoy_cluster_membership_total{cluster_name="xds-grpc"}`,
			`envoy_http_downstream_cx_total{http_conn_manager_prefix="0.0.0.0_80"}`, `envoy_http_downstream_cx_total{http_conn_manager_prefix="outbound_0.0.0.0_81"}`,
		} {
			if err == nil && !strings.Contains(page, want) {
				err = fmt.Errorf("%s is missing", want)
			}
		}
		return err
	})
}
