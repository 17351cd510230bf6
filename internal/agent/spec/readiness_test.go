package spec

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

var probeNode = netip.MustParseAddr("10.1.2.3")

func readinessOf(t *testing.T, text string) (*Readiness, error) {
	t.Helper()
	p := &networking.ReadinessProbe{}
	if err := yaml.Unmarshal([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return readiness(p, probeNode, 15020)
}

func TestReadinessProbe(t *testing.T) {
	if r, err := readiness(nil, probeNode, 15020); r != nil || err != nil {
		t.Errorf("without a probe: %+v, %v", r, err)
	}
	usual := Readiness{Host: probeNode, Period: 10 * time.Second, Timeout: time.Second, Successes: 1, Failures: 1}
	for text, want := range map[string]func(*Readiness){
		"httpGet: {port: 80}": func(r *Readiness) { r.HTTP = &HTTPProbe{Port: 80, Target: "/"} },
		"httpGet: {port: 80, path: '/h?a=b', scheme: HTTPS, host: localhost, httpHeaders: [{name: Host, value: a.test}]}": func(r *Readiness) {
			r.HTTP = &HTTPProbe{Port: 80, Target: "/h?a=b", TLS: true, Headers: []Header{{"Host", "a.test"}}}
			r.Host = netip.MustParseAddr("127.0.0.1")
		},
		"tcpSocket: {port: 81, host: '::1'}": func(r *Readiness) { r.TCPPort, r.Host = 81, netip.IPv6Loopback() },
		"grpc: {port: 82, service: s}":       func(r *Readiness) { r.GRPC = &GRPCProbe{Port: 82, Service: "s"} },
		"{exec: {command: [a, b]}, initialDelaySeconds: 1, timeoutSeconds: 2, periodSeconds: 3, successThreshold: 4, failureThreshold: 5}": func(r *Readiness) {
			r.Exec, r.InitialDelay, r.Timeout, r.Period, r.Successes, r.Failures = []string{"a", "b"}, time.Second, 2*time.Second, 3*time.Second, 4, 5
		},
	} {
		w := usual
		want(&w)
		if r, err := readinessOf(t, text); err != nil || !reflect.DeepEqual(*r, w) {
			t.Errorf("%s: %+v, %v, want %+v", text, r, err, w)
		}
	}
	for text, want := range map[string]string{
		"periodSeconds: 1":                                  "want httpGet, tcpSocket, grpc or exec",
		"{tcpSocket: {port: 1}, timeoutSeconds: -1}":        "invalid timeoutSeconds -1",
		"tcpSocket: {port: 70000}":                          "invalid port 70000",
		"httpGet: {port: 0}":                                "invalid port 0",
		"httpGet: {port: 15020, path: /app-health/x/livez}": "probe itself",
		"httpGet: {port: 1, scheme: FTP}":                   "invalid scheme",
		"grpc: {}":                                          "invalid port 0",
		"exec: {}":                                          "exec without a command",
		"tcpSocket: {port: 1, host: db.example}":            "invalid host",
	} {
		if r, err := readinessOf(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", text, r, err, want)
		}
	}
}
