package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// banned denies requests of a client's address at the router of testdata/tokens.
const banned = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ingress, namespace: istio-system}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{from: [{source: {remoteIpBlocks: [203.0.113.7]}}]}]
`

// topologyMesh is the mesh of testdata/tokens whose server answers with the headers that it got.
type topologyMesh struct {
	t      *testing.T
	m      *meshup.Mesh
	config string
	// original is the mesh configuration, and log the router's access log.
	original, log string
}

func startTopology(t *testing.T, adjust func(*meshup.Options)) topologyMesh {
	t.Helper()
	m, config := startWith(t, "tokens", adjust)
	serveHeaders(t, m, "server-1.tokens", ":9090")
	original, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	router := m.Pod("ingress-1.istio-system")
	if err := router.Write("logs/access", nil); err != nil {
		t.Fatal(err)
	}
	return topologyMesh{t, m, config, string(original), filepath.Join(router.Dir, "logs/access")}
}

// configure sets the mesh's gatewayTopology, and the access log to the clients' addresses.
func (x topologyMesh) configure(topology string) {
	x.t.Helper()
	put(x.t, x.config, "mesh.yaml", strings.Replace(x.original, "  mesh: |\n", "  mesh: |\n    accessLogFile: "+x.log+
		"\n    accessLogFormat: \"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%\"\n    defaultConfig: {gatewayTopology: "+topology+"}\n", 1))
}

// call makes one request to the router, on a connection of its own that begins with prefix.
func (x topologyMesh) call(ctx context.Context, prefix string, header http.Header) (out seen, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.99.0.9:8080/", http.NoBody)
	if err != nil {
		return seen{}, err
	}
	req.Host = "shop.example.com"
	for k, v := range header {
		req.Header[k] = v
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := x.m.Pod("outside-1.tokens").Net.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(conn, prefix); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return seen{}, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	out.Status = res.StatusCode
	text, err := io.ReadAll(res.Body)
	if err == nil && out.Status == http.StatusOK {
		err = json.Unmarshal(text, &out.Header)
	}
	return out, err
}

// denied returns an error unless a request is answered with 403.
func (x topologyMesh) denied(ctx context.Context, prefix string, header http.Header) error {
	return wantStatus(http.StatusForbidden)(x.call(ctx, prefix, header))
}

// passes returns an error unless the server gets a request with the header.
func (x topologyMesh) passes(ctx context.Context, prefix string, header http.Header, name, value string) error {
	got, err := x.call(ctx, prefix, header)
	if err == nil && (got.Status != http.StatusOK || !strings.Contains(strings.Join(got.Header[http.CanonicalHeaderKey(name)], ","), value)) {
		err = fmt.Errorf("status %d, headers %v: want %q in %s", got.Status, got.Header, value, name)
	}
	return err
}

func (x topologyMesh) awaitLog(address string) {
	x.t.Helper()
	await(x.t, "the access log has the client's address", func(ctx context.Context) error {
		if _, err := x.call(ctx, "", forwarded(address)); err != nil {
			return err
		}
		text, err := os.ReadFile(x.log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !strings.Contains("\n"+string(text), "\n"+address+"\n") {
			return fmt.Errorf("%d bytes without the line %s", len(text), address)
		}
		return nil
	})
}

func forwarded(addresses string) http.Header { return http.Header{"X-Forwarded-For": {addresses}} }

func proxyHeader(address string) string { return "PROXY TCP4 " + address + " 10.99.0.9 4000 8080\r\n" }

// TestProxiesInFrontOfAGateway follows the mesh's gatewayTopology: whose address a policy, the server and the access log see, what becomes
// of x-forwarded-client-cert, and the PROXY protocol, by an EnvoyFilter too.
func TestProxiesInFrontOfAGateway(t *testing.T) {
	x := startTopology(t, func(*meshup.Options) {})
	put(t, x.config, "policies.yaml", banned)
	forged := http.Header{"X-Forwarded-Client-Cert": {"Hash=f00d"}}

	x.configure("{}")
	steady(t, "what clients say is not trusted", func(ctx context.Context) error {
		if err := x.passes(ctx, "", forwarded("203.0.113.7"), "x-forwarded-for", "203.0.113.7,10.99.0.10"); err != nil {
			return err
		}
		if got, err := x.call(ctx, "", forged); err != nil || strings.Contains(fmt.Sprint(got.Header), "f00d") {
			return fmt.Errorf("headers %v: %w", got.Header, err)
		}
		return nil
	})

	x.configure("{numTrustedProxies: 1, forwardClientCertDetails: ALWAYS_FORWARD_ONLY}")
	steady(t, "the address that one proxy in front appends is the client's", func(ctx context.Context) error {
		return errors.Join(
			x.denied(ctx, "", forwarded("198.51.100.9, 203.0.113.7")),
			x.passes(ctx, "", forwarded("203.0.113.7, 198.51.100.9"), "x-envoy-external-address", "198.51.100.9"),
			x.passes(ctx, "", forged, "x-forwarded-client-cert", "f00d"),
		)
	})
	x.awaitLog("198.51.100.9")

	withProxyProtocol := func(ctx context.Context) error {
		if got, err := x.call(ctx, "", nil); err == nil {
			return fmt.Errorf("status %d without the header of the PROXY protocol, want no answer", got.Status)
		}
		return errors.Join(
			x.denied(ctx, proxyHeader("203.0.113.7"), nil),
			x.passes(ctx, proxyHeader("198.51.100.9"), forwarded("203.0.113.7"), "x-forwarded-for", "203.0.113.7,198.51.100.9"),
		)
	}
	x.configure("{proxyProtocol: {}}")
	steady(t, "the PROXY protocol says who the client is", withProxyProtocol)

	x.configure("{}")
	steady(t, "the PROXY protocol is off", func(ctx context.Context) error {
		return x.passes(ctx, "", forwarded("203.0.113.7"), "x-forwarded-for", "203.0.113.7,10.99.0.10")
	})
	put(t, x.config, "filter.yaml", `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: proxy-protocol, namespace: istio-system}
spec:
  workloadSelector: {labels: {istio: ingressgateway}}
  configPatches:
  - applyTo: LISTENER
    match: {context: GATEWAY}
    patch:
      operation: MERGE
      value:
        listener_filters:
        - name: envoy.filters.listener.proxy_protocol
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}
`)
	steady(t, "the PROXY protocol of an EnvoyFilter says who the client is", withProxyProtocol)
}

// TestARouterSaysWhatIsInFrontOfIt has a router with a gatewayTopology of its own, as of the annotation proxy.istio.io/config, which is in
// force instead of the mesh's.
func TestARouterSaysWhatIsInFrontOfIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := errors.Join(os.Chmod(filepath.Dir(filepath.Dir(file)), 0o755), os.Chmod(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("gatewayTopology: {numTrustedProxies: 2}\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	x := startTopology(t, func(o *meshup.Options) {
		o.PodEnv = map[string][]string{"ingress-1.istio-system": {"PROXY_CONFIG_FILE=" + file}}
	})
	put(t, x.config, "policies.yaml", banned)
	x.configure("{numTrustedProxies: 1}")
	steady(t, "two proxies in front are trusted", func(ctx context.Context) error {
		return errors.Join(
			x.denied(ctx, "", forwarded("203.0.113.7, 198.51.100.9")),
			x.passes(ctx, "", forwarded("198.51.100.9, 203.0.113.7"), "x-envoy-external-address", "198.51.100.9"),
		)
	})
}
