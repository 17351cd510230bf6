package meshup

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// PodSpec is the specification of a Pod in the directory.
type PodSpec struct {
	Namespace, Name string
	ServiceAccount  string
	Labels          map[string]string
	IP              netip.Addr
	// Workload is the name of what the Pod was made of.
	Workload string
	// Programs are what it runs; without any it runs the sample app, if it has Args.
	Programs []Program
	// Args are those of the first container, for the sample app.
	Args []string
	// Template is the annotation of the template by which the Pod gets its proxy; empty for the default one.
	Template string
}

// Key is "name.namespace", the name of the proxy in pilot-discovery.
func (p PodSpec) Key() string { return p.Name + "." + p.Namespace }

// Sidecar reports whether the Pod has a sidecar: its label tlsMode says that it accepts mutual TLS.
func (p PodSpec) Sidecar() bool { return p.Labels[mesh.TLSModeLabel] == "istio" && !p.Router() }

// Proxied reports whether the Pod has a proxy, a sidecar or that of a gateway.
func (p PodSpec) Proxied() bool { return p.Sidecar() || p.Router() }

// role is the role of the Pod's proxy.
func (p PodSpec) role() mesh.Role {
	if p.Router() {
		return mesh.Router
	}
	return mesh.Sidecar
}

// Router reports whether the Pod is a gateway: it has a proxy of its own, which captures nothing, and no app.
func (p PodSpec) Router() bool { return p.Template == "gateway" }

// Proxyless reports whether the Pod has an agent without an Envoy: its application's gRPC library is the proxy.
func (p PodSpec) Proxyless() bool { return p.Template == "grpc-agent" }

// layout is what is needed of a directory to start the mesh.
type layout struct {
	pods     []PodSpec
	services []podplan.Service
}

// readLayout reads the Pods and Services of all *.yaml files below dir, which has them as a cluster reports them.
func readLayout(dir string) (layout, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return layout{}, fmt.Errorf("list %s: %w", dir, err)
	}
	if len(paths) == 0 {
		return layout{}, fmt.Errorf("read the mesh's directory: no *.yaml files in %s", dir)
	}
	var files []podplan.File
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return layout{}, fmt.Errorf("read the mesh's directory: %w", err)
		}
		files = append(files, podplan.File{Name: filepath.Base(path), Text: text})
	}
	plan, err := podplan.Make(files, podplan.Options{AsWritten: true})
	if err != nil {
		return layout{}, fmt.Errorf("read the mesh's directory: %w", err)
	}
	for _, n := range plan.Notes {
		if n.Problem {
			return layout{}, fmt.Errorf("read %s: %s", dir, n)
		}
	}
	if len(plan.Pods) == 0 {
		return layout{}, fmt.Errorf("read the mesh's directory: no Pods in %s", dir)
	}
	return layoutOf(plan, nil), nil
}

// layoutOf is the layout of a plan. Programs has what its Pods run; without it they run the sample app.
func layoutOf(plan *podplan.Plan, programs func(podplan.Pod) []Program) layout {
	l := layout{services: plan.Services}
	for _, p := range plan.Pods {
		s := PodSpec{
			Namespace: p.Namespace, Name: p.Name, Workload: p.Workload, Labels: p.Labels, ServiceAccount: p.ServiceAccount, IP: p.IP, Template: p.Template,
		}
		switch {
		case programs != nil:
			s.Programs = programs(p)
		case len(p.Containers) > 0:
			s.Args = p.Containers[0].Args
		}
		l.pods = append(l.pods, s)
	}
	return l
}

// hosts are the host names of a Pod. With a sidecar, the address of a name is the virtual address of the
// Service, which the sidecar captures. Without one it is the first Pod of the Service, as with the load
// balancer of a node.
func (l *layout) hosts(p PodSpec) map[string]netip.Addr {
	out := map[string]netip.Addr{}
	for _, s := range l.services {
		ip := s.ClusterIP
		if !ip.IsValid() || !p.Sidecar() || p.Proxyless() {
			ip = l.firstPod(s)
		}
		if !ip.IsValid() {
			continue
		}
		full := s.Name + "." + s.Namespace
		for _, name := range []string{full, full + ".svc", full + ".svc." + Domain} {
			out[name] = ip
		}
		if s.Namespace == p.Namespace {
			out[s.Name] = ip
		}
	}
	return out
}

func (l *layout) firstPod(s podplan.Service) netip.Addr {
	i := slices.IndexFunc(l.pods, func(p PodSpec) bool {
		return s.Selects(podplan.Pod{Namespace: p.Namespace, Labels: p.Labels})
	})
	if i < 0 {
		return netip.Addr{}
	}
	return l.pods[i].IP
}

// app is the name of the app: the label app, or the name of the Pod up to the first dash.
func (p PodSpec) app() string {
	if a := p.Labels["app"]; a != "" {
		return a
	}
	name, _, _ := strings.Cut(p.Name, "-")
	return name
}

// metricsName is the name that metrics have for the workload, and pilot-discovery too: Workload is what people call the Pods of one directory.
func (p PodSpec) metricsName() string { return mesh.WorkloadName(p.Name, p.Labels) }
