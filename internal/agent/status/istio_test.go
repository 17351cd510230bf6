package status

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
)

// envoyPage is a page of Envoy, joined alone.
func envoyPage(t *testing.T, openMetrics bool, text string) string {
	t.Helper()
	var out bytes.Buffer
	e := newExposition(bufio.NewWriter(&out), openMetrics)
	e.beginEnvoy()
	if _, err := e.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := e.end(true); err != nil {
		t.Fatal(err)
	}
	if err := e.finish(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Istio's metrics have Istio's names and labels, whatever Envoy calls them.
func TestIstioMetrics(t *testing.T) {
	const (
		server = `reporter="destination",source="client;shop;client;v1;Kubernetes;client;v1",source_principal="spiffe://cluster.local/ns/shop/sa/client",destination="web;shop;web;v2;Kubernetes;web;v2",` +
			`destination_principal="spiffe://cluster.local/ns/shop/sa/web",service="web.shop.svc.cluster.local;shop",response_flags="-"`
		wantServer = `reporter="destination",source_workload="client",source_workload_namespace="shop",source_canonical_service="client",source_canonical_revision="v1",source_cluster="Kubernetes",source_app="client",source_version="v1",` +
			`source_principal="spiffe://cluster.local/ns/shop/sa/client",destination_workload="web",destination_workload_namespace="shop",destination_canonical_service="web",destination_canonical_revision="v2",` +
			`destination_cluster="Kubernetes",destination_app="web",destination_version="v2",destination_principal="spiffe://cluster.local/ns/shop/sa/web",destination_service="web.shop.svc.cluster.local",` +
			`destination_service_name="web",destination_service_namespace="shop",`
		unknown = `source_workload="unknown",source_workload_namespace="unknown",source_canonical_service="unknown",source_canonical_revision="latest",source_cluster="unknown",source_app="unknown",source_version="unknown",source_principal="unknown",` +
			`destination_workload="unknown",destination_workload_namespace="unknown",destination_canonical_service="unknown",destination_canonical_revision="latest",destination_cluster="unknown",destination_app="unknown",` +
			`destination_version="unknown",destination_principal="unknown",`
	)
	for name, tt := range map[string]struct{ page, want string }{
		"a request": {
			"# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total{" + server + `,request_protocol="http",response_code="200",grpc_response_status=""} 7` + "\n",
			"# TYPE istio_requests_total counter\nistio_requests_total{" + wantServer + `connection_security_policy="mutual_tls",response_flags="-",request_protocol="http",response_code="200",grpc_response_status=""} 7` + "\n",
		},
		"a bucket": {
			"envoy_istio_request_bytes_bucket{" + server + `,le="0.5"} 7` + "\n",
			"istio_request_bytes_bucket{" + wantServer + `connection_security_policy="mutual_tls",response_flags="-",le="0.5"} 7` + "\n",
		},
		"a connection of which nothing is known": {
			`envoy_istio_tcp_sent_bytes_total{reporter="source",service="PassthroughCluster;"} 1` + "\n",
			`istio_tcp_sent_bytes_total{reporter="source",` + unknown + `destination_service="unknown",destination_service_name="PassthroughCluster",destination_service_namespace="unknown",request_protocol="tcp",connection_security_policy="unknown"} 1` + "\n",
		},
		"a host outside": {
			`envoy_istio_requests_total{reporter="source",service="example.com;shop"} 1` + "\n",
			`istio_requests_total{reporter="source",` + unknown + `destination_service="example.com",destination_service_name="example.com",destination_service_namespace="shop",connection_security_policy="unknown"} 1` + "\n",
		},
		"plaintext": {
			`envoy_istio_requests_total{reporter="destination",service="a.b.svc.x;b"} 1` + "\n",
			`istio_requests_total{reporter="destination",` + unknown + `destination_service="a.b.svc.x",destination_service_name="a",destination_service_namespace="b",connection_security_policy="none"} 1` + "\n",
		},
		"others stay":   {"envoy_cluster_x{a=\"b\"} 1\nenvoy_istio_x 1\nenvoy_istio_y{z=\"\\\"}\"} 2\n", "envoy_cluster_x{a=\"b\"} 1\nistio_x 1\nistio_y{z=\"\\\"}\"} 2\n"},
		"half a sample": {"envoy_istio_y{z=\"\\\"} 2\nenvoy_istio_y{z} 2\nenvoy_istio_y{z=\"a\"b} 2\n", "istio_y{z=\"\\\"} 2\nistio_y{z} 2\nistio_y{z=\"a\"b} 2\n"},
	} {
		if got := envoyPage(t, false, tt.page); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
	}
	if got := envoyPage(t, true, "# TYPE envoy_istio_requests_total counter\n"); got != "# TYPE istio_requests counter\n# EOF\n" {
		t.Errorf("OpenMetrics: %q", got)
	}
}

// What a peer says of its namespace does not count against its certificate, and cannot put a series on the page twice, for which a
// server of Prometheus refuses the page.
func TestPeersThatLie(t *testing.T) {
	const rest = `,source_principal="spiffe://cluster.local/ns/shop/sa/client",destination="w;n",service="w.n.svc.x;n"} 1` + "\n"
	got := envoyPage(t, false, `envoy_istio_requests_total{reporter="destination",source="client;bank;c;v;k;a;v"`+rest+
		`envoy_istio_requests_total{reporter="destination",source="client;shop;c;v;k;a;v"`+rest+
		`envoy_istio_requests_total{reporter="destination",source="other;shop;c;v;k;a;v"`+rest)
	if strings.Contains(got, "bank") || strings.Count(got, `source_workload="client",source_workload_namespace="shop"`) != 1 || strings.Count(got, "\n") != 2 {
		t.Error(got)
	}
}

// Labels that a Telemetry removes are not on the page: the series that differ in nothing else are added, those of other families not. Labels
// that it adds have their own names and valid values, whatever a client has sent.
func TestOverriddenLabels(t *testing.T) {
	const all = "source_workload,source_workload_namespace,source_canonical_service,source_canonical_revision,source_cluster,source_app,source_version,source_principal," +
		"destination_workload_namespace,destination_canonical_service,destination_canonical_revision,destination_cluster,destination_app,destination_version,destination_principal," +
		"destination_service,destination_service_name,destination_service_namespace,connection_security_policy"
	one := func(metric, source, removed, more, value string) string {
		return "envoy_istio_" + metric + `{reporter="destination",source="` + source + `",destination="w;n",removed="` + removed + `"` + more + "} " + value + "\n"
	}
	messages := func(which, source, count, value string) string {
		return one(which+"_messages_total", source+";n;c;v;k", all, `,messages="`+count+`"`, value)
	}
	for name, tt := range map[string]struct{ page, want string }{
		"added": {
			"# TYPE envoy_istio_requests_total counter\n" + one("requests_total", "a;n", all, `,response_code="200"`, "1") + one("requests_total", "b;n", all, `,response_code="200"`, "41") + one("requests_total", "b;n", all, `,response_code="404"`, "5") +
				"# TYPE envoy_istio_request_bytes histogram\n" + one("request_bytes_bucket", "a;n", all, `,le="1"`, "1") + one("request_bytes_sum", "a;n", all, "", "1.5") + one("request_bytes_bucket", "b;n", all, `,le="1"`, "2") + one("request_bytes_sum", "b;n", all, "", "2"),
			"# TYPE istio_requests_total counter\n" + `istio_requests_total{reporter="destination",destination_workload="w",response_code="200"} 42` + "\n" + `istio_requests_total{reporter="destination",destination_workload="w",response_code="404"} 5` + "\n" +
				"# TYPE istio_request_bytes histogram\n" + `istio_request_bytes_bucket{reporter="destination",destination_workload="w",le="1"} 3` + "\n" + `istio_request_bytes_sum{reporter="destination",destination_workload="w"} 3.5` + "\n",
		},
		"all of them": {
			one("tcp_sent_bytes_total", "a;n", all+",reporter,destination_workload,request_protocol", "", "1") + one("tcp_sent_bytes_total", "b;n", all+",reporter,destination_workload,request_protocol", "", "9007199254740991"),
			"istio_tcp_sent_bytes_total{} 9007199254740992\n",
		},
		"labels with the names of tags": {
			one("tcp_sent_bytes_total", "a;n", all+",request_protocol", `,label_removed="x",label_source="y",label_label_a="z",label_source_app="other"`, "1"),
			`istio_tcp_sent_bytes_total{reporter="destination",destination_workload="w",removed="x",source="y",label_a="z",source_app="other"} 1` + "\n",
		},
		"messages": { // 3 unary calls, one that failed, a stream, and a request that a policy denied
			"# TYPE envoy_istio_request_messages_total counter\n" + messages("request", "a", "1,1", "3") + messages("request", "b", "1,0", "1") + messages("request", "a", "2,1200", "2") + messages("request", "a", "", "9") +
				"# TYPE envoy_istio_response_messages_total counter\n" + messages("response", "a", "1,1", "3") + messages("response", "b", "1,0", "1") + messages("response", "a", "2,1200", "2"),
			"# TYPE istio_request_messages_total counter\n" + `istio_request_messages_total{reporter="destination",destination_workload="w"} 8` + "\n" +
				"# TYPE istio_response_messages_total counter\n" + `istio_response_messages_total{reporter="destination",destination_workload="w"} 2403` + "\n",
		},
		"what clients send": {
			one("tcp_sent_bytes_total", "a;n", all+",request_protocol", `,label_a="`+"\xff\xfe"+`",label_b="",label_c="\"\n"`, "1"),
			`istio_tcp_sent_bytes_total{reporter="destination",destination_workload="w",a="�",b="unknown",c="\"\n"} 1` + "\n",
		},
	} {
		if got := envoyPage(t, false, tt.page); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
	}
}

func FuzzIstioMetrics(f *testing.F) {
	f.Add(`envoy_istio_requests_total{reporter="source",removed="source_app",label_source_app="x",label_x="` + "\xff" + `"} 1`)
	f.Add(`envoy_istio_requests_total{reporter="source",source="a;b",x="\"\\"} 1`)
	f.Add(`envoy_istio_requests_total{,} 1`)
	f.Fuzz(func(t *testing.T, line string) {
		m := &istioMetrics{seen: map[uint64]struct{}{}, place: map[string]int{}}
		m.seed = newExposition(nil, false).seed
		out := m.line([]byte(line))
		if !strings.HasPrefix(line, istioPrefix) {
			if string(out) != line {
				t.Fatalf("%q became %q", line, out)
			}
			return
		}
		if len(m.sums) > 0 && out == nil {
			out = bytes.TrimSuffix(m.sum(), []byte("\n"))
			if !bytes.HasPrefix(out, []byte("istio_")) {
				t.Fatalf("%q became %q", line, out)
			}
			return
		}
		if !bytes.HasPrefix(out, []byte("istio_")) || bytes.Count(out, []byte("\n")) != strings.Count(line, "\n") {
			t.Fatalf("%q became %q", line, out)
		}
		if first := string(out); first != line[len(envoyPrefix):] && m.line([]byte(line)) != nil {
			t.Fatalf("%q is on the page twice", line)
		}
	})
}
