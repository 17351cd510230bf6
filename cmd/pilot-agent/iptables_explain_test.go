package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

func TestExplainSaysWhichRuleDecides(t *testing.T) {
	all := []string{"explain", "-i", "*", "-b", "*", "-d", "15020", "-u", "1337"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--to", "10.96.0.10:80", "--uid", "1000"}, []string{"redirected to port 15001", "* counter jump istio-redirect"}},
		{[]string{"--to", "10.96.0.10:80", "--uid", "1337"}, []string{"It passes", "* meta skuid 1337 counter return"}},
		{[]string{"--to", "10.96.0.10:80", "--proxy-mark", "42", "--uid", "1337"}, []string{"redirected to port 15001"}},
		{[]string{"--from", "10.0.0.9:4000", "--to", "10.0.0.7:80", "--inbound"}, []string{"redirected to port 15006"}},
		{[]string{"--from", "10.0.0.9:4000", "--to", "10.0.0.7:15020", "--in-interface", "eth0"}, []string{"It passes", "* tcp dport 15020 counter return"}},
		{[]string{"--to", "10.0.0.7:80", "--inbound", "-m", "TPROXY"}, []string{"transparent listener at port 15006"}},
		{[]string{"--to", "10.0.0.7:80", "--inbound", "--state", "invalid", "--drop-invalid"}, []string{"It is dropped"}},
		{[]string{"--to", "8.8.8.8:53", "--proto", "udp", "--redirect-dns", "--capture-all-dns"}, []string{"port 15053", "zone 2"}},
		{[]string{"--to", "[::1]:80"}, []string{"It passes", "(not: meta nfproto ipv4)"}},
		{[]string{"--to", "10.96.0.10:80", "-m", "NONE"}, []string{"There are no rules"}},
	} {
		out, err := runIptables(t, nil, append(slices.Clone(all), c.args...)...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in\n%s", c.args, want, out)
			}
		}
	}
}

func TestExplainInJSON(t *testing.T) {
	out, err := runIptables(t, nil, "explain", "-i", "*", "--to", "10.96.0.10:80", "--from", "10.0.0.7:4000", "--out-interface", "eth0", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		plan.Verdict
		Packet   plan.Packet
		Sentence string
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	if v.Outcome != plan.Redirected || v.Port != 15001 || !v.Packet.Outbound || v.Packet.Interface != "eth0" || len(v.Steps) < 5 || v.Sentence == "" {
		t.Errorf("%+v", v)
	}
}

func TestExplainRefusesWithExitCode1(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "flag --to: required"},
		{"--to 10.0.0.1", "give an address and a port"},
		{"--to 10.0.0.1:80 --from [::1]:5", "different families"},
		{"--to 10.0.0.1:80 --proto icmp", "--proto"},
		{"--to 10.0.0.1:80 --state odd", "--state"},
		{"--to 10.0.0.1:80 --direction up", "--direction"},
		{"--to 10.0.0.1:80 --inbound --outbound", "one direction"},
		{"--to 10.0.0.1:80 --output xml", "--output"},
		{"--to 10.0.0.1:80 -p x", "--envoy-port"},
	} {
		_, err := runIptables(t, nil, append([]string{"explain"}, strings.Fields(c.args)...)...)
		var code coder
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &code) || code.ExitCode() != 1 {
			t.Errorf("%q: %v, want %q and exit code 1", c.args, err, c.want)
		}
	}
}

// FuzzIptables gives flags and environment any values: whatever they are, a plan or a sentence
// comes of them, and soon.
func FuzzIptables(f *testing.F) {
	for _, seed := range [][3]string{
		{"istio-inbound-ports", "*", "ISTIO_OUTBOUND_OWNER_GROUPS\x00java,7"}, {"istio-service-cidr", "10.0.0.0/8,::/0", "DNS_CAPTURE\x00x"},
		{"istio-exclude-interfaces", "eth0,\x00", "ISTIO_META_DNS_CAPTURE\x00true"}, {"proxy-cgroup", "/../x", "KUBE_VIRT_INTERFACES\x00tap0"},
		{"istio-inbound-interception-mode", "TPROXY", "INBOUND_TPROXY_MARK\x000x539"}, {"proxy-mark", "-1", "INBOUND_TPROXY_ROUTE_TABLE\x00254"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, value, variable string) {
		env := map[string]string{}
		if key, v, ok := strings.Cut(variable, "\x00"); ok && key != "DRY_RUN_FILE_PATH" && key != "NETWORK_NAMESPACE" {
			env[key] = v
		}
		if name == "network-namespace" || name == "help" {
			return
		}
		begin := time.Now()
		out, err := runIptables(t, env, "--native-nftables", "--"+name+"="+value, "--cleanup-only=false", "--dry-run=true")
		if err == nil && !strings.Contains(out, "PROXY_PORT=") {
			t.Errorf("neither a plan nor an error: %q", out)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s", took)
		}
	})
}
