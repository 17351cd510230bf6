// Package deploy decides which objects of Kubernetes run a Gateway of the Gateway API.
//
// A Gateway whose class is served, and that does not name the Service of Pods that its user runs, gets a ServiceAccount, a Deployment
// and a Service, whose names and labels are those that Istio gives them. The Pods are an agent with Envoy, which the injector makes of
// them with its template gateway. The package is pure; an object is a value of JSON. [control-plane 1.11.7]
package deploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Labels and annotations, whose names are Istio's but for the first. [control-plane 1.11.7]
const (
	// NameLabel is the label of the Pods of a Gateway, with its name.
	NameLabel = "gateway.networking.k8s.io/gateway-name"
	// ManagedLabel is the label of what is made for Gateways, ManagedValue its value.
	ManagedLabel = "gateway.istio.io/managed"
	ManagedValue = "istio.io-gateway-controller"

	classLabel        = "gateway.networking.k8s.io/gateway-class-name"
	injectLabel       = "sidecar.istio.io/inject"
	serviceTypeNote   = "networking.istio.io/service-type"
	nameNote          = "gateway.istio.io/name-override"
	accountNote       = "gateway.istio.io/service-account"
	versionNote       = "gateway.istio.io/controller-version"
	lastAppliedNote   = "kubectl.kubernetes.io/last-applied-configuration"
	statusPort        = 15021
	maxLabel, maxName = 63, 63
)

// Gateway is a Gateway of the Gateway API.
type Gateway struct {
	object.Key
	UID                 string
	Labels, Annotations map[string]string
	Spec                *gatewayv1.GatewaySpec
	// Sets are the listeners of the ListenerSets that the Gateway lets in.
	Sets []gatewayv1.Listener
}

// Managed reports whether objects are made for a Gateway: not if its addresses name the Service of Pods that its user runs, nor if it has
// one of a type that is not supported.
func Managed(s *gatewayv1.GatewaySpec) bool {
	return !slices.ContainsFunc(s.Addresses, func(a gatewayv1.GatewaySpecAddress) bool { return a.Type != nil && *a.Type != gatewayv1.IPAddressType })
}

// Requested returns the IP addresses that a Gateway that is managed asks for. The first one is asked of the load balancer of its Service,
// which takes no more.
func Requested(s *gatewayv1.GatewaySpec) (out []string) {
	for _, a := range s.Addresses {
		if a.Value != "" {
			out = append(out, a.Value)
		}
	}
	return out
}

// Name returns the name of the Deployment and the Service of a Gateway.
func Name(name string, annotations map[string]string, s *gatewayv1.GatewaySpec) string {
	return cmp.Or(annotations[nameNote], name+"-"+string(s.GatewayClassName))
}

// OwnAccount returns the name of the ServiceAccount that only the Pods of a Gateway have; empty if its user has chosen the name, which may
// be that of others, too.
func OwnAccount(g Gateway) string {
	if g.Annotations[accountNote] != "" || g.Annotations[nameNote] != "" {
		return ""
	}
	return Name(g.Name, g.Annotations, g.Spec)
}

// Object is an object that is made: its resource, and its value in JSON.
type Object struct {
	Group, Version, Resource string
	Value                    map[string]any
}

// Name returns the object's name.
func (o Object) Name() string { return o.metadata()["name"].(string) }

func (o Object) metadata() map[string]any { return o.Value["metadata"].(map[string]any) }

// Parameters returns the name of the ConfigMap that a Gateway's infrastructure names; empty for none.
func Parameters(s *gatewayv1.GatewaySpec) (string, error) {
	if s.Infrastructure == nil || s.Infrastructure.ParametersRef == nil {
		return "", nil
	}
	ref := s.Infrastructure.ParametersRef
	if ref.Group != "" || ref.Kind != "ConfigMap" || ref.Name == "" {
		return "", fmt.Errorf("spec.infrastructure.parametersRef: invalid reference to %.100q %.100q of group %.100q: want a ConfigMap of group \"\"", string(ref.Kind), ref.Name, string(ref.Group))
	}
	return ref.Name, nil
}

