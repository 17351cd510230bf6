package bootstrap

import (
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

func TestInvalidCollectors(t *testing.T) {
	tls := func(t *networking.ClientTLSSettings) *meshv1.ProxyConfig {
		return &meshv1.ProxyConfig{EnvoyMetricsService: &meshv1.RemoteService{Address: "m.example:1", TlsSettings: t}}
	}
	for _, tt := range []struct {
		config *meshv1.ProxyConfig
		want   string
	}{
		{&meshv1.ProxyConfig{StatsdUdpAddress: "statsd:8125"}, `proxy configuration: statsdUdpAddress: invalid address "statsd:8125": want an IP address and a port: Envoy looks no names up for statsd`},
		{&meshv1.ProxyConfig{StatsdUdpAddress: "10.0.0.1"}, `proxy configuration: statsdUdpAddress: invalid address "10.0.0.1": want host:port`},
		{&meshv1.ProxyConfig{EnvoyAccessLogService: &meshv1.RemoteService{Address: "a:0"}}, `proxy configuration: envoyAccessLogService: invalid address "a:0": invalid port "0": want 1–65535`},
		{&meshv1.ProxyConfig{Tracing: &meshv1.Tracing{Tracer: &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: ":1"}}}}, `proxy configuration: tracing: zipkin: invalid address ":1": want host:port`},
		{&meshv1.ProxyConfig{StatsdUdpAddress: "fd00::1:8125"}, `proxy configuration: statsdUdpAddress: invalid address "fd00::1:8125": want host:port`},
		{&meshv1.ProxyConfig{StatsdUdpAddress: "[10.0.0.1]:8125"}, `proxy configuration: statsdUdpAddress: invalid address "[10.0.0.1]:8125": want host:port`},
		{tls(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE}), `proxy configuration: envoyMetricsService: tlsSettings: caCertificates is missing: want the file with the roots that sign the collector's certificate`},
		{tls(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL, CaCertificates: "/x"}), `proxy configuration: envoyMetricsService: tlsSettings: clientCertificate and privateKey are required in mode MUTUAL`},
		{tls(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CredentialName: "c"}), `proxy configuration: envoyMetricsService: tlsSettings: credentialName "c": want caCertificates, clientCertificate and privateKey: the bootstrap reads files`},
	} {
		_, err := Build(sidecar(func(s *spec.Spec) { s.Config = tt.config }))
		if err == nil || strings.TrimSpace(err.Error()) != tt.want {
			t.Errorf("%v: error %v, want %s", tt.config, err, tt.want)
		}
	}
}
