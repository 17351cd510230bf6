package main

import (
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metricsservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	"google.golang.org/grpc"

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
