package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Variables of the proxy that depend on the merged Pod.
const (
	envCluster    = "ISTIO_META_CLUSTER_ID"
	envNetwork    = "ISTIO_META_NETWORK"
	envPrometheus = "ISTIO_PROMETHEUS_ANNOTATIONS"
	envProbes     = "ISTIO_KUBE_APP_PROBERS"
)

// prober is what the agent calls in place of a probe or a hook. [agent H9]
type prober struct {
	HTTPGet        *corev1.HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket      *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC           *corev1.GRPCAction      `json:"grpc,omitempty"`
	TimeoutSeconds int32                   `json:"timeoutSeconds,omitempty"`
}

// lateEnv are the variables at the end of the proxy's list, in their order.
type lateEnv struct {
	cluster, network string
	path             map[string]string
	prometheus       string
	probes           string
}

// apply sets the variables. Those of an earlier injection are replaced, so that the order stays.
func (l *lateEnv) apply(proxy *corev1.Container) {
	meta := maps.Clone(l.path)
	if meta == nil {
		meta = map[string]string{}
	}
	for k, v := range map[string]string{envCluster: l.cluster, envNetwork: l.network} {
		if v != "" {
			meta[k] = v
		}
	}
	var add []corev1.EnvVar
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		add = append(add, corev1.EnvVar{Name: k, Value: meta[k]})
	}
	for _, e := range []corev1.EnvVar{{Name: envPrometheus, Value: l.prometheus}, {Name: envProbes, Value: l.probes}} {
		if e.Value != "" {
			add = append(add, e)
		}
	}
	proxy.Env = slices.DeleteFunc(proxy.Env, func(e corev1.EnvVar) bool {
		return slices.ContainsFunc(add, func(a corev1.EnvVar) bool { return a.Name == e.Name })
	})
	proxy.Env = append(proxy.Env, add...)
}

// envValue is the value of a variable of a container, "" if it has none.
func envValue(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// rewriteProbes makes the kubelet call the agent for the probes and hooks of the applications, since it has
// no certificate that a proxy with strict mutual TLS would take. [control-plane 1.15.7]
func (in *injection) rewriteProbes(proxy *corev1.Container, late *lateEnv) error {
	rewrite := in.c.values.Webhook.RewriteProbes
	if v, err := strconv.ParseBool(in.pod.Annotations[annotationProbes]); err == nil {
		rewrite = v
	}
	if proxy == nil || !rewrite || in.data.Proxy.StatusPort == 0 {
		return nil
	}
	known := map[string]*prober{}
	if in.status.has(proxyContainer) {
		if text := envValue(proxy, envProbes); text != "" {
			if err := json.Unmarshal([]byte(text), &known); err != nil {
				return fmt.Errorf("container %s: variable %s: %w", proxyContainer, envProbes, err)
			}
		}
	}
	w := &rewriter{in: in, port: in.data.Proxy.StatusPort, known: known, probers: map[string]*prober{}}
	for _, list := range [][]corev1.Container{in.pod.Spec.Containers, in.pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name != proxyContainer {
				w.container(&list[i])
			}
		}
	}
	if len(w.probers) == 0 {
		return nil
	}
	text, err := json.Marshal(w.probers)
	if err != nil {
		return fmt.Errorf("encode the probes: %w", err)
	}
	late.probes = string(text)
	return nil
}

// rewriter rewrites the probes and hooks of one Pod.
type rewriter struct {
	in      *injection
	port    int32
	known   map[string]*prober // of an earlier injection
	probers map[string]*prober
}

func (w *rewriter) container(c *corev1.Container) {
	for _, p := range []struct {
		path  string
		probe *corev1.Probe
	}{
		{"/app-health/" + c.Name + "/readyz", c.ReadinessProbe},
		{"/app-health/" + c.Name + "/livez", c.LivenessProbe},
		{"/app-health/" + c.Name + "/startupz", c.StartupProbe},
	} {
		if p.probe == nil {
			continue
		}
		h := &p.probe.ProbeHandler
		w.handler(c, p.path, prober{HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket, GRPC: h.GRPC, TimeoutSeconds: p.probe.TimeoutSeconds}, func(get *corev1.HTTPGetAction) {
			h.HTTPGet, h.TCPSocket, h.GRPC = get, nil, nil
		})
	}
	if c.Lifecycle == nil {
		return
	}
	for _, p := range []struct {
		path string
		hook *corev1.LifecycleHandler
	}{
		{"/app-lifecycle/" + c.Name + "/poststartz", c.Lifecycle.PostStart},
		{"/app-lifecycle/" + c.Name + "/prestopz", c.Lifecycle.PreStop},
	} {
		if p.hook == nil {
			continue
		}
		w.handler(c, p.path, prober{HTTPGet: p.hook.HTTPGet, TCPSocket: p.hook.TCPSocket}, func(get *corev1.HTTPGetAction) {
			p.hook.HTTPGet, p.hook.TCPSocket = get, nil
		})
	}
}

// handler replaces one probe or hook by a request to the agent.
func (w *rewriter) handler(c *corev1.Container, path string, p prober, set func(*corev1.HTTPGetAction)) {
	get := &corev1.HTTPGetAction{}
	var port *intstr.IntOrString
	switch {
	case p.HTTPGet != nil:
		if p.HTTPGet.Path == path { // rewritten before
			if old := w.known[path]; old != nil {
				w.probers[path] = old
				p.HTTPGet.Port = intstr.FromInt32(w.port)
			}
			return
		}
		get = p.HTTPGet.DeepCopy()
		p.HTTPGet = p.HTTPGet.DeepCopy()
		port = &p.HTTPGet.Port
	case p.TCPSocket != nil:
		p.TCPSocket = p.TCPSocket.DeepCopy()
		port = &p.TCPSocket.Port
	case p.GRPC != nil:
	default: // a command, or nothing
		return
	}
	if port != nil && !named(c, port) {
		w.in.warn("container %s: a probe or hook names port %q, which the container does not have: it is not rewritten", c.Name, clip(port.StrVal))
		return
	}
	get.Path, get.Port = path, intstr.FromInt32(w.port)
	if get.Scheme == corev1.URISchemeHTTPS {
		get.Scheme = corev1.URISchemeHTTP
	}
	set(get)
	w.probers[path] = &p
}

// named replaces the name of a port by its number; false if the container has no such port.
func named(c *corev1.Container, port *intstr.IntOrString) bool {
	if port.Type == intstr.Int {
		return true
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			*port = intstr.FromInt32(p.ContainerPort)
			return true
		}
	}
	n, err := strconv.ParseUint(port.StrVal, 10, 16)
	if err != nil {
		return false
	}
	*port = intstr.FromInt32(int32(n))
	return true
}
