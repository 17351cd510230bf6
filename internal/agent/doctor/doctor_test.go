package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// healthy is a machine on which all is well.
func healthy() *Facts {
	return &Facts{
		Now: now, Running: true, Version: "v2",
		Agent:        Agent{PID: 7, Version: "v2", Ready: true, Wanted: true, Certificate: now.Add(20 * time.Hour), Connected: true},
		Settings:     finding.Of(Settings{From: "those of process 7"}, nil),
		Capabilities: 1 << netAdmin, Kernel: Kernel{Release: "Linux 6.1"}, OpenFiles: 1 << 20,
		Ports:   finding.Of([]Port{{Number: 15000, Use: "admin", Held: true, Own: true, By: "envoy (pid 8)"}, {Number: 15053, Use: "DNS"}}, nil),
		Names:   []Name{{Name: "istiod.istio-system.svc", Addresses: 2}},
		Token:   &Token{Source: "./token", JWT: true, Audiences: []string{"istio-ca"}, Issued: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)},
		Roots:   []Root{{Use: "discovery", File: "./root-cert.pem", NotAfter: now.Add(9000 * time.Hour)}},
		Servers: []Server{{Name: "discovery", Address: "istiod.istio-system.svc:15012", NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}},
		Clock:   finding.Clock{Sent: now, Received: now.Add(time.Second), Date: now},
		Memory:  1 << 30, CPUs: 2,
		Envoy:   finding.Of("1.40.0", nil),
		Capture: Capture{Arguments: "-b '*'", Watched: true, Backend: "nftables", Differences: finding.Of[[]string](nil, nil)},
	}
}

func TestNothingIsWrong(t *testing.T) {
	for _, r := range Run(healthy()) {
		if r.Result != finding.OK || r.Found == "" || r.Why == "" {
			t.Errorf("%+v", r)
		}
	}
}

