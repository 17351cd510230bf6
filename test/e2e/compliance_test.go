package e2e_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// Proxies with a COMPLIANCE_POLICY reach discovery, the CA and each other, by TLS that the policy permits, and refuse other clients.
func TestCompliancePolicyOfProxies(t *testing.T) {
	for _, tt := range []struct {
		policy  string
		version uint16
		curve   tls.CurveID // of TLS 1.3: with TLS 1.2 it is not known yet
		refused *tls.Config
	}{
		{"fips-140-2", tls.VersionTLS12, 0, &tls.Config{MinVersion: tls.VersionTLS13}},
		{"pqc", tls.VersionTLS13, tls.X25519MLKEM768, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}}},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			m, _ := startWith(t, "ports", func(o *meshup.Options) { o.AgentEnv = append(o.AgentEnv, "COMPLIANCE_POLICY="+tt.policy) })
			// negotiate returns what the server's Envoy has chosen before it asks for the client's certificate.
			negotiate := func(ctx context.Context, c *tls.Config) (chosen *tls.ConnectionState, err error) {
				conn, err := m.Pod("legacy-1.callers").Net.Dial(ctx, "tcp", "10.99.0.12:9080")
				if err != nil {
					return nil, err
				}
				defer conn.Close()
				c.InsecureSkipVerify, c.NextProtos = true, []string{"istio"} // only the limits matter
				c.VerifyConnection = func(s tls.ConnectionState) error { chosen = &s; return nil }
				return chosen, errors.Join(conn.SetDeadline(time.Now().Add(20*time.Second)), tls.Client(conn, c).HandshakeContext(ctx))
			}
			err := meshup.Await(t.Context(), time.Minute, tt.policy, func(ctx context.Context) error {
				chosen, err := negotiate(ctx, &tls.Config{MinVersion: tls.VersionTLS12})
				if chosen == nil || chosen.Version != tt.version || tt.curve != 0 && chosen.CurveID != tt.curve {
					return fmt.Errorf("negotiated %+v: %w", chosen, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if chosen, _ := negotiate(t.Context(), tt.refused.Clone()); chosen != nil {
				t.Errorf("a client that is not permitted got %s with %s", tls.VersionName(chosen.Version), chosen.CurveID)
			}
			a, err := meshup.Post(t.Context(), meshup.Client(m.Pod("client-1.callers").Net, 0), "http://strict.ports:9080/", nil)
			if err != nil || a.Status != http.StatusOK || a.Peer == "" {
				t.Errorf("between sidecars: %+v, %v", a, err)
			}
		})
	}
}
