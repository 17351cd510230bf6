package startup

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/test/wait"
)

// sidecar is a Spec with its own folders and free ports.
func sidecar(t *testing.T) *spec.Spec {
	t.Helper()
	dir := t.TempDir()
	config, sds := filepath.Join(dir, "proxy"), filepath.Join(dir, "sds")
	return &spec.Spec{
		Node: spec.Node{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		Paths: spec.Paths{
			ConfigDir: config, Bootstrap: filepath.Join(config, "envoy-rev.json"), XDSSocket: filepath.Join(config, "XDS"),
			SDSDir: sds, SDSSocket: filepath.Join(sds, "socket"),
		},
		Certificates: spec.Certificates{Own: true},
		Envoy:        spec.Envoy{AdminPort: wait.FreePort(t), HealthPort: wait.FreePort(t), PrometheusPort: wait.FreePort(t)},
		Status:       spec.Status{Port: wait.FreePort(t)},
	}
}

func take(t *testing.T, s *spec.Spec) error {
	t.Helper()
	taken, err := Take(t.Context(), s, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := taken.Status.Close(); err != nil {
		t.Error(err)
	}
	if err := taken.Release(); err != nil {
		t.Error(err)
	}
	return nil
}

func TestTakeAndRelease(t *testing.T) {
	s := sidecar(t)
	for range 2 {
		if err := take(t, s); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLockedFolder(t *testing.T) {
	for name, tt := range map[string]struct {
		dir  func(*spec.Spec) string
		want []string
	}{
		"configuration": {func(s *spec.Spec) string { return s.Paths.ConfigDir }, []string{"take the configuration folder", "configPath"}},
		"SDS socket":    {func(s *spec.Spec) string { return s.Paths.SDSDir }, []string{"take the folder of the SDS socket", "another working directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sidecar(t)
			dir := tt.dir(s)
			if err := os.MkdirAll(dir, 0o750); err != nil {
				t.Fatal(err)
			}
			other, err := claim.Folder(t.Context(), dir, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Release()
			err = take(t, s)
			for _, want := range append(tt.want, dir) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
			if err := other.Release(); err != nil {
				t.Fatal(err)
			}
			if err := take(t, s); err != nil {
				t.Errorf("after the other agent has ended: %v", err)
			}
		})
	}
}

func TestPortInUse(t *testing.T) {
	for setting, port := range map[string]func(*spec.Spec) int{
		"statusPort":            func(s *spec.Spec) int { return s.Status.Port },
		"proxyAdminPort":        func(s *spec.Spec) int { return s.Envoy.AdminPort },
		"ENVOY_STATUS_PORT":     func(s *spec.Spec) int { return s.Envoy.HealthPort },
		"ENVOY_PROMETHEUS_PORT": func(s *spec.Spec) int { return s.Envoy.PrometheusPort },
	} {
		t.Run(setting, func(t *testing.T) {
			s := sidecar(t)
			busy := strconv.Itoa(port(s))
			l, err := net.Listen("tcp", ":"+busy)
			if err != nil {
				t.Fatal(err)
			}
			if err := take(t, s); err == nil || !strings.Contains(err.Error(), setting) || !strings.Contains(err.Error(), busy) || !strings.Contains(err.Error(), "another program has the port: end it, or choose another port") {
				t.Errorf("error %v, want one with %s and port %s", err, setting, busy)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if err := take(t, s); err != nil {
				t.Errorf("after the port is free again: %v", err)
			}
		})
	}
}
