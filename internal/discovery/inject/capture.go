package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

var healthPort = intstr.FromInt32(mesh.HealthPort)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// multusNetwork is the network attachment that starts the CNI plugin.
const multusNetwork = "default/istio-cni"

// capture computes the arguments of istio-iptables, and the annotations from which the CNI plugin makes
// the same.
func (in *injection) capture(d *Data, user *corev1.Pod) {
	g, a, p := &in.c.values.Global, d.ObjectMeta.Annotations, &d.Proxy
	mode, ok := a[annotationMode]
	if !ok || mode == "" {
		mode = d.ProxyConfig.GetInterceptionMode().String()
	}
	p.Mode = mode
	uid := d.ProxyUID
	for _, list := range [][]corev1.Container{user.Spec.Containers, user.Spec.InitContainers} {
		if at := index(list, proxyContainer); at >= 0 && list[at].SecurityContext != nil && list[at].SecurityContext.RunAsUser != nil {
			uid = *list[at].SecurityContext.RunAsUser
		}
	}
	status := strconv.Itoa(int(g.Proxy.StatusPort))
	includeRanges := annotated(a, annotationIncludeRanges, g.Proxy.IncludeIPRanges)
	excludeRanges := annotated(a, annotationExcludeRanges, g.Proxy.ExcludeIPRanges)
	includeIn := annotated(a, annotationIncludeIn, string(g.Proxy.IncludeInboundPorts))
	excludeIn := excludeInboundPort(annotated(a, annotationStatusPort, status), annotated(a, annotationExcludeIn, string(g.Proxy.ExcludeInboundPorts)))
	includeOut, hasIncludeOut := a[annotationIncludeOut]
	if !hasIncludeOut {
		includeOut = string(g.Proxy.IncludeOutboundPorts)
	}
	excludeOut, hasExcludeOut := a[annotationExcludeOut]
	if !hasExcludeOut {
		excludeOut = string(g.Proxy.ExcludeOutboundPorts)
	}
	virtual := firstNonEmpty(a[annotationReroute], a[annotationKubeVirt])

	never := strings.TrimSuffix(strconv.Itoa(mesh.PrometheusPort)+","+strconv.Itoa(mesh.HealthPort)+","+excludeIn, ",")
	args := []string{
		"istio-iptables",
		"-p", strconv.Itoa(int(d.MeshConfig.GetProxyListenPort())), "-z", strconv.Itoa(int(d.MeshConfig.GetProxyInboundListenPort())),
		"-u", strconv.FormatInt(uid, 10), "-m", mode, "-i", includeRanges, "-x", excludeRanges, "-b", includeIn, "-d", never,
	}
	if hasIncludeOut || includeOut != "" {
		args = append(args, "-q", includeOut)
	}
	if hasExcludeOut || excludeOut != "" {
		args = append(args, "-o", excludeOut)
	}
	if virtual != "" {
		args = append(args, "-k", virtual)
	}
	if v := a[annotationInterfaces]; v != "" {
		args = append(args, "-c", v)
	}
	args = append(args, "--log_output_level="+p.AgentLogLevel)
	if p.JSONLogs {
		args = append(args, "--log_as_json")
	}
	switch {
	case p.CNI:
		args = append(args, "--run-validation", "--skip-rule-apply")
	case g.ProxyInit.Force:
		args = append(args, "--force-apply")
	}
	if g.NativeNftables {
		args = append(args, "--native-nftables")
	}
	p.CaptureArgs = args
	if !p.CNI {
		return
	}
	p.Capture = map[string]string{annotationMode: mode, annotationExcludeIn: excludeIn}
	for name, value := range map[string]string{
		annotationIncludeRanges: includeRanges, annotationExcludeRanges: excludeRanges, annotationIncludeIn: includeIn,
		annotationIncludeOut: includeOut, annotationExcludeOut: excludeOut,
		annotationKubeVirt: a[annotationKubeVirt], annotationReroute: a[annotationReroute], annotationInterfaces: a[annotationInterfaces],
	} {
		if value != "" {
			p.Capture[name] = value
		}
	}
	if in.c.values.Pilot.CNI.Provider == "multus" {
		p.Capture[annotationMultus] = appendMultusNetwork(a[annotationMultus], multusNetwork)
	}
}

