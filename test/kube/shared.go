package kubetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/pilothouse/pilothouse/test/require"
)

// shared is the cluster of this test program.
var shared struct {
	options Options
	enabled bool
	start   sync.Once
	cluster *Cluster
	err     error
}

// Main runs the tests of a package that share a cluster, and exits. The first call of [Shared] starts
// the cluster, so that tests that do not need it do not wait for it. It ends the program with exit code 1 if the
// binary is not built.
func Main(m *testing.M, o Options) {
	os.Exit(Run(m, o))
}

// Run is [Main] for packages whose TestMain does more: it returns the exit code.
func Run(m *testing.M, o Options) int {
	require.Kube()
	shared.options, shared.enabled = o, true
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the shared cluster:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Shared is the cluster that the tests of this package share. A test has a namespace of its own in it, and undoes what
// it changes elsewhere.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	if !shared.enabled {
		t.Fatal("kubetest.Shared: TestMain has to call kubetest.Main")
	}
	shared.start.Do(func() {
		shared.cluster, shared.err = Launch(context.Background(), shared.options)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if err := shared.cluster.running(); err != nil {
		t.Fatalf("the shared cluster: %v", err)
	}
	shared.cluster.ReportTo(t)
	return shared.cluster
}
