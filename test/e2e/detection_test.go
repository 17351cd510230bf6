package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	plaintextPort = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: server, namespace: shop}
spec: {selector: {matchLabels: {app: server}}, portLevelMtls: {"9081": {mode: DISABLE}}}
`
	detectionTimeout = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "protocolDetectionTimeout: 1s"}
`
)

// TestClientsThatWait: a client in plaintext that sends fewer bytes than TLS is recognised by, or that waits for the server, is served at
// once at a port declared as TCP whose mode is DISABLE, and elsewhere after the mesh's protocolDetectionTimeout.
func TestClientsThatWait(t *testing.T) {
	m, config := start(t, "tproxy")
	server, legacy := m.Pod("server-1.shop"), m.Pod("legacy-1.shop")
	for _, port := range []string{"9081", "9083"} {
		greetAndEcho(t, listenAt(t, server, port))
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	served := func(port string) {
		for _, text := range []string{"", "abcd"} {
			wait.NoError(t, fmt.Sprintf("a client that sends %q to port %s is served", text, port), func() error {
				return talk(t.Context(), legacy, net.JoinHostPort(server.Spec.IP.String(), port), text)
			})
		}
	}
	put("plaintext.yaml", plaintextPort)
	served("9081")
	put("mesh-config.yaml", detectionTimeout)
	served("9083")
}

// greetAndEcho sends a greeting to each client, and then what it has sent.
func greetAndEcho(t *testing.T, l net.Listener) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(wait.Bound))
				if _, err := fmt.Fprintln(c, "ready"); err == nil {
					_, _ = io.Copy(c, c)
				}
			}()
		}
	}()
}

// talk sends a text, waits for the server's greeting, and for the text to come back.
func talk(ctx context.Context, from *meshup.Pod, addr, text string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := from.Net.Dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("the greeting is %q: %w", line, err)
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(in, back); err != nil || string(back) != text {
		return fmt.Errorf("%q came back: %w", back, err)
	}
	return nil
}
