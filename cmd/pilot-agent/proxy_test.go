package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	agenttest.Cleanup()
	os.Exit(code)
}

func TestProxyFromStartToEnd(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "")
	a.Start()
	// Readiness says why not while there is no control plane, and Envoy runs meanwhile.
	agenttest.Until(t, "the agent says why it is not ready", func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err != nil {
			return err
		}
		if code != 503 || !strings.Contains(body, "connection refused") {
			return fmt.Errorf("%d %s", code, body)
		}
		_, err = a.Envoy()
		return err
	})
	plane.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	if got, want := plane.Node().GetId(), "sidecar~127.0.0.1~a.b~b.svc.cluster.local"; got != want {
		t.Errorf("node id %q, want %q", got, want)
	}
	n, md := plane.Signed()
	if n != 1 || md.Get("clusterid")[0] != "Kubernetes" || md.Get("authorization")[0] != "Bearer token" {
		t.Errorf("%d certificates were signed, the last with %v", n, md)
	}
	for _, line := range []string{`FLAG: --concurrency="0"`, "Version v1.2.3-", "Effective config: ", "Envoy command: [-c ./etc/istio/proxy/envoy-rev.json "} {
		if !strings.Contains(a.Output(), line) {
			t.Errorf("the start log lacks %q", line)
		}
	}

	first, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "another Envoy is ready", func() error {
		if pid, err := a.Envoy(); err != nil || pid == first {
			return fmt.Errorf("envoy is %d (%v)", pid, err)
		}
		return a.Ready()
	})

	if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	for _, left := range []string{"etc/istio/proxy/envoy-rev.json", "etc/istio/proxy/XDS"} {
		if _, err := os.Lstat(a.Dir + "/" + left); err == nil {
			t.Errorf("%s stays behind", left)
		}
	}
}
