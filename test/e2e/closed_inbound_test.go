package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const strictOrder = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: order}\nspec: {mtls: {mode: STRICT}}\n"

// inboundModes says which requests an echo Pod answers: in plaintext from outside the mesh, and by mutual TLS.
func (m *orderMesh) inboundModes(ctx context.Context) (plaintext, mutual bool) {
	_, err := m.Get(ctx, m.Net.Host(), "http://"+m.Pod("echo-v1-1.order").Spec.IP.String()+":9080/")
	plaintext = err == nil
	client := meshup.Client(m.client.Net, 0)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://echo:9080/", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return plaintext, false
	}
	_ = res.Body.Close() // the status is enough
	return plaintext, res.StatusCode == http.StatusOK
}

// awaitModes waits until echo Pods answer these requests.
func (m *orderMesh) awaitModes(what string, plaintext, mutual bool) {
	m.t.Helper()
	if err := meshup.Await(m.t.Context(), time.Minute, what, func(ctx context.Context) error {
		if p, tls := m.inboundModes(ctx); p != plaintext || tls != mutual {
			return fmt.Errorf("plaintext is answered: %v, mutual TLS: %v", p, tls)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// TestRefusedStricterPolicyClosesInbound has every Envoy refuse its listeners, by an access log that only Envoy knows it cannot
// write. Inbound connections are accepted as before, until the policy becomes stricter: the listener with it
// is refused, too, so that one takes its place that accepts none.
func TestRefusedStricterPolicyClosesInbound(t *testing.T) {
	m := startOrder(t)
	m.awaitModes("PERMISSIVE", true, true)
	text, err := os.ReadFile(filepath.Join(m.config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m.write("mesh.yaml", strings.Replace(string(text), "  mesh: |\n", "  mesh: |\n    accessLogFile: /no-such-folder/log\n", 1))
	refused := func() {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "the listener is refused", func(context.Context) error {
			_, out, _ := pilotctl(t, m.Mesh, "proxies", "-o", "json")
			var all []struct {
				Proxy       string
				Quarantined []string
				Types       map[string]struct{ Nack string }
			}
			if err := json.Unmarshal([]byte(out), &all); err != nil {
				return err
			}
			n := 0
			for _, p := range all {
				if strings.HasPrefix(p.Proxy, "echo-") && (slices.Contains(p.Quarantined, "LDS virtualInbound") || strings.Contains(p.Types["LDS"].Nack, "virtualInbound")) {
					n++
				}
			}
			if n != 2 {
				return errors.New("it is not yet:\n" + out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	refused()
	m.awaitModes("what was accepted stays", true, true)
	m.write("policy.yaml", strictOrder)
	m.awaitModes("everything is denied", false, false)
	refused()
	for _, p := range []string{"echo-v1-1.order", "echo-v2-1.order"} {
		dump, err := m.Pod(p).Admin(t.Context(), "/listeners")
		if err != nil || !strings.Contains(string(dump), "virtualInbound") {
			t.Errorf("the listeners of %s are %s, %v: want one for inbound connections, which are captured", p, dump, err)
		}
	}
	m.write("mesh.yaml", string(text))
	m.awaitModes("STRICT", false, true)
}
