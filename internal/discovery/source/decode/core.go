package decode

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pilothouse/pilothouse/internal/object"
)

// address parses an IP address, which must not have a zone.
func (r *reducer) address(field, s string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(s)
	if err != nil || ip.Zone() != "" {
		r.problem(field, "invalid IP address %q: want one such as 10.0.0.1 or fd00::1", s)
		return netip.Addr{}, false
	}
	return ip.Unmap(), true
}

// port converts a port number; a negative one becomes a number that package config rejects.
func port(n int32) uint32 {
	if n < 0 {
		return 1 << 31
	}
	return uint32(n)
}

func transport(p corev1.Protocol) string {
	if p == "" {
		return string(corev1.ProtocolTCP)
	}
	return string(p)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (r *reducer) service(s *corev1.Service) *object.ServiceSpec {
	spec := &object.ServiceSpec{
		Type: string(s.Spec.Type), ExternalName: s.Spec.ExternalName, Selector: s.Spec.Selector,
		PublishNotReady: s.Spec.PublishNotReadyAddresses, TrafficDistribution: text(s.Spec.TrafficDistribution),
		NodeLocal: s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	for _, f := range s.Spec.IPFamilies {
		spec.IPFamilies = append(spec.IPFamilies, string(f))
	}
	ips, field := s.Spec.ClusterIPs, "spec.clusterIPs"
	if len(ips) == 0 && s.Spec.ClusterIP != "" {
		ips = []string{s.Spec.ClusterIP}
	}
	for i, ip := range ips {
		if ip == corev1.ClusterIPNone {
			spec.Headless = true
			continue
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		if len(s.Spec.ClusterIPs) == 0 {
			at = "spec.clusterIP"
		}
		if a, ok := r.address(at, ip); ok {
			spec.ClusterIPs = append(spec.ClusterIPs, a)
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		if a, ok := r.address(fmt.Sprintf("spec.externalIPs[%d]", i), ip); ok {
			spec.ExternalAddresses = append(spec.ExternalAddresses, a)
		}
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP == "" {
			if in.Hostname != "" {
				spec.ExternalHostnames = append(spec.ExternalHostnames, in.Hostname)
			}
			continue
		}
		if a, ok := r.address(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP); ok {
			spec.ExternalAddresses = append(spec.ExternalAddresses, a)
		}
	}
	for _, p := range s.Spec.Ports {
		sp := object.ServicePort{Name: p.Name, Port: port(p.Port), Protocol: transport(p.Protocol), AppProtocol: text(p.AppProtocol)}
		if p.TargetPort.Type == intstr.Int {
			sp.TargetPort = port(p.TargetPort.IntVal)
		} else if n, err := strconv.ParseUint(p.TargetPort.StrVal, 10, 16); err == nil {
			sp.TargetPort = uint32(n)
		} else {
			sp.TargetName = p.TargetPort.StrVal
		}
		spec.Ports = append(spec.Ports, sp)
	}
	return spec
}

func (r *reducer) slice(s *discoveryv1.EndpointSlice) *object.EndpointSliceSpec {
	spec := &object.EndpointSliceSpec{Service: s.Labels[discoveryv1.LabelServiceName]}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		r.problem("addressType", "FQDN is not supported; use a ServiceEntry with resolution DNS")
		return spec
	}
	for _, p := range s.Ports {
		if p.Port == nil {
			continue // "all ports", which no port of a Service refers to
		}
		sp := object.SlicePort{Name: text(p.Name), Port: port(*p.Port), Protocol: string(corev1.ProtocolTCP), AppProtocol: text(p.AppProtocol)}
		if p.Protocol != nil {
			sp.Protocol = transport(*p.Protocol)
		}
		spec.Ports = append(spec.Ports, sp)
	}
	for i, e := range s.Endpoints {
		ep := object.SliceEndpoint{
			Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
			Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
			NodeName:    text(e.NodeName), Zone: text(e.Zone), Hostname: text(e.Hostname),
		}
		ep.Serving = ep.Ready
		if e.Conditions.Serving != nil {
			ep.Serving = *e.Conditions.Serving
		}
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
			ep.Pod = ref.Name
		}
		for j, a := range e.Addresses {
			if ip, ok := r.address(fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), a); ok {
				ep.Addresses = append(ep.Addresses, ip)
			}
		}
		spec.Endpoints = append(spec.Endpoints, ep)
	}
	return spec
}

func (r *reducer) pod(p *corev1.Pod) *object.PodSpec {
	r.out.Meta.Annotations = nil // no rule reads them, and there are more of them than of everything else
	spec := &object.PodSpec{
		ServiceAccount: p.Spec.ServiceAccountName, NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
		Ready: podReady(&p.Status),
		Done:  p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
	if spec.ServiceAccount == "" {
		spec.ServiceAccount = "default"
	}
	if p.Spec.Subdomain != "" {
		spec.Hostname, spec.Subdomain = cmp.Or(p.Spec.Hostname, p.Name), p.Spec.Subdomain
	}
	ips := p.Status.PodIPs
	if len(ips) == 0 && p.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for i, ip := range ips {
		at := fmt.Sprintf("status.podIPs[%d].ip", i)
		if len(p.Status.PodIPs) == 0 {
			at = "status.podIP"
		}
		if a, ok := r.address(at, ip.IP); ok {
			spec.IPs = append(spec.IPs, a)
		}
	}
	containers := p.Spec.Containers
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers[:len(containers):len(containers)], c)
		}
	}
	for _, c := range containers {
		for _, cp := range c.Ports {
			spec.Ports = append(spec.Ports, object.ContainerPort{Name: cp.Name, Port: port(cp.ContainerPort), Protocol: transport(cp.Protocol)})
		}
	}
	return spec
}

// The labels of Nodes that have their place, and the names that these labels had before.
const (
	subzoneLabel = "topology.istio.io/subzone"
	oldZone      = "failure-domain.beta.kubernetes.io/zone"
	oldRegion    = "failure-domain.beta.kubernetes.io/region"
)

// node reduces a Node to its place: its other labels, its annotations and its status change often.
func (r *reducer) node(n *corev1.Node) *object.NodeSpec {
	r.out.Meta.Labels, r.out.Meta.Annotations = nil, nil
	return &object.NodeSpec{
		Region:  cmp.Or(n.Labels[corev1.LabelTopologyRegion], n.Labels[oldRegion]),
		Zone:    cmp.Or(n.Labels[corev1.LabelTopologyZone], n.Labels[oldZone]),
		Subzone: n.Labels[subzoneLabel],
	}
}

func podReady(s *corev1.PodStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return s.Phase == corev1.PodRunning || s.Phase == ""
}

// secretSpec joins data with stringData, which an API server would have merged.
func secretSpec(s *corev1.Secret) *object.SecretSpec {
	spec := &object.SecretSpec{Type: string(s.Type), Data: s.Data}
	if len(s.StringData) == 0 {
		return spec
	}
	spec.Data = maps.Clone(s.Data)
	if spec.Data == nil {
		spec.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		spec.Data[k] = []byte(v)
	}
	return spec
}
