package demo

import (
	"context"
	"strings"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// local is a mesh whose Pods are network namespaces of this machine, without Kubernetes.
type local struct{ *meshup.Mesh }

// OnThisMachine returns the function for Options.Start that runs the mesh without Kubernetes: pilot-discovery watches
// the directory of YAML, and its Pods are network namespaces.
func OnThisMachine(programs meshup.Programs, token meshup.IssueToken) func(context.Context, Site) (Mesh, error) {
	return func(ctx context.Context, s Site) (Mesh, error) {
		s.Line("starting pilot-discovery, and for each Pod its namespaces, capture rules, agent, Envoy and app")
		m, err := meshup.Start(ctx, meshup.Options{
			Programs: programs, ConfigDir: s.ConfigDir, WorkDir: s.WorkDir, Token: token, Log: s.Log,
			ProxyConfig: meshup.CountFailures,
		})
		if err != nil {
			return nil, err
		}
		return local{m}, nil
	}
}

// Pods implements Mesh.
func (l local) Pods() []Pod {
	var all []Pod
	for _, p := range l.Mesh.Pods() {
		name := p.Spec.Name
		all = append(all, Pod{
			Inspector: p.Inspector, Workload: name[:max(0, strings.LastIndexByte(name, '-'))], Proxied: p.Spec.Proxied(), IP: p.Spec.IP,
		})
	}
	return all
}

// Discovery implements Mesh.
func (l local) Discovery(context.Context) ([]meshup.Dialer, error) {
	return []meshup.Dialer{l.Net.Host()}, nil
}

// Applied implements Mesh: pilot-discovery watches the directory.
func (l local) Applied(context.Context, string) error { return nil }

// KillDiscovery implements Mesh.
func (l local) KillDiscovery(context.Context) error { return l.Mesh.KillDiscovery() }

// StartDiscovery implements Mesh.
func (l local) StartDiscovery(ctx context.Context) error { return l.Mesh.StartDiscovery(ctx) }

// Hints implements Mesh.
func (l local) Hints() []string { return nil }