// Each thing that can be wrong changes the result of its check, and of no other.
func TestEachFaultIsFound(t *testing.T) {
	unknown := finding.Known[[]string]{Err: "operation not permitted", Asked: true}
	for name, tt := range map[string]struct {
		change func(*Facts)
		check  string
		want   finding.Result
		found  string
	}{
		"not ready":         {func(f *Facts) { f.Agent.Ready, f.Agent.Reason = false, "no certificate" }, "agent", finding.Failed, "not ready: no certificate"},
		"not connected":     {func(f *Facts) { f.Agent.Connected, f.Agent.Upstream = false, "refused" }, "agent", finding.Failed, "not connected to discovery: refused"},
		"setting":           {func(f *Facts) { f.Settings = finding.Known[Settings]{Err: "invalid port", Asked: true} }, "settings", finding.Failed, "invalid port"},
		"warnings":          {func(f *Facts) { f.Settings.Value.Warnings = []string{"A has no effect", "B"} }, "settings", finding.Warning, "A has no effect (and 1 more"},
		"not the agent's":   {func(f *Facts) { f.Settings.Value.Unread = "permission denied" }, "settings", finding.Warning, "since those of the agent cannot be read: permission denied"},
		"kernel":            {func(f *Facts) { f.Kernel.Problems = []string{"inotify: no"} }, "kernel", finding.Failed, "inotify: no"},
		"capability":        {func(f *Facts) { f.Capabilities = 0 }, "capabilities", finding.Failed, "--watchCapture"},
		"files":             {func(f *Facts) { f.OpenFiles = 1024 }, "open files", finding.Warning, "1024"},
		"port":              {func(f *Facts) { p := &f.Ports.Value[1]; p.Held, p.By = true, "dnsmasq (pid 3)" }, "ports", finding.Failed, "port 15053 (DNS) belongs to dnsmasq (pid 3)"},
		"ports unknown":     {func(f *Facts) { f.Ports = finding.Known[[]Port]{Err: "denied", Asked: true} }, "ports", finding.Unknown, "denied"},
		"killed":            {func(f *Facts) { f.Killed = 2 }, "resources", finding.Warning, "memory 1024 MiB, 2 CPUs; processes killed because memory ran out: 2"},
		"memory":            {func(f *Facts) { f.Memory = 32 << 20 }, "resources", finding.Warning, "32 MiB"},
		"clock far ahead":   {func(f *Facts) { f.Clock.Date = now.Add(-10 * time.Minute) }, "clock", finding.Failed, "behind this machine"},
		"clock behind":      {func(f *Facts) { f.Token.Issued = now.Add(time.Hour) }, "clock", finding.Failed, "behind by at least 1h0m0s: the token was issued at 2026-11-22T13:00:00Z"},
		"clock not known":   {func(f *Facts) { f.Clock = finding.Clock{Err: "refused"} }, "clock", finding.Warning, "refused"},
		"name":              {func(f *Facts) { f.Names[0].Err = "no such host" }, "names", finding.Failed, "istiod.istio-system.svc: no such host"},
		"root missing":      {func(f *Facts) { f.Roots[0].Err = "no such file" }, "roots", finding.Failed, "discovery: no such file"},
		"root ended":        {func(f *Facts) { f.Roots[0].NotAfter = now }, "roots", finding.Failed, "ended"},
		"root ends":         {func(f *Facts) { f.Roots[0].NotAfter = now.Add(24 * time.Hour) }, "roots", finding.Warning, "ends at"},
		"token missing":     {func(f *Facts) { f.Token.Err = "no such file"; f.Running = false }, "token", finding.Failed, "no such file"},
		"token not needed":  {func(f *Facts) { f.Token.Err = "no such file" }, "token", finding.Warning, "authenticates until 2026-11-23T08:00:00Z"},
		"token ended":       {func(f *Facts) { f.Token.NotAfter = now }, "token", finding.Failed, "ended at 2026-11-22T12:00:00Z"},
		"audience":          {func(f *Facts) { f.Token.Audiences = []string{"kubernetes"} }, "token", finding.Failed, "is for kubernetes: want the audience istio-ca"},
		"not a JWT":         {func(f *Facts) { f.Token.JWT = false }, "token", finding.Failed, "not a JWT"},
		"server":            {func(f *Facts) { f.Servers[0].Err = "signed by unknown authority" }, "servers", finding.Failed, "signed by unknown authority"},
		"plaintext":         {func(f *Facts) { f.Servers[0].Plaintext = true }, "servers", finding.Warning, "plaintext"},
		"certificate":       {func(f *Facts) { f.Agent.Certificate = time.Time{} }, "certificate", finding.Failed, "none is held"},
		"certificate ended": {func(f *Facts) { f.Agent.Certificate, f.Agent.Problem = now, "refused" }, "certificate", finding.Failed, "ended at 2026-11-22T12:00:00Z: refused"},
		"not renewed":       {func(f *Facts) { f.Agent.Problem = "refused" }, "certificate", finding.Warning, "not renewed: refused"},
		"drift":             {func(f *Facts) { f.Capture.Differences.Value = []string{"the table is missing"} }, "capture", finding.Failed, "nftables: the table is missing"},
		"drift unknown":     {func(f *Facts) { f.Capture.Differences = unknown }, "capture", finding.Unknown, "not permitted"},
		"no rules":          {func(f *Facts) { f.Capture = Capture{} }, "capture", finding.Warning, "not compared"},
		"no Envoy":          {func(f *Facts) { f.Envoy = finding.Known[string]{Err: "find Envoy", Asked: true} }, "versions", finding.Failed, "find Envoy"},
		"another version":   {func(f *Facts) { f.Agent.Version = "v1" }, "versions", finding.Warning, "the agent that runs is v1, this is v2"},
	} {
		f := healthy()
		tt.change(f)
		for _, r := range Run(f) {
			switch {
			case r.Name != tt.check && r.Result != finding.OK && !(r.Name == "certificate" && name == "token missing") && !(r.Name == "agent" && name == "token missing"):
				t.Errorf("%s: %s is %v: %s", name, r.Name, r.Result, r.Found)
			case r.Name == tt.check && (r.Result != tt.want || !strings.Contains(r.Found, tt.found)):
				t.Errorf("%s: %s is %v, want %v: %q, want %q", name, r.Name, r.Result, tt.want, r.Found, tt.found)
			}
		}
	}
}

// What nobody has found out is no success, except where nothing needs it.
func TestNothingIsKnown(t *testing.T) {
	for _, r := range Run(&Facts{Now: now}) {
		switch r.Name {
		case "settings", "ports", "versions":
			if r.Result < finding.Unknown {
				t.Errorf("%s is %v: %s", r.Name, r.Result, r.Found)
			}
		}
	}
}
