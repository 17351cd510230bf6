package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// What injection writes for the probes of [agent H9], as it was observed.
const injectedProbers = `{"/app-health/side/livez":{"httpGet":{"path":"/live?x=1","port":7000,"host":"127.0.0.1"}},"/app-health/side/startupz":{"grpc":{"port":7001,"service":null}},` +
	`"/app-health/web/livez":{"tcpSocket":{"port":9000}},"/app-health/web/readyz":{"httpGet":{"path":"ready","port":8080,"scheme":"HTTPS","httpHeaders":[{"name":"X-Probe","value":"1"}]},"timeoutSeconds":2},` +
	`"/app-health/web/startupz":{"grpc":{"port":9001,"service":"health"}},"/app-lifecycle/web/poststartz":{"httpGet":{"path":"","port":8080}},"/app-lifecycle/web/prestopz":{"tcpSocket":{"port":9000}}}`

func TestProbers(t *testing.T) {
	s := build(t, func(in *testInput) {
		in.Env["ISTIO_KUBE_APP_PROBERS"] = injectedProbers
		in.Env["ISTIO_ENABLE_HTTP2_PROBING"] = "false"
		in.Env["REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"] = "true"
		in.Env["ENABLE_PROBE_KEEPALIVE_CONNECTIONS"] = "true"
	})
	want := Probes{Localhost: true, KeepAlive: true, Probers: map[string]Prober{
		"/app-health/side/livez":        {HTTP: &HTTPProbe{Port: 7000, Host: "127.0.0.1", Target: "/live?x=1"}, Timeout: time.Second},
		"/app-health/side/startupz":     {GRPC: &GRPCProbe{Port: 7001}, Timeout: time.Second},
		"/app-health/web/livez":         {TCPPort: 9000, Timeout: time.Second},
		"/app-health/web/readyz":        {HTTP: &HTTPProbe{Port: 8080, TLS: true, Target: "/ready", Headers: []Header{{"X-Probe", "1"}}}, Timeout: 2 * time.Second},
		"/app-health/web/startupz":      {GRPC: &GRPCProbe{Port: 9001, Service: "health"}, Timeout: time.Second},
		"/app-lifecycle/web/poststartz": {HTTP: &HTTPProbe{Port: 8080, Target: "/"}},
		"/app-lifecycle/web/prestopz":   {TCPPort: 9000},
	}}
	if diff := cmp.Diff(want, s.Probes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(s.Warnings) > 0 {
		t.Errorf("warnings %q", s.Warnings)
	}
	ignored := build(t, func(in *testInput) {
		in.Env["ISTIO_KUBE_APP_PROBERS"] = `{"/app-health/a/livez":{"tcpSocket":{"port":1,"host":"db"}}}`
	})
	if w := strings.Join(ignored.Warnings, "\n"); !strings.Contains(w, "/app-health/a/livez: tcpSocket.host has no effect") {
		t.Errorf("warnings %q, want one for tcpSocket.host", w)
	}
}

func TestInvalidProbers(t *testing.T) {
	const key = `{"/app-health/a/livez":`
	for text, want := range map[string]string{
		"{":                            "parse JSON: ",
		"[]":                           "want an object with a probe for each path",
		"{} {}":                        "text after the object",
		`{"/app-health/a/x":{}}`:       `key "/app-health/a/x": invalid key: want /app-health/CONTAINER/`,
		`{"/app-health/a/b/livez":1}`:  "invalid key",
		`{"/app-lifecycle/a/livez":1}`: "invalid key",
		key + `}`:                      `key "/app-health/a/livez"`,
		key + `1}`:                     `key "/app-health/a/livez": parse probe: `,
		key + `{}}`:                    "0 of httpGet, tcpSocket and grpc: want exactly one",
		key + `{"exec":{}}}`:           `unknown field "exec": want httpGet, tcpSocket or grpc`,
		key + `{"httpGet":{"port":1,"pth":"/"}}}`:                                        `unknown field "pth"`,
		key + `{"httpGet":{"port":1},"tcpSocket":{"port":1}}}`:                           "2 of httpGet",
		key + `{"httpGet":{"port":"web"}}}`:                                              `invalid port "\"web\"": want a number of 1–65535`,
		key + `{"httpGet":{"port":65536}}}`:                                              `invalid port "65536"`,
		key + `{"httpGet":{"path":"/x"}}}`:                                               "httpGet: no port",
		key + `{"tcpSocket":{}}}`:                                                        "tcpSocket: no port",
		key + `{"grpc":{}}}`:                                                             "grpc: no port",
		key + `{"httpGet":{"port":1,"scheme":"ftp"}}}`:                                   `invalid scheme "ftp": want HTTP or HTTPS`,
		key + `{"httpGet":{"port":1,"path":"/%"}}}`:                                      `invalid path "/%"`,
		key + `{"httpGet":{"port":1,"host":"a/b"}}}`:                                     `invalid host "a/b"`,
		key + `{"httpGet":{"port":1,"httpHeaders":[{"name":"a b"}]}}}`:                   `invalid name of a header "a b"`,
		key + `{"httpGet":{"port":1,"httpHeaders":[{"name":"A","value":"\n"}]}}}`:        "invalid value of header A",
		key + `{"tcpSocket":{"port":1},"timeoutSeconds":-1}}`:                            "invalid timeoutSeconds -1: want 0 or more",
		key + `{"tcpSocket":{"port":1}},"/app-health/a/livez":{"tcpSocket":{"port":2}}}`: "the key occurs twice",
		key + `{"httpGet":{"port":15020,"path":"/app-health/a/livez"}}}`:                 "the agent would probe itself at port 15020",
	} {
		_, err := Build(pod(func(in *testInput) { in.Env["ISTIO_KUBE_APP_PROBERS"] = text }))
		if err == nil || !strings.HasPrefix(err.Error(), "environment ISTIO_KUBE_APP_PROBERS: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want the variable and %q", text, err, want)
		}
	}
}

