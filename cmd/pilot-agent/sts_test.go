package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// google stands in for the two services of Google that exchange tokens.
type google struct {
	*httptest.Server
	federated, access atomic.Int32
	refuse            atomic.Bool
}

func newGoogle(t *testing.T) *google {
	g := &google{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/token", func(w http.ResponseWriter, r *http.Request) {
		var in map[string]string
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		if g.refuse.Load() || in["subjectToken"] != "my.own.token" || in["audience"] != "identitynamespace:p.svc.id.goog:https://container.googleapis.com/v1/projects/p/locations/l/clusters/c" ||
			in["grantType"] != "urn:ietf:params:oauth:grant-type:token-exchange" || in["subjectTokenType"] != "urn:ietf:params:oauth:token-type:jwt" ||
			in["requestedTokenType"] != "urn:ietf:params:oauth:token-type:access_token" || in["scope"] == "" {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant", "error_description": "the token is not ours"})
			return
		}
		g.federated.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "federated", "token_type": "Bearer", "expires_in": 3600})
	})
	mux.HandleFunc("POST /v1/projects/-/serviceAccounts/{call}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("call") != "service-7@gcp-sa-meshdataplane.iam.gserviceaccount.com:generateAccessToken" || r.Header.Get("Authorization") != "Bearer federated" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		g.access.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": "access", "expireTime": time.Now().Add(30 * time.Minute)})
	})
	g.Server = httptest.NewTLSServer(mux)
	t.Cleanup(g.Close)
	return g
}

// startSTS starts an agent with a token service, and returns the service's address.
func startSTS(t *testing.T, g *google, env ...string) (*agenttest.Process, string) {
	t.Helper()
	plane := agenttest.NewPlane(t)
	plane.Start()
	port := agenttest.Port(t)
	a := agenttest.New(t, plane, "", append([]string{
		"GCP_METADATA=p|7|c|l", "TRUST_DOMAIN=p.svc.id.goog", "STS_ROOT_CA=./google.pem", "STS_TOKEN_ENDPOINT=" + g.URL + "/v1/token", "STS_IAM_ENDPOINT=" + g.URL,
	}, env...)...)
	a.Write("google.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw}))
	a.Cmd.Args = append(a.Cmd.Args, "--stsPort", port, "--tokenManagerPlugin", "GoogleTokenExchange")
	a.Start()
	agenttest.Until(t, "the token service answers", func() error {
		_, _, err := a.Get(port, "/stsStatus")
		return err
	})
	return a, "http://127.0.0.1:" + port
}

// exchange asks the token service.
func exchange(t *testing.T, service string, form url.Values) (int, map[string]any) {
	t.Helper()
	resp, err := http.PostForm(service+"/token", form)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var out map[string]any
	if err != nil || json.Unmarshal(text, &out) != nil || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %v: %s, %v", resp.Status, resp.Header, text, err)
	}
	return resp.StatusCode, out
}

// The token service exchanges a token for one of Google, once, and tells what it holds without the tokens.
func TestTokensAreExchanged(t *testing.T) {
	g := newGoogle(t)
	a, service := startSTS(t, g)
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {"my.own.token"}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
	}
	for range 3 {
		code, got := exchange(t, service, form)
		left, _ := got["expires_in"].(float64)
		if code != http.StatusOK || got["access_token"] != "access" || got["token_type"] != "Bearer" || got["issued_token_type"] != "urn:ietf:params:oauth:token-type:access_token" || left < 1700 || left > 1800 {
			t.Fatalf("%d %v", code, got)
		}
	}
	if g.federated.Load() != 1 || g.access.Load() != 1 {
		t.Errorf("Google was asked %d and %d times, want once", g.federated.Load(), g.access.Load())
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(service, "http://"), ":")
	code, page, err := a.Get(port, "/stsStatus")
	if err != nil || code != http.StatusOK || !strings.Contains(page, `"plugin":"GoogleTokenExchange"`) || !strings.Contains(page, `"token_type":"access token"`) || strings.Contains(page, `"access"`) {
		t.Errorf("status %d %s, %v", code, page, err)
	}
	other := url.Values{"grant_type": form["grant_type"], "subject_token_type": form["subject_token_type"], "subject_token": {"stolen"}}
	if code, got := exchange(t, service, other); code != http.StatusInternalServerError || got["error"] != "invalid_target" || !strings.Contains(got["error_description"].(string), "the token is not ours") {
		t.Errorf("a token that Google refuses: %d %v", code, got)
	}
	if code, got := exchange(t, service, url.Values{"grant_type": {"password"}}); code != http.StatusBadRequest || got["error"] != "unsupported_grant_type" {
		t.Errorf("another grant: %d %v", code, got)
	}
	if code, page, _ := a.Get(port, "/token"); code != http.StatusMethodNotAllowed || !strings.Contains(page, `"error":"invalid_request"`) {
		t.Errorf("GET: %d %s", code, page)
	}
	large := url.Values{"subject_token": {strings.Repeat("a", 200<<10)}}
	if code, got := exchange(t, service, large); code != http.StatusRequestEntityTooLarge || got["error"] != "invalid_request" {
		t.Errorf("a large body: %d %v", code, got)
	}
	if strings.Contains(a.Output(), "my.own.token") || strings.Contains(a.Output(), "federated\"") {
		t.Error("the log has a token")
	}
}

