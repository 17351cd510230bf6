package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/load"
)

// oldConnection is a connection to a sidecar that a test keeps open.
type oldConnection struct {
	net.Conn
	in *bufio.Reader
}

// connectTo connects to a sidecar in plaintext, from outside the mesh.
func (m *orderMesh) connectTo(ctx context.Context, addr string) (*oldConnection, error) {
	conn, err := m.Net.Host().Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return &oldConnection{conn, bufio.NewReader(conn)}, nil
}

// admin asks for what the policy denies. ends says that the connection ends with the answer.
func (c *oldConnection) admin() (status int, ends bool, err error) {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, false, err
	}
	if _, err := fmt.Fprint(c, "GET /admin HTTP/1.1\r\nHost: echo:9080\r\n\r\n"); err != nil {
		return 0, false, err
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Close, err
}

// TestConnectionsThatAreOlderThanAPolicy adds a policy under load: new connections are judged by it, on one that is older at most one
// request passes, whose answer ends the connection, and no allowed request fails. [decision 83]
func TestConnectionsThatAreOlderThanAPolicy(t *testing.T) {
	const server = "10.99.0.11:9080"
	m := startOrder(t)
	allowed := load.New(t.Context(), m.client.Net.Dial)
	allowed.KeepAlive("echo:9080", 4, 10*time.Millisecond)
	allowed.HTTP2("echo:9080", 2, 10*time.Millisecond)
	allowed.Churn("echo:9080", 1, 20*time.Millisecond)
	var old []*oldConnection
	for range 8 {
		c, err := m.connectTo(t.Context(), server)
		if err != nil {
			t.Fatal(err)
		}
		if status, _, err := c.admin(); err != nil || status != http.StatusOK {
			t.Fatalf("before the policy: status %d, error %v", status, err)
		}
		old = append(old, c)
	}
	m.write("policy.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: admin, namespace: order}
spec: {selector: {matchLabels: {app: echo}}, action: DENY, rules: [{to: [{operation: {paths: ["/admin*"]}}]}]}
`)
	steady(t, "new connections are judged by the policy", func(ctx context.Context) error {
		c, err := m.connectTo(ctx, server)
		if err != nil {
			return err
		}
		defer c.Close()
		status, _, err := c.admin()
		if err == nil && status != http.StatusForbidden {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	passed := 0
	for i, c := range old {
		for range 3 {
			status, ends, err := c.admin()
			if err != nil {
				break // it has been closed
			}
			if status == http.StatusOK {
				if passed++; !ends {
					t.Errorf("connection %d: a request passed, and the connection goes on", i)
				}
			}
			if ends {
				break
			}
		}
	}
	t.Logf("on %d older connections %d requests passed", len(old), passed)
	if r := allowed.Stop(); r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d allowed requests failed: %v", r.Sent, r.Failures)
	}
}
