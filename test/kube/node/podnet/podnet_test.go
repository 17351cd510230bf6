package podnet_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
)

const services = `
- metadata: {namespace: shop, name: web}
  spec: {clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7, "fd00::7"], externalIPs: [192.0.2.1], ports: [{name: http, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]}
- metadata: {namespace: shop, name: idle}
  spec: {clusterIP: 10.96.0.8, clusterIPs: [10.96.0.8], ports: [{port: 80}]}
- metadata: {namespace: shop, name: db}
  spec: {clusterIP: None, clusterIPs: [None], ports: [{name: sql, port: 5432, protocol: TCP}]}
- metadata: {namespace: shop, name: away}
  spec: {type: ExternalName, externalName: Example.com.}
`

const endpoints = `
- metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
  ports: [{name: http, port: 8080, protocol: TCP}]
  endpoints:
  - {addresses: [10.244.1.2], conditions: {ready: true}}
  - {addresses: [10.244.1.1], conditions: {ready: true}}
  - {addresses: [10.244.1.3], conditions: {ready: false, serving: true, terminating: true}}
- metadata: {namespace: shop, name: web-2, labels: {kubernetes.io/service-name: web}}
  ports: [{name: http, port: 8081, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}]
  endpoints:
  - {addresses: [10.244.1.4], conditions: {ready: false, serving: true, terminating: true}}
- metadata: {namespace: shop, name: db-1, labels: {kubernetes.io/service-name: db}}
  ports: [{name: sql, port: 5432, protocol: TCP}]
  endpoints:
  - {addresses: [10.244.2.2], hostname: db-0, conditions: {ready: true}}
  - {addresses: [10.244.2.1], conditions: {ready: true}}
  - {addresses: [10.244.2.3], conditions: {ready: false}}
`

func tables(t *testing.T) podnet.Tables {
	t.Helper()
	var out podnet.Tables
	var s []*corev1.Service
	var e []*discoveryv1.EndpointSlice
	if err := yaml.UnmarshalStrict([]byte(services), &s); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(endpoints), &e); err != nil {
		t.Fatal(err)
	}
	out.Services, out.Slices = s, e
	return out
}

func TestRules(t *testing.T) {
	var b strings.Builder
	for _, r := range tables(t).Rules() {
		fmt.Fprintln(&b, r.Protocol, r.From, r.To)
	}
	// The UDP port has no endpoint that is ready, so that one that ends has its traffic.
	const want = `TCP 10.96.0.7:80 [10.244.1.1:8080 10.244.1.2:8080]
UDP 10.96.0.7:53 [10.244.1.4:5353]
TCP 10.96.0.8:80 []
TCP 192.0.2.1:80 [10.244.1.1:8080 10.244.1.2:8080]
UDP 192.0.2.1:53 [10.244.1.4:5353]
`
	got := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no rule %s", line)
		}
	}
	if len(got) != 5 {
		t.Errorf("rules:\n%s", b.String())
	}
}

func TestLookup(t *testing.T) {
	tables := tables(t)
	for name, want := range map[string]string{
		"web.shop.svc.cluster.local.":             "10.96.0.7",
		"WEB.shop.svc.Cluster.Local":              "10.96.0.7",
		"db.shop.svc.cluster.local":               "10.244.2.1 10.244.2.2",
		"db-0.db.shop.svc.cluster.local":          "10.244.2.2",
		"10-244-2-1.db.shop.svc.cluster.local":    "10.244.2.1",
		"db-1.db.shop.svc.cluster.local":          "NXDOMAIN",
		"x.web.shop.svc.cluster.local":            "NXDOMAIN",
		"10-244-1-1.shop.pod.cluster.local":       "10.244.1.1",
		"ten.shop.pod.cluster.local":              "NXDOMAIN",
		"away.shop.svc.cluster.local":             "-> example.com",
		"_http._tcp.web.shop.svc.cluster.local":   "web.shop.svc.cluster.local:80=10.96.0.7",
		"_sql._tcp.db.shop.svc.cluster.local":     "db-0.db.shop.svc.cluster.local:5432=10.244.2.2 10-244-2-1.db.shop.svc.cluster.local:5432=10.244.2.1",
		"_http._udp.web.shop.svc.cluster.local":   "NXDOMAIN",
		"none.shop.svc.cluster.local":             "NXDOMAIN",
		"web.other.svc.cluster.local":             "NXDOMAIN",
		"shop.svc.cluster.local":                  "",
		"other.svc.cluster.local":                 "NXDOMAIN",
		"cluster.local":                           "",
		"web.shop.svc.example.com":                "NXDOMAIN",
		"a._http._tcp.web.shop.svc.cluster.local": "NXDOMAIN",
	} {
		if got := text(tables.Lookup(name, "cluster.local")); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func text(a podnet.Answer) string {
	if !a.Exists {
		return "NXDOMAIN"
	}
	var out []string
	if a.Alias != "" {
		out = append(out, "-> "+a.Alias)
	}
	for _, ip := range a.Addrs {
		out = append(out, ip.String())
	}
	for _, s := range a.Servers {
		out = append(out, fmt.Sprintf("%s:%d=%s", s.Target, s.Port, join(s.Addrs)))
	}
	return strings.Join(out, " ")
}

func join(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ",")
}
