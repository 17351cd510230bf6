package podplan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxReplicas bounds the Pods of one workload: each costs an Envoy.
const maxReplicas = 50

// workload is an object that Pods are made of.
type workload struct {
	source
	template podTemplate
	replicas int
	// fixed is the address of a Pod that says what a node has reported, which stays as it is written.
	fixed netip.Addr
	// written is set for such a Pod.
	written  bool
	injected bool
	// doc is the document that has it alone, in whose place its Pods stand; nil if there is none.
	doc *document
}

// podTemplate is the part of a Pod, or of a template, that is read.
type podTemplate struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		ServiceAccountName string            `json:"serviceAccountName"`
		HostNetwork        bool              `json:"hostNetwork"`
		RestartPolicy      string            `json:"restartPolicy"`
		InitContainers     []containerBody   `json:"initContainers"`
		Containers         []containerBody   `json:"containers"`
		Volumes            []json.RawMessage `json:"volumes"`
	} `json:"spec"`
	Status struct {
		PodIP string `json:"podIP"`
	} `json:"status"`
}

type containerBody struct {
	Name         string            `json:"name"`
	Image        string            `json:"image"`
	Command      []string          `json:"command"`
	Args         []string          `json:"args"`
	WorkingDir   string            `json:"workingDir"`
	Env          []variable        `json:"env"`
	EnvFrom      []envFrom         `json:"envFrom"`
	Ports        []portBody        `json:"ports"`
	VolumeMounts []json.RawMessage `json:"volumeMounts"`
}

type variable struct {
	Name      string     `json:"name"`
	Value     string     `json:"value"`
	ValueFrom *valueFrom `json:"valueFrom"`
}

type valueFrom struct {
	FieldRef struct {
		FieldPath string `json:"fieldPath"`
	} `json:"fieldRef"`
	ConfigMapKeyRef struct{ Name, Key string } `json:"configMapKeyRef"`
}

type envFrom struct {
	Prefix       string                `json:"prefix"`
	ConfigMapRef struct{ Name string } `json:"configMapRef"`
}

type portBody struct {
	Name          string `json:"name"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// gatewayTemplate is the injector's template of routers.
const gatewayTemplate = "gateway"

// readWorkload reads an object that Pods are made of.
func (m *maker) readWorkload(s source, text []byte, d *document) error {
	w := workload{source: s, replicas: 1}
	if s.kind == "Pod" {
		if err := json.Unmarshal(text, &w.template); err != nil {
			return fieldError(err)
		}
		if ip := w.template.Status.PodIP; ip != "" {
			addr, err := netip.ParseAddr(ip)
			if err != nil {
				return fmt.Errorf("status.podIP: %w", err)
			}
			w.fixed, w.written = addr, true
		} else if d != nil {
			d.dropped = true
		} else if !m.o.AsWritten {
			return errors.New("a Pod in a list or in JSON has no address: write it in a YAML document of its own")
		}
	} else {
		if d != nil {
			d.dropped = true // pilot-discovery has no use for it
		}
		var body struct {
			Spec struct {
				Replicas    *int        `json:"replicas"`
				Parallelism *int        `json:"parallelism"`
				Template    podTemplate `json:"template"`
				Selector    struct {
					MatchLabels map[string]string `json:"matchLabels"`
				} `json:"selector"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(text, &body); err != nil {
			return fieldError(err)
		}
		w.template = body.Spec.Template
		for _, k := range slices.Sorted(maps.Keys(body.Spec.Selector.MatchLabels)) {
			if want, has := body.Spec.Selector.MatchLabels[k], w.template.Metadata.Labels[k]; has != want {
				m.note(s, "spec.selector.matchLabels: the Pods of spec.template do not have the label %s: %s: a cluster refuses it", k, want)
			}
		}
		for _, n := range []*int{body.Spec.Replicas, body.Spec.Parallelism} {
			if n != nil {
				w.replicas = *n
			}
		}
		if w.replicas < 0 || w.replicas > maxReplicas {
			return fmt.Errorf("spec.replicas: %d Pods, want 0–%d on one machine", w.replicas, maxReplicas)
		}
	}
	if len(w.template.Spec.Containers) == 0 && !w.written {
		return errors.New("spec: no containers")
	}
	if d != nil && d.dropped {
		w.doc = d
	}
	m.noEffect(w)
	m.pending = append(m.pending, w)
	return nil
}

