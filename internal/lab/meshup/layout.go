package meshup

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// PodSpec is the specification of a Pod in the directory.
type PodSpec struct {
	Namespace, Name string
	ServiceAccount  string
	Labels          map[string]string
	IP              netip.Addr
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

// service is what is needed of a Service to write /etc/hosts.
type service struct {
	Namespace, Name string
	ClusterIP       netip.Addr // the zero Addr if it has none
	Selector        map[string]string
}

// layout is what is needed of a directory to start the mesh.
type layout struct {
	pods     []PodSpec
	services []service
}

// document is the part of a Kubernetes object that is read here.
type document struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name        string            `yaml:"name"`
		Namespace   string            `yaml:"namespace"`
		Labels      map[string]string `yaml:"labels"`
		Annotations map[string]string `yaml:"annotations"`
	} `yaml:"metadata"`
	Spec   yaml.Node `yaml:"spec"`
	Status struct {
		PodIP string `yaml:"podIP"`
	} `yaml:"status"`
}

type podBody struct {
	ServiceAccountName string `yaml:"serviceAccountName"`
	Containers         []struct {
		Args []string `yaml:"args"`
	} `yaml:"containers"`
}

type serviceBody struct {
	ClusterIP string            `yaml:"clusterIP"`
	Selector  map[string]string `yaml:"selector"`
}

// readLayout reads the Pods and Services of all *.yaml files below dir.
func readLayout(dir string) (layout, error) {
	var l layout
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return l, fmt.Errorf("list %s: %w", dir, err)
	}
	if len(files) == 0 {
		return l, fmt.Errorf("read the mesh's directory: no *.yaml files in %s", dir)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return l, fmt.Errorf("read the mesh's directory: %w", err)
		}
		err = l.read(f)
		_ = f.Close()
		if err != nil {
			return l, fmt.Errorf("read %s: %w", file, err)
		}
	}
	if len(l.pods) == 0 {
		return l, fmt.Errorf("read the mesh's directory: no Pods in %s", dir)
	}
	return l, nil
}

func (l *layout) read(r io.Reader) error {
	dec := yaml.NewDecoder(r)
	for {
		var d document
		err := dec.Decode(&d)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch d.Kind {
		case "Pod":
			err = l.addPod(d)
		case "Service":
			err = l.addService(d)
		}
		if err != nil {
			return fmt.Errorf("%s %s/%s: %w", d.Kind, d.Metadata.Namespace, d.Metadata.Name, err)
		}
	}
}

func (l *layout) addPod(d document) error {
	var body podBody
	if err := d.Spec.Decode(&body); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	ip, err := netip.ParseAddr(d.Status.PodIP)
	if err != nil {
		return fmt.Errorf("status.podIP: %w", err)
	}
	p := PodSpec{
		Namespace: d.Metadata.Namespace, Name: d.Metadata.Name, Labels: d.Metadata.Labels,
		ServiceAccount: body.ServiceAccountName, IP: ip, Template: d.Metadata.Annotations["inject.istio.io/templates"],
	}
	if p.ServiceAccount == "" {
		p.ServiceAccount = "default"
	}
	if len(body.Containers) > 0 {
		p.Args = body.Containers[0].Args
	}
	l.pods = append(l.pods, p)
	return nil
}

func (l *layout) addService(d document) error {
	var body serviceBody
	if err := d.Spec.Decode(&body); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	s := service{Namespace: d.Metadata.Namespace, Name: d.Metadata.Name, Selector: body.Selector}
	if ip := body.ClusterIP; ip != "" && ip != "None" {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			return fmt.Errorf("spec.clusterIP: %w", err)
		}
		s.ClusterIP = a
	}
	l.services = append(l.services, s)
	return nil
}

// hosts are the host names of a Pod. With a sidecar, the address of a name is the virtual address of the
// Service, which the sidecar captures. Without one it is the first Pod of the Service, as with the load
// balancer of a node.
func (l *layout) hosts(p PodSpec, domain string) map[string]netip.Addr {
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
		for _, name := range []string{full, full + ".svc", full + ".svc." + domain} {
			out[name] = ip
		}
		if s.Namespace == p.Namespace {
			out[s.Name] = ip
		}
	}
	return out
}

func (l *layout) firstPod(s service) netip.Addr {
	i := slices.IndexFunc(l.pods, func(p PodSpec) bool {
		if p.Namespace != s.Namespace || len(s.Selector) == 0 {
			return false
		}
		for k, v := range s.Selector {
			if p.Labels[k] != v {
				return false
			}
		}
		return true
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
