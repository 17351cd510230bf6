package spec

import (
	"reflect"
	"strings"
	"testing"
)

func TestRunAs(t *testing.T) {
	in := RunAsInput{ServesDNS: true, DNSAddress: "127.0.0.1:53", UID: 1337, GID: 1338, Capabilities: 1<<41 - 1}
	for _, tt := range []struct {
		name   string
		change func(*RunAsInput)
		want   *EnvoyUser
		err    string
	}{
		{"root with DNS on :53", func(*RunAsInput) {}, &EnvoyUser{1337, 1338, true}, ""},
		{"of TPROXY", func(in *RunAsInput) { in.TPROXY = true }, nil, ""},
		{"of TPROXY without capabilities", func(in *RunAsInput) { in.TPROXY, in.Capabilities = true, 0 }, nil, ""},
		{"on another port", func(in *RunAsInput) { in.DNSAddress = "localhost:15053" }, nil, ""},
		{"on a port that ends in 53", func(in *RunAsInput) { in.DNSAddress = "localhost:5353" }, nil, ""},
		{"on IPv6", func(in *RunAsInput) { in.DNSAddress = "[::1]:53" }, &EnvoyUser{1337, 1338, true}, ""},
		{"not served", func(in *RunAsInput) { in.ServesDNS = false }, nil, ""},
		{"not root", func(in *RunAsInput) { in.AgentUID = 1337 }, nil, ""},
		{"the proxy's user is root", func(in *RunAsInput) { in.UID = 0 }, nil, ""},
		{"without CAP_NET_BIND_SERVICE", func(in *RunAsInput) { in.Capabilities &^= 1 << 10 }, &EnvoyUser{1337, 1338, false}, ""},
		{"without CAP_SETGID and CAP_KILL", func(in *RunAsInput) { in.Capabilities &^= 1<<5 | 1<<6 }, nil, "lacks CAP_SETGID, CAP_KILL: add"},
	} {
		i := in
		tt.change(&i)
		got, err := RunAs(i)
		if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func TestTPROXYFromEverySetting(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*testInput)
		want   bool
	}{
		"nowhere":            {func(*testInput) {}, true},
		"another mode":       {func(in *testInput) { in.Env["ISTIO_META_INTERCEPTION_MODE"] = "REDIRECT" }, true},
		"metadata":           {func(in *testInput) { in.Env["ISTIO_META_INTERCEPTION_MODE"] = "tproxy" }, false},
		"environment":        {func(in *testInput) { in.Env["INBOUND_INTERCEPTION_MODE"] = "TPROXY" }, false},
		"annotation":         {func(in *testInput) { in.Annotations = []byte(`sidecar.istio.io/interceptionMode="TPROXY"`) }, false},
		"configuration":      {func(in *testInput) { in.Env["PROXY_CONFIG"] = "interceptionMode: TPROXY" }, false},
		"rules of the agent": {func(in *testInput) { in.Capture.TPROXY = true }, false},
	} {
		s := build(t, func(in *testInput) {
			in.Env["ISTIO_META_DNS_CAPTURE"], in.Env["DNS_PROXY_ADDR"] = "true", "localhost:53"
			in.Host.Capabilities = 1<<41 - 1
			tt.change(in)
		})
		if got := s.Envoy.RunAs != nil; got != tt.want {
			t.Errorf("%s: runs as another user: %v, want %v", name, got, tt.want)
		}
	}
}