// noEffect notes what of a workload has no effect on one machine.
func (m *maker) noEffect(w workload) {
	var what []string
	if len(w.template.Spec.InitContainers) > 0 {
		what = append(what, "init containers are not run")
	}
	mounts := slices.ContainsFunc(w.template.Spec.Containers, func(c containerBody) bool { return len(c.VolumeMounts) > 0 })
	if len(w.template.Spec.Volumes) > 0 || mounts {
		what = append(what, "volumes are not mounted")
	}
	if w.template.Spec.HostNetwork {
		what = append(what, "hostNetwork: it gets a network of its own, and no proxy")
	}
	if names := w.injectorsOnly(); len(names) > 0 {
		what = append(what, "the injector's annotations are not applied: "+strings.Join(names, ", "))
	}
	if len(what) > 0 {
		m.note(w.source, "%s", strings.Join(what, "; "))
	}
}

// injectorsOnly are the annotations of the Pods that say how a cluster's injector is to make their proxies, in order. There are none of a
// Pod that a cluster has made.
func (w workload) injectorsOnly() (names []string) {
	if w.written {
		return nil
	}
	for name := range w.template.Metadata.Annotations {
		prefix, _, _ := strings.Cut(name, "/")
		switch prefix {
		case "sidecar.istio.io", "traffic.sidecar.istio.io", "status.sidecar.istio.io", "readiness.status.sidecar.istio.io", "proxy.istio.io", "inject.istio.io":
			if name != "sidecar.istio.io/inject" && name != "inject.istio.io/templates" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// pods are the Pods of a workload; those without an address get one later.
func (w workload) pods() []Pod {
	var out []Pod
	for i := range w.replicas {
		p := Pod{
			Namespace: w.meta.Namespace, Name: w.podName(i), Workload: w.meta.Name, ServiceAccount: w.template.Spec.ServiceAccountName,
			Labels: w.template.Metadata.Labels, IP: w.fixed, Template: w.template.Metadata.Annotations["inject.istio.io/templates"],
			Once: w.kind == "Job" || w.template.Spec.RestartPolicy == "Never", File: w.file, Line: w.line, written: w.written, doc: w.doc,
		}
		if p.ServiceAccount == "" {
			p.ServiceAccount = "default"
		}
		if w.kind == "Pod" {
			p.Workload = withoutNumber(p.Name)
		} else if p.Labels[mesh.WorkloadNameLabel] == "" {
			// No label that a controller gives says which Pods are of one workload.
			p.Labels = labelled(p.Labels, mesh.WorkloadNameLabel, w.meta.Name)
		}
		p.Router = p.Template == gatewayTemplate
		switch {
		case w.written:
			p.Sidecar = p.Labels[mesh.TLSModeLabel] == "istio" && !p.Router
		case p.Router:
		case w.injected:
			p.Sidecar = true
			p.Labels = labelled(p.Labels, mesh.TLSModeLabel, "istio") // others know by it that the Pod has a proxy
		}
		for _, c := range w.template.Spec.Containers {
			p.Containers = append(p.Containers, c.container())
		}
		out = append(out, p)
	}
	return out
}

// podName is the name of a replica: that of a StatefulSet's Pods is counted from 0, as in a cluster.
func (w workload) podName(i int) string {
	switch w.kind {
	case "Pod":
		return w.meta.Name
	case "StatefulSet":
		return w.meta.Name + "-" + strconv.Itoa(i)
	}
	return w.meta.Name + "-" + strconv.Itoa(i+1)
}

// withoutNumber is a name without a dash and a number at its end.
func withoutNumber(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}

func (c containerBody) container() Container {
	out := Container{Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, WorkingDir: c.WorkingDir}
	for _, p := range c.Ports {
		if p.ContainerPort != 0 {
			out.Ports = append(out.Ports, Port{Name: p.Name, Number: p.ContainerPort, HTTP: !declaresTCP(p.Name, ""), UDP: p.Protocol == "UDP"})
		}
	}
	return out
}

// declaresTCP reports whether a port's name or appProtocol says that it is not HTTP.
func declaresTCP(name, appProtocol string) bool {
	protocol := appProtocol
	if protocol == "" {
		protocol, _, _ = strings.Cut(name, "-")
	}
	return slices.Contains([]string{"tcp", "mongo", "mysql", "redis", "postgres", "tls", "https", "kafka"}, strings.ToLower(protocol))
}