// excludeInboundPort adds a port to a list, unless it is 0 or in it.
func excludeInboundPort(port any, list string) string {
	text := strings.TrimSpace(toText(port))
	ports := mesh.List(list)
	if text == "" || text == "0" || slices.Contains(ports, text) {
		return strings.Join(ports, ",")
	}
	return strings.Join(append(ports, text), ",")
}

// appendMultusNetwork adds a network to the networks of a Pod, which are a list of names or JSON.
func appendMultusNetwork(networks, network string) string {
	networks = strings.TrimSpace(networks)
	if networks == "" {
		return network
	}
	if strings.HasPrefix(networks, "[") {
		var list []map[string]any
		if json.Unmarshal([]byte(networks), &list) != nil {
			return networks
		}
		namespace, name, ok := strings.Cut(network, "/")
		if !ok {
			namespace, name = "", network
		}
		if slices.ContainsFunc(list, func(n map[string]any) bool { return n["name"] == name }) {
			return networks
		}
		added := map[string]any{"name": name}
		if namespace != "" {
			added["namespace"] = namespace
		}
		text, err := json.Marshal(append(list, added))
		if err != nil {
			return networks
		}
		return string(text)
	}
	list := mesh.List(networks)
	if slices.Contains(list, network) {
		return networks
	}
	return strings.Join(append(list, network), ", ")
}

// security makes the security contexts. The proxy needs root for TPROXY, and to bind low ports.
func (in *injection) security(d *Data) {
	g, p := &in.c.values.Global, &d.Proxy
	seccomp := seccompProfile(g.Proxy.SeccompProfile)
	yes, no := true, false
	var zero int64
	bind := annotated(d.ObjectMeta.Annotations, annotationCapBind, string(g.Proxy.CapNetBindService)) == "true"
	drop := []corev1.Capability{"ALL"}
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &g.Proxy.Privileged, Privileged: &g.Proxy.Privileged,
		ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &d.ProxyUID, RunAsGroup: &d.ProxyGID,
		Capabilities: &corev1.Capabilities{Drop: drop}, SeccompProfile: seccomp,
	}
	if p.Mode == modeTProxy {
		s.Capabilities.Add = append(s.Capabilities.Add, "NET_ADMIN")
	}
	if bind {
		s.Capabilities.Add = append(s.Capabilities.Add, "NET_BIND_SERVICE")
	}
	if len(s.Capabilities.Add) > 0 {
		s.RunAsNonRoot, s.RunAsUser = &no, &zero
	}
	p.Security = s
	i := *s
	if p.CNI {
		i.Capabilities = &corev1.Capabilities{Drop: drop}
		i.RunAsNonRoot, i.RunAsUser = &yes, &d.ProxyUID
	} else {
		i.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: drop}
		i.ReadOnlyRootFilesystem, i.RunAsNonRoot, i.RunAsUser, i.RunAsGroup = &no, &no, &zero, &zero
	}
	p.InitSecurity = &i
}

// gatewaySecurity lets a gateway listen on low ports without being root, unless values say what applies.
func gatewaySecurity(v podDefault) (*corev1.PodSecurityContext, error) {
	s := &corev1.PodSecurityContext{}
	if len(v.SecurityContext) == 0 {
		s.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	} else {
		text, err := json.Marshal(v.SecurityContext)
		if err == nil {
			err = json.Unmarshal(text, s)
		}
		if err != nil {
			return nil, fmt.Errorf("values: gateways.securityContext: %w", err)
		}
	}
	if p := seccompProfile(v.SeccompProfile); p != nil {
		s.SeccompProfile = p
	}
	return s, nil
}

func seccompProfile(ofValues map[string]any) *corev1.SeccompProfile {
	kind, _ := ofValues["type"].(string)
	if kind == "" {
		return nil
	}
	s := &corev1.SeccompProfile{Type: corev1.SeccompProfileType(kind)}
	if file, ok := ofValues["localhostProfile"].(string); ok {
		s.LocalhostProfile = &file
	}
	return s
}
