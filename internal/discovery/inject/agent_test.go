package inject_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// noAgentEffect are the variables that are injected and do nothing in our agent, with the reason.
var noAgentEffect = map[string]string{
	"ENVOY_SECURE_MERGED_METRICS_PORT": "proxyMetadata of a user",
}

// ofUsers are variables and arguments of the cases that their users wrote.
var ofUsers = []string{"FOO", "MY_ENV", "--custom"}

// TestTheAgentTakesWhatIsInjected parses all injected command lines and variables as the agent does.
func TestTheAgentTakesWhatIsInjected(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range cases(t) {
		t.Run(tt.name, func(t *testing.T) {
			out, _, err := tt.config.Documents(tt.input, inject.Request{})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range yamltree.Parse(out, false) {
				for _, c := range proxyContainers(t, d.Root) {
					checkContainer(t, &c, seen)
				}
			}
		})
	}
	for _, command := range []string{"proxy", "istio-iptables", "wait", "request"} {
		if !seen[command] {
			t.Errorf("no case has pilot-agent %s", command)
		}
	}
}

// proxyContainers are the injected containers of an object that run the agent.
func proxyContainers(t *testing.T, object *yamltree.Tree) []corev1.Container {
	t.Helper()
	template := object
	for _, path := range [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}} {
		at := object
		for _, field := range path {
			at = at.Get(field)
		}
		if at != nil {
			template = at
		}
	}
	pod := &corev1.Pod{}
	if f := yamltree.Into(template, "", pod); f != nil {
		t.Fatal(f)
	}
	return slices.DeleteFunc(append(pod.Spec.InitContainers, pod.Spec.Containers...), func(c corev1.Container) bool {
		return !slices.Contains([]string{"istio-proxy", "istio-init", "istio-validation"}, c.Name)
	})
}

func checkContainer(t *testing.T, c *corev1.Container, seen map[string]bool) {
	t.Helper()
	env := map[string]string{}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			env[e.Name] = e.Value
		case e.ValueFrom.ResourceFieldRef != nil:
			env[e.Name] = "2"
		default:
			env[e.Name] = "10.0.0.1"
		}
	}
	tables := checkCommand(t, c.Args, env, seen)
	for name := range env {
		effect, known := knowsVariable(tables, name)
		switch {
		case slices.Contains(ofUsers, name), strings.HasPrefix(name, "ISTIO_META_"): // node metadata
		case !known && noAgentEffect[name] == "":
			t.Errorf("container %s: the agent does not know the variable %s", c.Name, name)
		case known && !effect && noAgentEffect[name] == "":
			t.Errorf("container %s: the variable %s has no effect in the agent", c.Name, name)
		}
	}
	if l := c.Lifecycle; l != nil {
		for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
			if h != nil && h.Exec != nil && h.Exec.Command[0] == "pilot-agent" {
				checkCommand(t, h.Exec.Command[1:], nil, seen)
			}
		}
	}
}

// checkCommand parses the arguments of pilot-agent, and returns the tables of the command.
func checkCommand(t *testing.T, args []string, env map[string]string, seen map[string]bool) []settings.Table {
	t.Helper()
	var tables []settings.Table
	for _, c := range settings.Commands() {
		if c.Path == "pilot-agent "+args[0] {
			tables = append(slices.Clone(c.Tables), c.Shared...)
		}
	}
	if tables == nil {
		t.Fatalf("pilot-agent has no command %q", args[0])
	}
	seen[args[0]] = true
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	for _, table := range tables {
		cli.Flags(flags, table)
	}
	args = slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return slices.Contains(ofUsers, a) })
	if err := flags.Parse(args); err != nil {
		t.Errorf("pilot-agent %q: %v", args, err)
	}
	if err := cli.Read(flags, env, tables...).Err(); err != nil {
		t.Errorf("pilot-agent %q: %v", args, err)
	}
	for name := range cli.Given(flags) {
		for _, table := range tables {
			for i := range table {
				if s := &table[i]; s.Flag == name && s.NoEffect != "" {
					t.Logf("flag --%s: %s", name, s.NoEffect)
				}
			}
		}
	}
	return tables
}

// knowsVariable reports whether a command reads a variable, and whether that has an effect.
func knowsVariable(tables []settings.Table, name string) (effect, known bool) {
	for _, table := range tables {
		for i := range table {
			for _, e := range table[i].Env {
				if prefix, all := strings.CutSuffix(e, "*"); e == name || all && strings.HasPrefix(name, prefix) {
					known = true
					effect = effect || table[i].NoEffect == ""
				}
			}
		}
	}
	return effect, known
}
