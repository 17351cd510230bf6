package main

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// injected is a container that Istio's injection has written.
type injected struct {
	Case string
	Args []string
	Env  map[string]string
}

// ofUsers are arguments and variables of the cases that users wrote, who customized the proxy's container.
var ofUsers = []string{"--custom", "FOO", "MY_ENV"}

// What Istio's injection writes is accepted: each flag and each variable is known, none is without effect, and a bootstrap follows.
func TestWhatIstioInjectsIsAccepted(t *testing.T) {
	text, err := os.ReadFile("testdata/injected.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []injected
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	commands := map[string]int{}
	for _, c := range cases {
		commands[c.Args[0]]++
		t.Run(c.Case, func(t *testing.T) {
			if c.Args[0] == "istio-iptables" {
				// What only the machine decides is left out.
				args := slices.DeleteFunc(slices.Clone(c.Args[1:]), func(a string) bool {
					return strings.HasPrefix(a, "--log_") || a == "--run-validation" || a == "--skip-rule-apply"
				})
				if out, err := runIptables(t, c.Env, append(args, "--dry-run")...); err != nil || strings.Contains(out, "has no effect") {
					t.Errorf("%q: %v\n%s", c.Args, err, out)
				}
				return
			}
			checkInjectedProxy(t, c)
		})
	}
	if commands["proxy"] == 0 || commands["istio-iptables"] == 0 {
		t.Errorf("commands %v", commands)
	}
}

func checkInjectedProxy(t *testing.T, c injected) {
	t.Helper()
	args := slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool { return slices.Contains(ofUsers, a) })
	root := newRoot(process{env: c.Env})
	command, rest, err := root.Find(args)
	if err != nil || command.Name() != "proxy" {
		t.Fatalf("%q: command %v, %v", args, command.Name(), err)
	}
	command.FParseErrWhitelist.UnknownFlags = false // pilot-agent accepts them, but these must have an effect
	if err := command.ParseFlags(rest); err != nil {
		t.Fatal(err)
	}
	for name := range c.Env {
		if !slices.Contains(ofUsers, name) && !knows(name) {
			t.Errorf("no setting has the variable %s", name)
		}
	}
	s, err := spec.Build(spec.Input{
		Role: mesh.Role(command.Flags().Arg(0)), Flags: cli.Given(command.Flags()), Env: c.Env,
		Host: spec.Host{Interfaces: []spec.Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}}},
		ReadFile: func(path string) ([]byte, error) {
			if path == c.Env["ISTIO_BOOTSTRAP_OVERRIDE"] {
				return []byte("{}"), nil
			}
			return nil, os.ErrNotExist
		},
	})
	if err != nil {
		t.Fatalf("%q %v: %v", c.Args, c.Env, err)
	}
	b, err := bootstrap.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	warnings := slices.Concat(s.Warnings, b.Warnings)
	if s.STS.Port != 0 {
		// Istio passes the port on without a service behind it; here there is one, which needs a plugin.
		warnings = slices.DeleteFunc(warnings, func(w string) bool { return strings.HasPrefix(w, "the token service") })
	}
	if len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
}

// knows reports whether a setting of pilot-agent proxy has a variable.
func knows(name string) bool {
	for _, table := range []settings.Table{settings.AgentProxy, settings.AgentLog} {
		for i := range table {
			for _, e := range table[i].Env {
				if prefix, all := strings.CutSuffix(e, "*"); e == name || all && strings.HasPrefix(name, prefix) {
					return true
				}
			}
		}
	}
	return false
}
