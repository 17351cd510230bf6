package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/require"
)

func TestMain(m *testing.M) {
	if sdsClient() || takeSocket() {
		return
	}
	require.Envoy()
	code := m.Run()
	agenttest.Cleanup()
	os.Exit(code)
}

func TestProxyFromStartToEnd(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "")
	a.Start()
	// While there is no control plane, the readiness probe reports it, and Envoy runs.
	agenttest.Until(t, "the agent says why it is not ready", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err != nil {
			return err
		}
		if code != 503 || !strings.Contains(body, "connection refused") {
			return fmt.Errorf("%d %s", code, body)
		}
		_, err = a.Envoy()
		return err
	})
	plane.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if got, want := plane.Node().GetId(), "sidecar~127.0.0.1~a.b~b.svc.cluster.local"; got != want {
		t.Errorf("node id %q, want %q", got, want)
	}
	n, md := plane.Signed()
	if n != 1 || md.Get("clusterid")[0] != "Kubernetes" || md.Get("authorization")[0] != "Bearer token" {
		t.Errorf("%d certificates were signed, the last with %v", n, md)
	}
	for _, line := range []string{`FLAG: --concurrency="0"`, "Version v1.2.3-", "Effective config: ", "Envoy command: [-c ./etc/istio/proxy/envoy-rev.json "} {
		if !strings.Contains(a.Output(), line) {
			t.Errorf("the start log lacks %q", line)
		}
	}
	if code, page, err := a.Get(a.Status, "/metrics"); err != nil || code != 200 || !strings.Contains(page, `istio_agent_istio_build{component="citadel_agent",tag="v1.2.3"} 1`) {
		t.Errorf("metrics: %d, %v\n%.1000s", code, err, page)
	}

	replaceKilledEnvoy(t, a)

	if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	for _, left := range []string{"etc/istio/proxy/envoy-rev.json", "etc/istio/proxy/XDS"} {
		if _, err := os.Lstat(a.Dir + "/" + left); err == nil {
			t.Errorf("%s is left behind", left)
		}
	}
}

// replaceKilledEnvoy kills Envoy and waits until another one is ready.
func replaceKilledEnvoy(t *testing.T, a *agenttest.Process) {
	t.Helper()
	first, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "another Envoy is ready", func() error {
		pid, err := a.Envoy()
		if err == nil && pid == first {
			err = errors.New("the old one is still there")
		}
		if err != nil {
			return err
		}
		return a.Ready()
	})
}

// Probes are answered, and told why, for as long as Envoy drains.
func TestStatusOutlivesEnvoy(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "")
	for i, e := range a.Cmd.Env {
		a.Cmd.Env[i] = strings.Replace(e, "terminationDrainDuration: 0.1s", "terminationDrainDuration: 6s", 1)
	}
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "the status port says that the proxy drains", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err != nil {
			t.Fatalf("the status port is gone before Envoy: %v", err)
		}
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
			return fmt.Errorf("%d %s", code, body)
		}
		_, err = a.Envoy()
		return err
	})
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A control plane whose name does not resolve holds up nothing.
func TestStartNeedsNoName(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "")
	for i, e := range a.Cmd.Env {
		a.Cmd.Env[i] = strings.Replace(e, plane.Addr, "no-such-host.invalid:15012", 1)
	}
	a.Start()
	agenttest.Until(t, "Envoy runs", func() error {
		_, _, err := a.Get(a.Admin, "/server_info")
		return err
	})
	agenttest.Until(t, "readiness names the host", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, "no-such-host.invalid")) {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
}

// A listener that discovery sends serves with the certificate that the CA signed, and
// reaches the agent through the cluster of the bootstrap.
func TestIdentityReachesEnvoy(t *testing.T) {
	plane := agenttest.NewPlane(t)
	port := agenttest.Port(t)
	plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": tlsListener(t, port)})
	plane.Start()
	a := agenttest.New(t, plane, "")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)

	var peer string
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: plane.Roots(),
		InsecureSkipVerify: true, // there is no name to verify but the one below
		VerifyConnection: func(s tls.ConnectionState) error {
			peer = s.PeerCertificates[0].URIs[0].String()
			return nil
		},
	}}}
	resp, err := client.Get("https://" + net.JoinHostPort("127.0.0.1", port) + "/healthz/ready")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := "spiffe://cluster.local/ns/b/sa/c"; resp.StatusCode != http.StatusOK || peer != want {
		t.Errorf("status %d from %q, want 200 from %q", resp.StatusCode, peer, want)
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func tlsListener(t *testing.T, port string) *listenerv3.Listener {
	t.Helper()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	context := &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "default", SdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"},
				}}},
			}},
		}}},
	}}
	proxy := &tcpv3.TcpProxy{StatPrefix: "x", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "agent"}}
	return &listenerv3.Listener{
		Name: "tls",
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
		}}},
		FilterChains: []*listenerv3.FilterChain{{
			TransportSocket: &corev3.TransportSocket{
				Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, context)},
			},
			Filters: []*listenerv3.Filter{{
				Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, proxy)},
			}},
		}},
	}
}

func TestUsersBootstrap(t *testing.T) {
	plane := agenttest.NewPlane(t)
	port := agenttest.Port(t)
	good := `{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": ` + port + `}}}}`

	a := agenttest.New(t, plane, "customConfigFile: custom.json\nproxyAdminPort: "+port)
	a.Write("custom.json", []byte(good))
	a.Start()
	agenttest.Until(t, "Envoy runs what the user wrote", func() error {
		_, _, err := a.Get(port, "/server_info")
		return err
	})
	a.Stop()
	if _, err := os.Stat(filepath.Join(a.Dir, "custom.json")); err != nil {
		t.Errorf("the user's file: %v", err)
	}

	a = agenttest.New(t, plane, "customConfigFile: custom.json")
	a.Write("custom.json", []byte(`{"admin": {"nonsense": 1}, "static_resources": 7}`))
	a.Start()
	if code := a.Wait(); code != 255 || !strings.Contains(a.Output(), "validate Envoy's bootstrap") || strings.Contains(a.Output(), "Envoy command") {
		t.Errorf("exit code %d, want 255, the reason, and no start", code)
	}
}

func TestOverrideIsMerged(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "", "ISTIO_BOOTSTRAP_OVERRIDE=o.yaml", "HOST_IP=10.0.0.9")
	a.Write("o.yaml", []byte("node: {metadata: {HOST: $(HOST_IP)}}"))
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if got := plane.Node().GetMetadata().GetFields()["HOST"].GetStringValue(); got != "10.0.0.9" {
		t.Errorf("the override's metadata is %q", got)
	}
}