func TestScrapeTargets(t *testing.T) {
	for text, want := range map[string][]Target{
		"":   nil,
		"{}": {{80, "/metrics"}},
		`{"scrape":"true","path":"/m","port":"9102"}`: {{9102, "/m"}},
		`{"scrape":"","path":"m?a=b","port":""}`:      {{80, "/m?a=b"}},
		`{"scrape":"false","path":"/m","port":"1"}`:   nil,
		`{"scrape":"","path":"","port":"1","targets":[{"port":"8080","path":"/m"},{"port":"9090","path":""},{"port":"9090","path":"/metrics"}]}`: {{8080, "/m"}, {9090, "/metrics"}},
	} {
		s := build(t, func(in *testInput) { in.Env["ISTIO_PROMETHEUS_ANNOTATIONS"] = text })
		if diff := cmp.Diff(want, s.Status.Targets); diff != "" {
			t.Errorf("%s: -want +got:\n%s", text, diff)
		}
	}
	router := build(t, func(in *testInput) {
		in.Role, in.Env["ISTIO_PROMETHEUS_ANNOTATIONS"] = mesh.Router, `{"port":"1"}`
	})
	if len(router.Status.Targets) > 0 {
		t.Errorf("a router scrapes %v", router.Status.Targets)
	}
}

func TestInvalidScrapeTargets(t *testing.T) {
	for text, want := range map[string]string{
		"x":                              "parse JSON: ",
		`{"prot":"1"}`:                   `unknown field "prot"`,
		`{} 1`:                           "text after the object",
		`{"port":1}`:                     "parse JSON: ",
		`{"port":"0"}`:                   `key port: invalid port "0": want 1–65535`,
		`{"port":"web"}`:                 `key port: invalid port "web"`,
		`{"path":"/%"}`:                  `key path: invalid path "/%"`,
		`{"port":"15020"}`:               "port 15020 is the proxy's own",
		`{"targets":[{"port":"15090"}]}`: "port 15090 is the proxy's own",
		`{"targets":[` + strings.Repeat(`{"port":"1"},`, maxTargets) + `{"port":"1"}]}`: "33 targets: want at most 32",
	} {
		_, err := Build(pod(func(in *testInput) { in.Env["ISTIO_PROMETHEUS_ANNOTATIONS"] = text }))
		if err == nil || !strings.HasPrefix(err.Error(), "environment ISTIO_PROMETHEUS_ANNOTATIONS: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want the variable and %q", text, err, want)
		}
	}
	_, err := Build(pod(func(in *testInput) {
		in.Flags, in.Env["ISTIO_PROMETHEUS_ANNOTATIONS"] = map[string]string{}, `{"port":"16020"}`
		in.Env["PROXY_CONFIG"] = "statusPort: 16020"
	}))
	if err == nil || !strings.Contains(err.Error(), "port 16020 is the proxy's own") {
		t.Errorf("the agent's own port: %v", err)
	}
}
