package status

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// healthy returns the facts of a proxy that is ready.
func healthy() Facts {
	return Facts{
		Envoy:       Envoy{Running: true, Live: true, Left: 10},
		Admin:       Admin{CDS: Updates{Success: 1}, LDS: Updates{Success: 1}, Live: true, Workers: true},
		Certificate: Certificate{Wanted: true, Present: true, NotAfter: noon.Add(time.Hour)},
		Upstream:    Upstream{Wanted: true, Connected: true},
	}
}

func TestReady(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Facts)
		want string // the reason; "" is ready
	}{
		{"healthy", func(*Facts) {}, ""},
		{"not started", func(f *Facts) { f.Envoy, f.Admin = Envoy{}, Admin{} }, "Envoy has not been started yet"},
		{"crashed", func(f *Facts) {
			f.Envoy, f.Admin = Envoy{LastExit: "exited with code 1", Restarts: 2, Left: 8}, Admin{}
		}, "Envoy exited with code 1 and is about to be restarted (2 restarts so far, 8 left)"},
		{"shutting down", func(f *Facts) { f.Envoy.Draining, f.Envoy.Ending = true, true }, "the proxy is draining and about to end"},
		{"draining", func(f *Facts) { f.Envoy.Draining = true }, ""},
		{"no certificate", func(f *Facts) { f.Certificate = Certificate{Wanted: true, Problem: "sign: permission denied"} }, "there is no workload certificate yet: sign: permission denied"},
		{"no certificate wanted", func(f *Facts) { f.Certificate = Certificate{} }, ""},
		{"expired certificate", func(f *Facts) { f.Certificate.NotAfter = noon }, "the workload certificate expired at 2026-11-21T12:00:00Z"},
		{"late renewal", func(f *Facts) { f.Certificate.Problem = "CA unreachable" }, ""},
		{"starting, not connected", func(f *Facts) {
			f.Envoy.Live, f.Admin, f.Upstream = false, Admin{}, Upstream{Wanted: true, Problem: "lookup istiod: no such host"}
		}, "Envoy waits for its configuration: discovery is not connected: lookup istiod: no such host"},
		{"starting, admin not yet open", func(f *Facts) { f.Envoy.Live, f.Admin = false, Admin{Problem: "connection refused"} }, "Envoy is initialising"},
		{"starting, no listeners", func(f *Facts) { f.Envoy.Live, f.Admin = false, Admin{CDS: Updates{Success: 1}} }, "Envoy is initialising: Envoy has clusters from discovery, but no listeners yet"},
		{"starting from a file", func(f *Facts) { f.Envoy.Live, f.Admin, f.Upstream = false, Admin{}, Upstream{} }, "Envoy is initialising"},
		{"live, not reported yet", func(f *Facts) { f.Envoy.Live = false }, ""},
		{"no response", func(f *Facts) { f.Admin = Admin{Problem: "deadline exceeded"} }, "Envoy does not answer: deadline exceeded"},
		{"not connected, but configured", func(f *Facts) { f.Upstream.Connected = false }, ""},
		{"one update rejected", func(f *Facts) { f.Admin.LDS.Rejected = 1 }, ""},
		{"live, no updates", func(f *Facts) { f.Admin.CDS, f.Admin.LDS = Updates{}, Updates{} }, "no configuration has come from discovery yet"},
		{"live, no updates, not connected", func(f *Facts) { f.Admin.CDS, f.Admin.LDS, f.Upstream.Connected = Updates{}, Updates{}, false }, "no configuration has come from discovery, which is not connected"},
		{"clusters rejected", func(f *Facts) { f.Admin.CDS = Updates{Rejected: 3} }, "Envoy rejected the clusters that discovery sent (3 times)"},
		{"listeners rejected", func(f *Facts) { f.Admin.LDS = Updates{Rejected: 1} }, "Envoy rejected the listeners that discovery sent (1 times)"},
		{"no clusters", func(f *Facts) { f.Admin.CDS = Updates{} }, "Envoy has listeners from discovery, but no clusters yet"},
		{"no workers", func(f *Facts) { f.Admin.Workers = false }, "Envoy has not started its workers yet"},
		{"draining by itself", func(f *Facts) { f.Admin.Live = false }, "Envoy is initialising"},
		{"without Envoy", func(f *Facts) {
			f.Envoy, f.Admin, f.Upstream, f.Proxyless = Envoy{}, Admin{}, Upstream{Wanted: true}, &Proxyless{}
		}, ""},
		{"without Envoy and files", func(f *Facts) {
			f.Envoy, f.Admin, f.Proxyless = Envoy{}, Admin{}, &Proxyless{Problem: "a file is missing"}
		}, "a file is missing"},
		{"without Envoy and certificate", func(f *Facts) {
			f.Envoy, f.Certificate, f.Proxyless = Envoy{}, Certificate{Wanted: true}, &Proxyless{Problem: "a file is missing"}
		}, "there is no workload certificate yet"},
		{"without Envoy, ending", func(f *Facts) { f.Envoy, f.Proxyless = Envoy{Draining: true, Ending: true}, &Proxyless{} }, "the proxy is draining and about to end"},
		{"from a file", func(f *Facts) { f.Upstream, f.Admin.CDS, f.Admin.LDS = Upstream{}, Updates{}, Updates{} }, ""},
	} {
		f := healthy()
		c.edit(&f)
		if got := Ready(f, noon); got.Reason != c.want || got.Ready != (c.want == "") {
			t.Errorf("%s: got %+v, want %q", c.name, got, c.want)
		}
	}
}