// Plan returns what is made for a Gateway that is managed, for a revision of the control plane ("default" or empty for the usual one).
// parameters is the data of the ConfigMap that Parameters names: patches, by the names in kinds.
func Plan(g Gateway, revision string, parameters map[string]string) ([]Object, error) {
	p := plan{Gateway: g, name: Name(g.Name, g.Annotations, g.Spec), revision: revision}
	p.account = cmp.Or(g.Annotations[accountNote], p.name)
	switch {
	case len(g.Name) > maxLabel:
		return nil, fmt.Errorf("metadata.name: %d characters are too many for the label %s of Pods: want %d or less", len(g.Name), NameLabel, maxLabel)
	case len(p.name) > maxName:
		return nil, fmt.Errorf("metadata.name: %q is too long for a Service: want %d characters or less, or the annotation %s", p.name, maxName, nameNote)
	}
	all := []Object{
		{"", "v1", "serviceaccounts", p.serviceAccount()},
		{"apps", "v1", "deployments", p.deployment()},
		{"", "v1", "services", p.service()},
	}
	if g.Annotations[accountNote] != "" {
		all = all[1:] // it is its user's
	}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		k, known := kinds[key]
		if !known {
			return nil, fmt.Errorf("the ConfigMap of spec.infrastructure.parametersRef: unknown key %.100q: want one of %s", key, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		}
		at := slices.IndexFunc(all, func(o Object) bool { return o.Resource == k.resource })
		if at < 0 {
			if k.make == nil {
				continue // the ServiceAccount of the user
			}
			all = append(all, Object{k.group, k.version, k.resource, k.make(p)})
			at = len(all) - 1
		}
		patched, err := patch(all[at], parameters[key], k.typed)
		if err != nil {
			return nil, fmt.Errorf("the ConfigMap of spec.infrastructure.parametersRef: key %s: %w", key, err)
		}
		all[at].Value = patched
	}
	return all, nil
}

// kind is a kind of object that a ConfigMap may have a patch of; make makes one that exists only with a patch.
type kind struct {
	group, version, resource string
	typed                    any
	make                     func(plan) map[string]any
}

var kinds = map[string]kind{
	"serviceAccount":          {"", "v1", "serviceaccounts", corev1.ServiceAccount{}, nil},
	"deployment":              {"apps", "v1", "deployments", appsv1.Deployment{}, nil},
	"service":                 {"", "v1", "services", corev1.Service{}, nil},
	"horizontalPodAutoscaler": {"autoscaling", "v2", "horizontalpodautoscalers", autoscalingv2.HorizontalPodAutoscaler{}, plan.autoscaler},
	"podDisruptionBudget":     {"policy", "v1", "poddisruptionbudgets", policyv1.PodDisruptionBudget{}, plan.budget},
}

// patch applies a strategic merge patch in YAML. What identifies the object, and who owns it, stays.
func patch(o Object, text string, typed any) (map[string]any, error) {
	change, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(o.Value)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, change, typed)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := json.Unmarshal(after, &out); err != nil {
		return nil, err
	}
	meta, ok := out["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("metadata: want a mapping")
	}
	own := o.metadata()
	for _, name := range []string{"name", "namespace", "ownerReferences"} {
		meta[name] = own[name]
	}
	labels, _ := meta["labels"].(map[string]any)
	if labels == nil {
		labels = map[string]any{}
	}
	for _, name := range []string{NameLabel, ManagedLabel} {
		labels[name] = own["labels"].(map[string]any)[name]
	}
	meta["labels"], out["apiVersion"], out["kind"] = labels, o.Value["apiVersion"], o.Value["kind"]
	delete(out, "status")
	return out, nil
}

// plan is what is decided about a Gateway.
type plan struct {
	Gateway
	name, account, revision string
}

// infrastructure returns the labels or annotations that all objects have: those of the Gateway's infrastructure, or else the Gateway's own,
// and more.
func infrastructure[K ~string, V ~string](given map[K]V, own, more map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range given {
		out[string(k)] = string(v)
	}
	if given == nil {
		for k, v := range own {
			out[k] = v
		}
		for _, k := range []string{nameNote, accountNote, versionNote, lastAppliedNote} {
			delete(out, k)
		}
	}
	for k, v := range more {
		out[k] = v
	}
	return out
}

func (p plan) labels(more map[string]string) map[string]any {
	var given map[gatewayv1.LabelKey]gatewayv1.LabelValue
	if i := p.Spec.Infrastructure; i != nil {
		given = i.Labels
	}
	out := infrastructure(given, p.Labels, more)
	out[NameLabel], out[classLabel] = p.Gateway.Name, string(p.Spec.GatewayClassName)
	return out
}

func (p plan) annotations(more map[string]string) map[string]any {
	var given map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue
	if i := p.Spec.Infrastructure; i != nil {
		given = i.Annotations
	}
	return infrastructure(given, p.Annotations, more)
}

// object returns an object with its metadata.
func (p plan) object(version, kind, name string, spec map[string]any) map[string]any {
	meta := map[string]any{
		"name": name, "namespace": p.Namespace, "labels": p.labels(map[string]string{ManagedLabel: ManagedValue}),
		"ownerReferences": []any{map[string]any{"apiVersion": gatewayv1.GroupVersion.String(), "kind": "Gateway", "name": p.Gateway.Name, "uid": p.UID}},
	}
	if a := p.annotations(nil); len(a) > 0 {
		meta["annotations"] = a
	}
	out := map[string]any{"apiVersion": version, "kind": kind, "metadata": meta}
	if spec != nil {
		out["spec"] = spec
	}
	return out
}

