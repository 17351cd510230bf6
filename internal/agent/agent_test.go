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
	"github.com/pilothouse/pilothouse/internal/agent/node"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// options are those of an ordinary sidecar in an empty folder, on a free status port.
func options(t *testing.T, env map[string]string) Options {
	t.Helper()
	all := map[string]string{"PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + strconv.Itoa(freePort(t)) + "}"}
	for k, v := range env {
		all[k] = v
	}
	facts, err := node.Build(node.Input{
		Role: mesh.Sidecar, Env: all, Interfaces: []node.Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	settings, err := node.ReadSettings(facts)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Node: facts, Settings: settings, Log: slog.New(slog.DiscardHandler)}
}

func freePort(t *testing.T) int {
	t.Helper()
	return wait.FreePort(t)
}

// What is wrong is known before anything runs, and nothing is left open or behind.
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
		{"DNS port", "take the address for DNS", map[string]string{
			"ISTIO_META_DNS_CAPTURE": "true", "DNS_PROXY_ADDR": "localhost:" + taken,
			"PROXY_CONFIG": "{binaryPath: /bin/sh, statusPort: " + strconv.Itoa(freePort(t)) + "}",
		}},
		{"no Envoy", "binaryPath", map[string]string{"PROXY_CONFIG": "{binaryPath: /no/envoy}"}},
		{"no root", "root certificate of the CA", nil},
		{"no address", "address of the control plane", map[string]string{"CA_ADDR": "ca:15010", "PROXY_CONFIG": "{binaryPath: /bin/sh, discoveryAddress: here, statusPort: " + strconv.Itoa(freePort(t)) + "}", "XDS_ROOT_CA": "SYSTEM"}},
		{"no Envoy wanted", "DISABLE_ENVOY", map[string]string{"DISABLE_ENVOY": "true"}},
		{"no override", "bootstrap override", map[string]string{"ISTIO_BOOTSTRAP_OVERRIDE": "/no/file", "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "SYSTEM"}},
		{"statistics", "statsFlushInterval", map[string]string{"ISTIO_METAJSON_ANNOTATIONS": `{"sidecar.istio.io/statsFlushInterval": "x"}`, "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "SYSTEM"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			o := options(t, tt.env)
			a, err := New(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, %v; want an error with %q", a, err, tt.want)
			}
			if ExitCode(err) != 255 {
				t.Errorf("exit code %d, want 255", ExitCode(err))
			}
			err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					t.Errorf("%s stays behind", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			for _, dir := range []string{o.Node.Config.GetConfigPath(), sdsDir} {
				held, err := claim.Folder(t.Context(), dir, 0, nil)
				switch {
				case err == nil:
					err = held.Release()
				case errors.Is(err, fs.ErrNotExist):
					err = nil // it did not get so far
				}
				if err != nil {
					t.Errorf("%s is not given back: %v", dir, err)
				}
			}
			if port := int(o.Node.Config.GetStatusPort()); strconv.Itoa(port) != taken {
				l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
				if err != nil {
					t.Fatalf("the status port stays open: %v", err)
				}
				l.Close()
			}
		})
	}
}

func TestOverride(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("o.yaml", []byte("a: \"$(HOST_IP):1\""), 0o600); err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"10.0.0.9": `{"a":"10.0.0.9:1"}`, "fd00::9": `{"a":"[fd00::9]:1"}`} {
		a := &Agent{o: options(t, map[string]string{"ISTIO_BOOTSTRAP_OVERRIDE": "o.yaml", "HOST_IP": host})}
		if got, err := a.override(); err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", host, got, err, want)
		}
	}
}

func TestExitCode(t *testing.T) {
	if got := ExitCode(errors.Join(errors.New("x"), &envoy.ExitError{Code: 139})); got != 139 {
		t.Errorf("exit code %d, want Envoy's own", got)
	}
}
