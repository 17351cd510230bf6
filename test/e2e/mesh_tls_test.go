package e2e_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// A sidecar negotiates what meshMTLS allows and nothing else, and sidecars agree with each other; tlsDefaults
// is for other TLS and changes neither.
func TestMeshTLSIsInForceInbound(t *testing.T) {
	m, config := start(t, "ports")
	path := filepath.Join(config, "mesh.yaml")
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// negotiate returns what the server's Envoy has chosen before it asks for the client's certificate.
	negotiate := func(ctx context.Context, c *tls.Config) (chosen *tls.ConnectionState, err error) {
		conn, err := m.Pod("legacy-1.callers").Net.Dial(ctx, "tcp", "10.99.0.12:9080")
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error { chosen = &s; return nil }
		return chosen, errors.Join(conn.SetDeadline(time.Now().Add(20*time.Second)), tls.Client(conn, c).HandshakeContext(ctx))
	}
	only := func(version uint16, cipher uint16, curve tls.CurveID) *tls.Config {
		c := &tls.Config{MinVersion: version, MaxVersion: version, CurvePreferences: []tls.CurveID{curve}, NextProtos: []string{"istio"}}
		if version < tls.VersionTLS13 { // the curves are also those of the server's key, which is of P-256
			c.CurvePreferences = append(c.CurvePreferences, tls.CurveP256)
		}
		if cipher != 0 {
			c.CipherSuites = []uint16{cipher}
		}
		return c
	}
	type offer struct {
		name     string
		config   *tls.Config
		accepted bool
	}
	for _, step := range []struct {
		mesh   string
		offers []offer
	}{
		{"tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-521]}", []offer{
			{"TLS 1.2", only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.X25519), true},
			{"TLS 1.3", only(tls.VersionTLS13, 0, tls.X25519), true},
			{"TLS 1.1", only(tls.VersionTLS11, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.X25519), false},
		}},
		{"meshMTLS: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-384]}", []offer{
			{"TLS 1.2", only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.CurveP384), false},
			{"TLS 1.3 with another curve", only(tls.VersionTLS13, 0, tls.X25519), false},
			{"TLS 1.3", only(tls.VersionTLS13, 0, tls.CurveP384), true},
		}},
		{"meshMTLS: {cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256]}", []offer{
			{"another cipher suite", only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.X25519), false},
			{"the cipher suite", only(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.X25519), true},
			{"TLS 1.3", only(tls.VersionTLS13, 0, tls.X25519), true},
		}},
	} {
		text := strings.Replace(string(original), "  mesh: |\n", "  mesh: |\n    "+step.mesh+"\n", 1)
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		err := meshup.Await(t.Context(), time.Minute, step.mesh, func(ctx context.Context) error {
			for _, o := range step.offers {
				chosen, err := negotiate(ctx, o.config.Clone())
				if got := chosen != nil; got != o.accepted {
					return fmt.Errorf("%s: negotiated %v, want %v: %w", o.name, got, o.accepted, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		// The client's sidecar may get the settings after the server's; until then the two need not agree.
		err = meshup.Await(t.Context(), time.Minute, step.mesh, func(ctx context.Context) error {
			a, err := meshup.Post(ctx, meshup.Client(m.Pod("client-1.callers").Net, 0), "http://strict.ports:9080/", nil)
			if err == nil && (a.Status != http.StatusOK || a.Peer == "") {
				err = fmt.Errorf("between sidecars: %+v", a)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
