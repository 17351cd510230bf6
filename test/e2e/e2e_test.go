// Package e2e_test tests whole meshes: real Envoys, the programs of this repository, captured traffic.
//
// Every test starts its own mesh from a directory in testdata (internal/lab/meshup), and needs root. The
// programs are built before the first test, with the flags of make build. Requests are never retried:
// when a test checks that no request failed, as many were served as were sent, and no Envoy counted a
// failed connection or a TLS error.
package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/require"
)

const root = "../.."

// programs is set once, before any test.
var programs meshup.Programs

func TestMain(m *testing.M) {
	require.Root()
	require.Envoy()
	os.Exit(func() int {
		bin, err := os.MkdirTemp("", "pilothouse-e2e-")
		if err == nil {
			defer func() { _ = os.RemoveAll(bin) }()
			err = build(bin)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
		return m.Run()
	}())
}

// build makes the programs and finds Envoy.
func build(bin string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-pgo=hack/pgo/pilot-discovery.pgo", "-tags", "grpcnotrace", "-o", bin+"/", "./cmd/...", "./samples/app")
	cmd.Dir, cmd.Stderr, cmd.Env = root, os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the programs: %w", err)
	}
	envoy, err := require.EnvoyPath()
	if err != nil {
		return err
	}
	programs, err = meshup.In(bin, envoy)
	return err
}

func issue(stateDir, namespace, account string) (string, error) {
	i, err := authn.OpenIssuer(stateDir)
	if err != nil {
		return "", err
	}
	return i.Issue(namespace, account, "", 0, time.Now())
}

// start starts the mesh of a directory below testdata, with a copy of it whose path is returned, too. It
// is closed at the end of the test.
func start(t *testing.T, dir string) (*meshup.Mesh, string) {
	t.Helper()
	return startWith(t, dir, func(*meshup.Options) {})
}

// startWith is start with other options.
func startWith(t testing.TB, dir string, adjust func(*meshup.Options)) (*meshup.Mesh, string) {
	t.Helper()
	// Not t.TempDir: the proxies' user must reach it.
	work, err := os.MkdirTemp("", "pilothouse-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	config := filepath.Join(work, "config")
	if err := os.CopyFS(config, os.DirFS(filepath.Join("testdata", dir))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	o := meshup.Options{Programs: programs, ConfigDir: config, WorkDir: work, Token: issue, ProxyConfig: meshup.CountFailures}
	adjust(&o)
	m, err := meshup.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the mesh of %s is up after %v", dir, time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, config
}

// trouble returns the statistics of errors of all Envoys.
func errorStats(t *testing.T, m *meshup.Mesh) map[string]int64 {
	t.Helper()
	out, err := m.ErrorStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out
}
