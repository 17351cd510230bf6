package e2e_test

import (
	"net/http"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// A mode for a port that no Service declares is in force on that port, and on no other.
func TestModesOfUndeclaredPorts(t *testing.T) {
	m, _ := start(t, "ports")
	const caller = "spiffe://cluster.local/ns/callers/sa/client"
	for _, c := range []struct {
		name, from, host string
		answered         bool
		peer             string
	}{
		{"plaintext to the declared port of PERMISSIVE", "legacy-1", "10.99.0.11:9080", true, ""},
		{"plaintext to a port of STRICT", "legacy-1", "10.99.0.11:9090", false, ""},
		{"plaintext to another port of PERMISSIVE", "legacy-1", "10.99.0.11:9091", true, ""},
		{"mutual TLS to a port of STRICT", "client-1", "10.96.30.1:9090", true, caller},
		{"mutual TLS to another port of PERMISSIVE", "client-1", "10.96.30.1:9091", true, caller},
		{"plaintext to the declared port of STRICT", "legacy-1", "10.99.0.12:9080", false, ""},
		{"plaintext to a port of DISABLE", "legacy-1", "10.99.0.12:9090", true, ""},
		{"plaintext to another port of STRICT", "legacy-1", "10.99.0.12:9091", false, ""},
		{"mutual TLS to another port of STRICT", "client-1", "10.96.30.2:9091", true, caller},
	} {
		t.Run(c.name, func(t *testing.T) {
			served := func() (all int64) {
				for _, pod := range []string{"open-1.ports", "strict-1.ports"} {
					n, err := m.Pod(pod).Served(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					all += n
				}
				return all
			}
			before := served()
			a, err := meshup.Post(t.Context(), meshup.Client(m.Pod(c.from+".callers").Net, 0), "http://"+c.host+"/", nil)
			if answered := err == nil && a.Status == http.StatusOK; answered != c.answered || a.Peer != c.peer {
				t.Errorf("answered %v, want %v; called as %q, want %q: %+v, %v", answered, c.answered, a.Peer, c.peer, a, err)
			}
			if reached := served() > before; reached != c.answered {
				t.Errorf("reached the application: %v, want %v", reached, c.answered)
			}
		})
	}
}
