package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent"
)

func TestPrintIdentity(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	held := agent.HeldCertificate{
		ID: "spiffe://td/ns/shop/sa/alice", Serial: "2a", Version: "v1", KeyKind: "ecdsa-p256", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(23 * time.Hour),
		Received: now.Add(-time.Hour), Restored: true, Roots: []agent.IssuerReport{{Subject: "CN=\x1b[31mroot", NotAfter: now.Add(1000 * time.Hour), SHA256: strings.Repeat("ab", 32)}},
	}
	late := held
	late.NotAfter, late.EndsWithIssuer = now.Add(-time.Minute), true
	for name, tt := range map[string]struct {
		report agent.IdentityReport
		want   []string
		fails  string
	}{
		"none": {
			agent.IdentityReport{Source: "CA ca:1", Problem: "refused", Failures: 4, Next: now.Add(3 * time.Second), Token: &agent.TokenReport{Source: "file t", Problem: "missing"}},
			[]string{"certificate  none yet", "source       CA ca:1", "next         attempt 5 at 2026-11-22T12:00:03Z (in 3s), because refused", "token        file t: missing"},
			"holds no certificate",
		},
		"held": {
			agent.IdentityReport{
				Held: &held, Source: "CA ca:1", Next: now.Add(11 * time.Hour), Token: &agent.TokenReport{Source: "file t", NotAfter: now.Add(-time.Hour)},
				Copy: &agent.CopyReport{Path: "/run/identity-copy", Problem: "no space left on device"},
			},
			[]string{
				"identity     spiffe://td/ns/shop/sa/alice", "certificate  serial 2a, key ecdsa-p256, version v1",
				"valid        from 2026-11-22T11:00:00Z until 2026-11-23T11:00:00Z (in 23h0m0s)", `root         CN=\x1b[31mroot, until 2027-01-03T04:00:00Z, SHA-256 abababababababab`,
				"source       CA ca:1, requested 2026-11-22T11:00:00Z (1h0m0s ago), by an earlier agent, whose copy is used",
				"next         renewal at 2026-11-22T23:00:00Z (in 11h0m0s)", "token        file t, until 2026-11-22T11:00:00Z (1h0m0s ago)",
				"copy         /run/identity-copy: not written: no space left on device",
			},
			"",
		},
		"expired": {
			agent.IdentityReport{Held: &late, Source: "files /c"},
			[]string{"valid        from 2026-11-22T11:00:00Z until 2026-11-22T11:59:00Z (1m0s ago)", "             it ends with a certificate that signed it: no renewal can last longer", "next         what the source replaces it by"},
			"expired at 2026-11-22T11:59:00Z",
		},
	} {
		var out bytes.Buffer
		if err := printIdentity(&out, &tt.report, now); err != nil {
			t.Fatal(err)
		}
		for _, line := range tt.want {
			if !strings.Contains(out.String(), line+"\n") {
				t.Errorf("%s: want %q in\n%s", name, line, out.String())
			}
		}
		if err := usable(&tt.report, now); (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%s: %v, want %q", name, err, tt.fails)
		}
	}
}

func TestIdentityAsksTheAgent(t *testing.T) {
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/status" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	answer = `{"ready": true, "detail": {"certificate": {"source": "CA ca:1", "held": {"serial": "2a", "not_after": "2999-01-01T00:00:00Z"}}}}`
	code, out, errs := agentRun(t, nil, "identity", "--statusPort", u.Port(), "-o", "json")
	var got agent.IdentityReport
	if code != 0 || errs != "" || json.Unmarshal([]byte(out), &got) != nil || got.Held == nil || got.Held.Serial != "2a" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	answer = `{"detail": {"certificate": {"source": "CA ca:1"}}}`
	if code, out, errs := agentRun(t, nil, "identity", "--statusPort", u.Port()); code != 255 || !strings.Contains(out, "none yet") || !strings.Contains(errs, "holds no certificate") {
		t.Errorf("without a certificate: exit code %d, %q, %q", code, out, errs)
	}
	for why, text := range map[string]string{"has no certificate: want the status port": "{}", "read the answer": "Envoy"} {
		answer = text
		if code, _, errs := agentRun(t, nil, "identity", "--statusPort", u.Port()); code != 255 || !strings.Contains(errs, why) {
			t.Errorf("exit code %d, %q, want %q", code, errs, why)
		}
	}
}