// Without an account clients get the federated token; without a plugin they get an error, and the log says what to set.
func TestTokenServiceVariants(t *testing.T) {
	g := newGoogle(t)
	_, service := startSTS(t, g, "STS_SERVICE_ACCOUNT=none")
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {"my.own.token"}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
		"scope": {"https://www.googleapis.com/auth/trace.append"},
	}
	if code, got := exchange(t, service, form); code != http.StatusOK || got["access_token"] != "federated" || got["scope"] != form.Get("scope") || g.access.Load() != 0 {
		t.Errorf("%d %v", code, got)
	}
	plane := agenttest.NewPlane(t)
	plane.Start()
	port := agenttest.Port(t)
	a := agenttest.New(t, plane, "")
	a.Cmd.Args = append(a.Cmd.Args, "--stsPort", port)
	a.Start()
	agenttest.Until(t, "the token service answers", func() error {
		_, _, err := a.Get(port, "/stsStatus")
		return err
	})
	if code, got := exchange(t, "http://127.0.0.1:"+port, form); code != http.StatusInternalServerError || got["error"] != "invalid_target" || !strings.Contains(got["error_description"].(string), "--tokenManagerPlugin") {
		t.Errorf("without a plugin: %d %v", code, got)
	}
	if !strings.Contains(a.Output(), "refuses all requests: set --tokenManagerPlugin") {
		t.Error("the log does not say what to set")
	}
}

// Envoy is a client of the token service: its gRPC client of Google exchanges a file's token for the one that it sends.
func TestEnvoyExchangesItsToken(t *testing.T) {
	g := newGoogle(t)
	_, service := startSTS(t, g)
	var header atomic.Pointer[string]
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: g.TLS.Certificates})), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		sent := strings.Join(md.Get("authorization"), ",")
		header.Store(&sent)
		<-s.Context().Done()
		return nil
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "my.own.token", "root.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})),
		"envoy.yaml": fmt.Sprintf(`
node: {id: a, cluster: b}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
dynamic_resources:
  cds_config: {ads: {}, resource_api_version: V3}
  ads_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services:
    - google_grpc:
        target_uri: %s
        stat_prefix: sts
        channel_credentials: {ssl_credentials: {root_certs: {filename: %s/root.pem}}}
        call_credentials:
        - sts_service:
            token_exchange_service_uri: %s/token
            subject_token_path: %s/token
            subject_token_type: "urn:ietf:params:oauth:token-type:jwt"
`, agenttest.Port(t), l.Addr(), dir, service, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	envoy := exec.CommandContext(ctx, envoytest.Binary(t), "-c", filepath.Join(dir, "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
	envoy.Stdout, envoy.Stderr = &out, &out
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = envoy.Wait()
		if t.Failed() {
			t.Logf("envoy: %s", out.String())
		}
	}()
	agenttest.Until(t, "the server sees Envoy's token", func() error {
		if sent := header.Load(); sent == nil || *sent != "Bearer access" {
			return errors.New("it does not")
		}
		return nil
	})
}
