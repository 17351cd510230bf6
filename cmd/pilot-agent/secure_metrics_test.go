package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

// Metrics are served over mutual TLS on the ports that are asked for: to clients with a certificate of the mesh, with the workload's
// own, and also where metrics in plaintext are for this machine only.
func TestMetricsOverMutualTLS(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	ofEnvoy, merged := agenttest.Port(t), agenttest.Port(t)
	a := agenttest.New(t, plane, "", "ENVOY_SECURE_METRICS_PORT="+ofEnvoy, "ENVOY_SECURE_MERGED_METRICS_PORT="+merged, "METRICS_LOCALHOST_ACCESS_ONLY=true")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	scrape := func(port string, certs ...tls.Certificate) (string, error) {
		var server string
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			Certificates: certs, InsecureSkipVerify: true, // the certificate has a SPIFFE ID, which is checked here
			VerifyConnection: func(s tls.ConnectionState) error {
				id, err := pki.IdentityOf(s.PeerCertificates[0])
				server = id.String()
				return err
			},
		}}}
		resp, err := client.Get("https://127.0.0.1:" + port + "/stats/prometheus")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK || server != "spiffe://cluster.local/ns/b/sa/c" {
			return "", fmt.Errorf("%s from %s: %.200s", resp.Status, server, body)
		}
		return string(body), err
	}
	prometheus := plane.ClientCertificate("monitoring", "prometheus")
	var envoys, all string
	// The listeners may be open a moment before the certificate has arrived.
	agenttest.Until(t, "both ports answer", func() (err error) {
		if envoys, err = scrape(ofEnvoy, prometheus); err == nil {
			all, err = scrape(merged, prometheus)
		}
		return err
	})
	if !strings.Contains(envoys, "\nenvoy_server_live") || strings.Contains(envoys, "istio_agent_") {
		t.Errorf("Envoy's metrics: %.300s", envoys)
	}
	if !strings.Contains(all, "\nenvoy_server_live") || !strings.Contains(all, "\nistio_agent_scrapes_total") {
		t.Errorf("merged metrics: %.300s", all)
	}
	for _, port := range []string{ofEnvoy, merged} {
		if _, err := scrape(port); err == nil {
			t.Errorf("port %s: a client without a certificate got metrics", port)
		}
		if code, _, err := a.Get(port, "/stats/prometheus"); err == nil {
			t.Errorf("port %s: a client without TLS got status %d", port, code)
		}
	}
}

// The port of readiness takes the PROXY protocol where it is asked for, from clients that send it.
func TestReadinessByPROXYProtocol(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "", "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL=true")
	a.Start()
	agenttest.Until(t, "the proxy is ready, to a client without it", a.Ready)
	conn, err := net.Dial("tcp", "127.0.0.1:"+a.Health)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "PROXY TCP4 10.0.0.1 10.0.0.2 1234 15021\r\nGET /healthz/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("readiness by PROXY protocol: %s", resp.Status)
	}
}

// A policy limits TLS of Envoy's own listeners, and of the agent's connections, which still work with a control plane that has no limits.
func TestCompliancePolicyLimitsTLS(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	for _, tt := range []struct {
		policy  string
		version uint16
		curve   tls.CurveID
		// refused is a client that the policy does not permit.
		refused *tls.Config
	}{
		{"fips-140-2", tls.VersionTLS12, tls.CurveP256, &tls.Config{MinVersion: tls.VersionTLS13}},
		{"fips-140-3", tls.VersionTLS13, tls.CurveP256, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}},
		{"pqc", tls.VersionTLS13, tls.X25519MLKEM768, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}}},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			port := agenttest.Port(t)
			a := agenttest.New(t, plane, "", "ENVOY_SECURE_METRICS_PORT="+port, "COMPLIANCE_POLICY="+tt.policy)
			a.Start()
			agenttest.Until(t, "the proxy is ready", a.Ready)
			own := plane.ClientCertificate("monitoring", "prometheus")
			dial := func(c *tls.Config) (tls.ConnectionState, error) {
				c.InsecureSkipVerify, c.Certificates = true, []tls.Certificate{own} // only the limits matter
				conn, err := tls.Dial("tcp", "127.0.0.1:"+port, c)
				if err != nil {
					return tls.ConnectionState{}, err
				}
				defer conn.Close()
				return conn.ConnectionState(), nil
			}
			var got tls.ConnectionState
			agenttest.Until(t, "the listener has its certificate", func() (err error) {
				got, err = dial(&tls.Config{MinVersion: tls.VersionTLS12})
				return err
			})
			if got.Version != tt.version || got.CurveID != tt.curve {
				t.Errorf("%s with %s", tls.VersionName(got.Version), got.CurveID)
			}
			if got, err := dial(tt.refused); err == nil {
				t.Errorf("a client that is not permitted got %s with %s", tls.VersionName(got.Version), got.CurveID)
			}
		})
	}
}
