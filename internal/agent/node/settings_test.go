package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

func TestSettingsDefaults(t *testing.T) {
	got, err := ReadSettings(build(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Upstream: Upstream{
			Discovery: "istiod.istio-system.svc:15012", CA: "istiod.istio-system.svc:15012", CertProvider: "istiod", ClusterID: "Kubernetes",
			DiscoveryHeaders: map[string]string{}, CAHeaders: map[string]string{}, Keepalive: 30 * time.Second, KeepaliveTimeout: 10 * time.Second,
		},
		Secrets: Secrets{TTL: 24 * time.Hour, GraceRatio: 0.5, Jitter: 0.01, Key: pki.ECDSAP256, SocketName: "socket"},
		Envoy:   Envoy{HealthPort: 15021, PrometheusPort: 15090, MinDrain: 5 * time.Second},
		Life:    Life{HotRestart: true, ParentShutdown: time.Minute, MaxDrain: 15 * time.Minute, AppGrace: 30 * time.Second},
		DNS:     DNS{Address: "localhost:15053"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSettings(t *testing.T) {
	got, err := ReadSettings(build(t, func(in *Input) {
		in.Env["PROXY_CONFIG"] = "proxyMetadata: {ISTIO_DELTA_XDS: 'false', SECRET_TTL: 1h}\ndiscoveryAddress: d:1\n"
		for k, v := range map[string]string{
			"CA_ADDR": "ca:2", "XDS_ROOT_CA": "SYSTEM", "CA_ROOT_CA": "/ca.pem", "PROV_CERT": "/prov", "OUTPUT_CERTS": "/out",
			"XDS_HEADER_A": "1", "CA_HEADER_B": "2", "ECC_SIGNATURE_ALGORITHM": "ECDSA", "ECC_CURVE": "P-384", "PKCS8_KEY": "true",
			"SECRET_GRACE_PERIOD_RATIO": "0.25", "MINIMUM_DRAIN_DURATION": "1s", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS": "true",
			"HOST_IP": "10.0.0.1", "SECRET_TTL": "2h",
		} {
			in.Env[k] = v
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	u, s, e := got.Upstream, got.Secrets, got.Envoy
	if u.Discovery != "d:1" || u.CA != "ca:2" || u.DiscoveryRoot != "SYSTEM" || u.CARoot != "/ca.pem" ||
		u.DiscoveryHeaders["a"] != "1" || u.CAHeaders["b"] != "2" {
		t.Errorf("upstream %+v", u)
	}
	if s.TTL != 2*time.Hour || s.GraceRatio != 0.25 || s.Key != pki.ECDSAP384 || !s.PKCS8 || s.ProvisionedDir != "/prov" || s.OutputDir != "/out" {
		t.Errorf("secrets %+v: the environment must win over proxyMetadata", s)
	}
	if !e.StateOfTheWorld || !e.ExitOnZero || e.MinDrain != time.Second || e.HostIP != "10.0.0.1" {
		t.Errorf("envoy %+v", e)
	}
}

func TestKeepaliveBelowWhatCanBeIsTold(t *testing.T) {
	for v, want := range map[string]bool{"5s": true, "10s": false, "0": false, "": false} {
		f := build(t, func(in *Input) { in.Env["GRPC_KEEPALIVE_INTERVAL"] = v })
		if _, err := ReadSettings(f); err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(strings.Join(f.Warnings, "\n"), "GRPC_KEEPALIVE_INTERVAL"); told != want {
			t.Errorf("%q: warnings %v", v, f.Warnings)
		}
	}
}

func TestSettingsMistakes(t *testing.T) {
	for name, value := range map[string]string{
		"SECRET_TTL": "a day", "SECRET_GRACE_PERIOD_RATIO": "2", "PKCS8_KEY": "maybe", "DISABLE_ENVOY": "x",
		"PILOT_CERT_PROVIDER": "nobody", "WORKLOAD_RSA_KEY_SIZE": "12", "ECC_SIGNATURE_ALGORITHM": "DSA",
		"WORKLOAD_IDENTITY_SOCKET_FILE": "a/b", "ISTIO_DELTA_XDS": "2", "ISTIO_META_DNS_CAPTURE": "maybe", "DNS_FORWARD_TIMEOUT": "-1s",
	} {
		_, err := ReadSettings(build(t, func(in *Input) { in.Env[name] = value }))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: error %v, want one that names the variable", name, value, err)
		}
	}
}

// Whether the agent answers captured DNS: as strconv.ParseBool reads it, from the environment or
// proxyMetadata, for sidecars.
func TestWhoServesDNS(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   func(*Input)
		want bool
	}{
		{"nobody asks", func(*Input) {}, false},
		{"captured", func(in *Input) { in.Env["ISTIO_META_DNS_CAPTURE"] = "True" }, true},
		{"by a number", func(in *Input) { in.Env["ISTIO_META_DNS_CAPTURE"] = "1" }, true},
		{"not captured", func(in *Input) { in.Env["ISTIO_META_DNS_CAPTURE"] = "0" }, false},
		{"by proxyMetadata", func(in *Input) { in.Env["PROXY_CONFIG"] = "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}" }, true},
		{"the environment wins", func(in *Input) {
			in.Env["PROXY_CONFIG"], in.Env["ISTIO_META_DNS_CAPTURE"] = "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}", "false"
		}, false},
		{"a router", func(in *Input) { in.Role, in.Env["ISTIO_META_DNS_CAPTURE"] = mesh.Router, "true" }, false},
		{"a router that is asked", func(in *Input) { in.Role, in.Env["ISTIO_META_ENABLE_DNS_SERVER"] = mesh.Router, "true" }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadSettings(build(t, tt.in))
			if err != nil || got.DNS.Serve != tt.want {
				t.Errorf("serves %v (%v), want %v", got.DNS.Serve, err, tt.want)
			}
		})
	}
}
