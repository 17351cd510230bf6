// Package install_test installs the charts in a cluster with a Node that runs their Pods, and uses what they install.
package install_test

import (
	"context"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// system is the namespace of the control plane.
const system = "istio-system"

// shared is the cluster of all tests, with the chart pilothouse installed by its default values.
var shared = clusterup.Shared{Name: "install-test", Install: func(ctx context.Context, c *clusterup.Cluster) error {
	return c.Install(ctx, "mesh", system, c.Control(), values)
}}

func TestMain(m *testing.M) { shared.Main(m) }

// values are those of the chart: nothing scales Deployments here.
const values = "autoscaleEnabled: false\n"

// bound is the longest time until a condition holds. Pods start by way of the API server, which shares the machine's processors
// with all of them.
const bound = 5 * time.Minute

// until waits until look returns nil.
func until(t *testing.T, what string, look func() error) {
	t.Helper()
	if err := meshup.Await(t.Context(), bound, what, func(context.Context) error { return look() }); err != nil {
		t.Fatal(err)
	}
}