func (p plan) serviceAccount() map[string]any {
	return p.object("v1", "ServiceAccount", p.account, nil)
}

func (p plan) selector() map[string]any { return map[string]any{NameLabel: p.Gateway.Name} }

func (p plan) deployment() map[string]any {
	labels := p.labels(map[string]string{
		injectLabel: "true", mesh.CanonicalNameLabel: p.name, mesh.CanonicalRevisionLabel: "latest",
	})
	if p.revision != "" && p.revision != "default" {
		labels[mesh.RevisionLabel] = p.revision
	} else {
		delete(labels, mesh.RevisionLabel)
	}
	pod := map[string]any{
		"metadata": map[string]any{
			"labels": labels,
			"annotations": p.annotations(map[string]string{
				"inject.istio.io/templates": "gateway",
				"prometheus.io/path":        "/stats/prometheus", "prometheus.io/port": "15020", "prometheus.io/scrape": "true",
			}),
		},
		"spec": map[string]any{
			"serviceAccountName": p.account,
			"securityContext": map[string]any{
				"runAsNonRoot": true, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
				// Ports below 1024 without a capability.
				"sysctls": []any{map[string]any{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}},
			},
			"containers": []any{map[string]any{
				"name":  "istio-proxy",
				"image": "auto", // the injector sets it, and all that the control plane knows
				"ports": []any{
					map[string]any{"name": "metrics", "containerPort": int64(15020), "protocol": "TCP"},
					map[string]any{"name": "status-port", "containerPort": int64(statusPort), "protocol": "TCP"},
				},
				"securityContext": map[string]any{
					"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true,
					"capabilities": map[string]any{"drop": []any{"ALL"}},
				},
			}},
		},
	}
	return p.object("apps/v1", "Deployment", p.name, map[string]any{"selector": map[string]any{"matchLabels": p.selector()}, "template": pod})
}

func (p plan) service() map[string]any {
	ports := []any{map[string]any{"name": "status-port", "port": int64(statusPort), "targetPort": int64(statusPort), "protocol": "TCP", "appProtocol": "tcp"}}
	taken, names := map[string]bool{key(statusPort, "TCP"): true}, map[string]bool{}
	for i, l := range slices.Concat(p.Spec.Listeners, p.Sets) {
		transport := "TCP"
		if l.Protocol == gatewayv1.UDPProtocolType {
			transport = "UDP"
		}
		if k := key(l.Port, transport); !taken[k] {
			taken[k] = true
			name := portName(string(l.Name), i)
			if names[name] { // that of a listener of another object
				name = portName("", i)
			}
			names[name] = true
			port := map[string]any{"name": name, "port": int64(l.Port), "targetPort": int64(l.Port), "protocol": transport}
			if transport == "TCP" {
				port["appProtocol"] = appProtocol(l.Protocol)
			}
			ports = append(ports, port)
		}
	}
	spec := map[string]any{
		"type": cmp.Or(p.noteOf(serviceTypeNote), "LoadBalancer"), "selector": p.selector(), "ports": ports, "ipFamilyPolicy": "PreferDualStack",
	}
	if r := Requested(p.Spec); len(r) > 0 && spec["type"] == "LoadBalancer" {
		spec["loadBalancerIP"] = r[0]
	}
	return p.object("v1", "Service", p.name, spec)
}

// noteOf returns an annotation that the Service will have.
func (p plan) noteOf(name string) string {
	text, _ := p.annotations(nil)[name].(string)
	return text
}

func key(port gatewayv1.PortNumber, transport string) string {
	return fmt.Sprintf("%d/%s", port, transport)
}

// appProtocol returns the protocol of a Service's port for a listener, which is a label's value.
func appProtocol(p gatewayv1.ProtocolType) string {
	switch p {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType:
		return strings.ToLower(string(p))
	}
	return "tcp"
}

// portName returns the name of a Service's port for a listener: at most 63 characters, without dots, and another one for each listener.
func portName(listener string, i int) string {
	name := strings.ReplaceAll(strings.ToLower(listener), ".", "-")
	if len(name) > 63 || name == "" || name == "status-port" {
		return fmt.Sprintf("listener-%d", i)
	}
	return name
}

func (p plan) autoscaler() map[string]any {
	return p.object("autoscaling/v2", "HorizontalPodAutoscaler", p.name, map[string]any{
		"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": p.name}, "maxReplicas": int64(1),
	})
}

func (p plan) budget() map[string]any {
	return p.object("policy/v1", "PodDisruptionBudget", p.name, map[string]any{"selector": map[string]any{"matchLabels": p.selector()}})
}
