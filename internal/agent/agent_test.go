package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// options are the Options of an ordinary sidecar in an empty folder, on a free status port.
func options(t *testing.T, env map[string]string) (Options, error) {
	t.Helper()
	all := map[string]string{"PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + strconv.Itoa(freePort(t)) + "}"}
	for k, v := range env {
		all[k] = v
	}
	s, err := spec.Build(input(all, nil))
	return Options{Spec: s, Log: slog.New(slog.DiscardHandler)}, err
}

// input is the input of the Specs of these tests; running is nil at the start.
func input(env map[string]string, running *spec.Spec) spec.Input {
	return spec.Input{
		Role: mesh.Sidecar, Env: env, ReadFile: os.ReadFile, Running: running,
		Host: spec.Host{Interfaces: []spec.Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}},
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	return wait.FreePort(t)
}

// TestNewFailsAtOnce checks that a mistake is reported before anything runs, and that New then leaves no file, lock or socket.
func TestNewFailsAtOnce(t *testing.T) {
	busy, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken := strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)
	tests := []struct {
		name, want string
		env        map[string]string
	}{
		{"status port", "take the status port", map[string]string{"PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + taken + "}"}},
		{"DNS port", "listen for DNS", map[string]string{
			"ISTIO_META_DNS_CAPTURE": "true", "DNS_PROXY_ADDR": "localhost:" + taken,
			"PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + strconv.Itoa(freePort(t)) + "}",
		}},
		{"no Envoy", "binaryPath", map[string]string{"PROXY_CONFIG": "{binaryPath: /no/envoy}"}},
		{"no root", "root certificate of the CA", nil},
		{"no address", "address of the control plane", map[string]string{"CA_ADDR": "ca:15010", "PROXY_CONFIG": "{binaryPath: /bin/sh, discoveryAddress: here, statusPort: " + strconv.Itoa(freePort(t)) + "}", "XDS_ROOT_CA": "SYSTEM"}},
		{"statistics", "statsFlushInterval", map[string]string{"ISTIO_METAJSON_ANNOTATIONS": `{"sidecar.istio.io/statsFlushInterval": "x"}`, "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "SYSTEM"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			o, err := options(t, tt.env)
			if err != nil {
				t.Fatal(err)
			}
			a, err := New(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, %v; want an error with %q", a, err, tt.want)
			}
			if ExitCode(err) != 255 {
				t.Errorf("exit code %d, want 255", ExitCode(err))
			}
			err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					t.Errorf("%s is left behind", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			for _, dir := range []string{o.Spec.Paths.ConfigDir, o.Spec.Paths.SDSDir} {
				held, err := claim.Folder(t.Context(), dir, 0, nil)
				switch {
				case err == nil:
					err = held.Release()
				case errors.Is(err, fs.ErrNotExist):
					err = nil // New failed before it created the folder
				}
				if err != nil {
					t.Errorf("%s is still locked: %v", dir, err)
				}
			}
			if port := o.Spec.Status.Port; strconv.Itoa(port) != taken {
				l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
				if err != nil {
					t.Fatalf("the status port is still open: %v", err)
				}
				l.Close()
			}
		})
	}
}

func TestMissingBootstrapOverride(t *testing.T) {
	if _, err := options(t, map[string]string{"ISTIO_BOOTSTRAP_OVERRIDE": "/no/file"}); err == nil || !strings.Contains(err.Error(), "bootstrap override") {
		t.Errorf("error %v, want one that names the override", err)
	}
}

func TestExitCode(t *testing.T) {
	if got := ExitCode(errors.Join(errors.New("x"), &envoy.ExitError{Code: 139})); got != 139 {
		t.Errorf("exit code %d, want Envoy's own", got)
	}
}