func TestReasonsAreOneLine(t *testing.T) {
	f := healthy()
	f.Envoy, f.Admin = Envoy{}, Admin{}
	if r := Ready(f, noon).Reason; strings.HasSuffix(r, ".") || strings.Contains(r, "\n") {
		t.Errorf("got %q", r)
	}
}

func TestWithoutPaths(t *testing.T) {
	for text, want := range map[string]string{
		"Envoy has not been started yet":                                        "Envoy has not been started yet",
		"open /etc/certs/key.pem: no such file":                                 "open (path): no such file",
		`open "./etc/certs/key.pem": no such file`:                              `open "(path)": no such file`,
		"read var/run/secrets/x/key: is a directory":                            "read (path): is a directory",
		"read certs/key.pem":                                                    "read (path)",
		"file-cert:/a/c.pem~/a/k.pem (cluster outbound|443||x): empty":          "file-cert:(path)~(path) (cluster outbound|443||x): empty",
		"/etc/certs,/etc/more; (/etc/other)":                                    "(path),(path); ((path))",
		"dial tcp 10.0.0.1:15012: i/o timeout":                                  "dial tcp 10.0.0.1:15012: i/o timeout",
		"invalid identity spiffe://cluster.local/ns/a/sa/b: see https://x/y.z ": "invalid identity spiffe://cluster.local/ns/a/sa/b: see https://x/y.z ",
		"dial unix:///var/run/secrets/socket and unix /var/run/secrets/s: busy": "dial (path) and unix (path): busy",
	} {
		if got := withoutPaths(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Readiness waits for the names of the mesh, but not for ever: a control plane may never send any.
func TestReadyWaitsForNames(t *testing.T) {
	for _, c := range []struct {
		name  string
		names Names
		ready bool
	}{
		{"not wanted", Names{}, true},
		{"present", Names{Wanted: true, Present: true}, true},
		{"not connected", Names{Wanted: true}, false},
		{"asked a moment ago", Names{Wanted: true, Asked: noon.Add(-namesLimit)}, false},
		{"never sent", Names{Wanted: true, Asked: noon.Add(-namesLimit - 1)}, true},
	} {
		if reason := c.names.reason(noon); (reason == "") != c.ready {
			t.Errorf("%s: %q", c.name, reason)
		}
	}
}
