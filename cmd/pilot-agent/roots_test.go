package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

// The roots that verify discovery are looked for at each connection: in a file that has appeared since the start, and again in the
// default one when it is gone.
func TestRootsOfDiscoveryAreFollowed(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	good, err := os.ReadFile(plane.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Sign(pki.RootTemplate("other", pki.Validity{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}), nil, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := agenttest.New(t, plane, "", "CA_ROOT_CA="+plane.RootFile)
	a.Cmd.Args = append(a.Cmd.Args, "--log_repeat_period=0") // lines are counted
	a.Write("var/run/secrets/istio/root-cert.pem", pki.EncodeCerts(other))
	a.Start()
	refused := func() error {
		code, body, err := a.Get(a.Status, "/healthz/ready")
		if err != nil {
			return err
		}
		if code != 503 || !strings.Contains(body, "signed by unknown authority") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	}
	agenttest.Until(t, "discovery is refused", refused)
	a.Write("etc/certs/root-cert.pem", good)
	agenttest.Until(t, "the proxy is ready by the roots that have appeared", a.Ready)
	if err := os.Remove(filepath.Join(a.Dir, "etc/certs/root-cert.pem")); err != nil {
		t.Fatal(err)
	}
	refusals := func() int { return strings.Count(a.Output(), "signed by unknown authority") }
	before := refusals()
	plane.Stop()
	plane.Start()
	agenttest.Until(t, "the next connection is refused", func() error {
		if refusals() == before {
			return errors.New("it is not")
		}
		return nil
	})
}
