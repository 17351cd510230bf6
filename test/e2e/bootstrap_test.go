package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const bootstrapOfAll = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: bootstrap, namespace: istio-system}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch:
      operation: MERGE
      value:
        stats_config: {stats_tags: [{tag_name: rack, fixed_value: r7}]}
        static_resources: {clusters: [{name: of-the-filter, type: STATIC}]}
        layered_runtime: {layers: [{name: of-the-filter, static_layer: {of_the_filter: true}}]}
`

// awaitBootstrap waits until the Envoy of a Pod has, or has not, what bootstrapOfAll adds, and answers for the application.
func awaitBootstrap(t *testing.T, what string, p *meshup.Pod, want bool) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, what, func(ctx context.Context) error {
		dump, err := p.Admin(ctx, "/config_dump")
		if err != nil {
			return err
		}
		for _, of := range []string{`"name": "of-the-filter"`, `"tag_name": "rack"`, `"of_the_filter": true`} {
			if strings.Contains(string(dump), of) != want {
				return fmt.Errorf("%s in its bootstrap: want %v", of, want)
			}
		}
		return p.Ready(ctx)
	}); err != nil {
		t.Fatal(err)
	}
}

// restartAgent kills the agent of a Pod, with its Envoy, and starts it again.
func restartAgent(t *testing.T, p *meshup.Pod) {
	t.Helper()
	if err := p.StopAgent(unix.SIGKILL); err != nil && !errors.As(err, new(interface{ ExitCode() int })) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.StartAgent(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestBootstrapOfEnvoyFilters: an EnvoyFilter changes the bootstrap of the one Envoy whose agent asks for it, at once by a hot restart, at its
// start, and at a start without discovery; and no more once it is removed.
func TestBootstrapOfEnvoyFilters(t *testing.T) {
	m, config := startWith(t, "away", func(o *meshup.Options) {
		keepIdentities(t, o)
		o.PodEnv["client-1.away"] = append(o.PodEnv["client-1.away"], "BOOTSTRAP_XDS_AGENT=true", "BOOTSTRAP_XDS_WAIT=5s")
	})
	asks, other := m.Pod("client-1.away"), m.Pod("echo-v1-1.away")
	request := func() {
		t.Helper()
		await(t, "a request is answered", func(ctx context.Context) error {
			a, err := meshup.Post(ctx, meshup.Client(asks.Net, 0), "http://echo:9080/", nil)
			if err == nil && a.FirstFailure() != "" {
				err = errors.New(a.FirstFailure())
			}
			return err
		})
	}
	awaitBootstrap(t, "nothing is changed without an EnvoyFilter", asks, false)
	put(t, config, "bootstrap.yaml", bootstrapOfAll)
	awaitBootstrap(t, "a new Envoy has what the EnvoyFilter changes", asks, true)
	request()
	awaitBootstrap(t, "the Envoy of an agent that does not ask is as before", other, false)
	restartAgent(t, other)
	awaitBootstrap(t, "so it is after a restart", other, false)
	restartAgent(t, asks)
	awaitBootstrap(t, "the next agent asks discovery", asks, true)
	if e, err := asks.Epoch(t.Context()); err != nil || e.Number != 0 {
		t.Errorf("epoch %d (%v): the first Envoy should have it", e.Number, err)
	}
	awaitCopies(t, m)
	if err := m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	restartAgent(t, asks)
	awaitBootstrap(t, "without discovery the kept one is used", asks, true)
	request()
	if err := os.Remove(filepath.Join(config, "bootstrap.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitBootstrap(t, "without the EnvoyFilter a new Envoy is as before", asks, false)
	request()
}
