package check

import (
	"cmp"
	"slices"
)

// Rule is what somebody must be allowed to do: one verb of one resource.
type Rule struct {
	// Namespace is empty for the whole cluster.
	Namespace string
	// Group is empty for the core API. Name is empty if it is not limited to one.
	Group, Resource, Name, Verb string
}

// String is the rule as it is read: create deployments.apps in istio-system.
func (r Rule) String() string {
	out := r.Verb + " " + r.Resource
	if r.Group != "" {
		out += "." + r.Group
	}
	if r.Name != "" {
		out += " " + r.Name
	}
	if r.Namespace != "" {
		out += " in " + r.Namespace
	}
	return out
}

// grant is a rule of RBAC.
type grant struct {
	namespaced       bool
	group            string
	resources, names []string
	verbs            []string
}

func flatten(grants []grant, namespace string) (out []Rule) {
	for _, g := range grants {
		in := ""
		if g.namespaced {
			in = namespace
		}
		names := g.names
		if len(names) == 0 {
			names = []string{""}
		}
		for _, resource := range g.resources {
			for _, name := range names {
				for _, verb := range g.verbs {
					out = append(out, Rule{in, g.group, resource, name, verb})
				}
			}
		}
	}
	return out
}

const (
	rbacGroup    = "rbac.authorization.k8s.io"
	webhookGroup = "admissionregistration.k8s.io"
)

// AccountRules are those that the chart gives to the control plane's ServiceAccount.
func AccountRules(namespace, revision string) []Rule {
	suffix, outside := "", ""
	if revision != "" && revision != "default" {
		suffix = "-" + revision
	}
	if namespace != "istio-system" {
		outside = "-" + namespace
	}
	watch := []string{"list", "watch"}
	return slices.Concat(DeployerRules(namespace), flatten([]grant{
		{resources: []string{"namespaces", "nodes", "pods", "services"}, verbs: watch},
		{group: "discovery.k8s.io", resources: []string{"endpointslices"}, verbs: watch},
		{group: "apiextensions.k8s.io", resources: []string{"customresourcedefinitions"}, verbs: watch},
		{group: "networking.istio.io", resources: []string{"destinationrules", "envoyfilters", "gateways", "proxyconfigs", "serviceentries", "sidecars", "virtualservices", "workloadentries", "workloadgroups"}, verbs: watch},
		{group: "security.istio.io", resources: []string{"authorizationpolicies", "peerauthentications", "requestauthentications"}, verbs: watch},
		{group: "telemetry.istio.io", resources: []string{"telemetries"}, verbs: watch},
		{group: "extensions.istio.io", resources: []string{"trafficextensions", "wasmplugins"}, verbs: watch},
		{group: "gateway.networking.k8s.io", resources: []string{"backendtlspolicies", "gatewayclasses", "gateways", "grpcroutes", "httproutes", "listenersets", "referencegrants", "tcproutes", "tlsroutes", "udproutes"}, verbs: watch},
		{group: "networking.k8s.io", resources: []string{"ingressclasses", "ingresses"}, verbs: watch},
		{group: "networking.k8s.io", resources: []string{"ingresses/status"}, verbs: []string{"patch"}},
		{group: "gateway.networking.k8s.io", resources: []string{"backendtlspolicies/status", "gatewayclasses/status", "gateways/status", "grpcroutes/status", "httproutes/status", "listenersets/status", "tcproutes/status", "tlsroutes/status", "udproutes/status"}, verbs: []string{"patch"}},
		{group: "networking.istio.io", resources: []string{"destinationrules/status", "envoyfilters/status", "gateways/status", "proxyconfigs/status", "serviceentries/status", "sidecars/status", "virtualservices/status", "workloadentries/status", "workloadgroups/status"}, verbs: []string{"patch"}},
		{group: "security.istio.io", resources: []string{"authorizationpolicies/status", "peerauthentications/status", "requestauthentications/status"}, verbs: []string{"patch"}},
		{group: "telemetry.istio.io", resources: []string{"telemetries/status"}, verbs: []string{"patch"}},
		{group: "extensions.istio.io", resources: []string{"trafficextensions/status", "wasmplugins/status"}, verbs: []string{"patch"}},
		{group: "networking.istio.io", resources: []string{"workloadentries"}, verbs: []string{"create", "delete", "get", "update"}},
		{group: "authentication.k8s.io", resources: []string{"tokenreviews"}, verbs: []string{"create"}},
		{resources: []string{"secrets"}, verbs: watch},
		{group: "authorization.k8s.io", resources: []string{"subjectaccessreviews"}, verbs: []string{"create"}},
		{resources: []string{"configmaps"}, verbs: []string{"get"}},
		{resources: []string{"configmaps"}, verbs: []string{"create"}},
		{resources: []string{"configmaps"}, names: []string{"istio-ca-root-cert"}, verbs: []string{"list", "watch", "update"}},
		{group: webhookGroup, resources: []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}, verbs: watch},
		{group: webhookGroup, resources: []string{"mutatingwebhookconfigurations"}, names: []string{"istio-sidecar-injector" + suffix + outside}, verbs: []string{"patch"}},
		{group: webhookGroup, resources: []string{"validatingwebhookconfigurations"}, names: []string{"istio-validator" + suffix + "-" + namespace}, verbs: []string{"patch"}},
		{resources: []string{"events"}, verbs: []string{"create", "patch"}},
		{namespaced: true, resources: []string{"configmaps"}, names: []string{"istio" + suffix, "istio-sidecar-injector" + suffix}, verbs: watch},
		{namespaced: true, resources: []string{"secrets"}, verbs: []string{"create"}},
		{namespaced: true, resources: []string{"secrets"}, names: []string{"istio-ca-secret"}, verbs: []string{"get", "update"}},
		{namespaced: true, resources: []string{"configmaps"}, names: []string{"pilothouse-ca-instances", "pilothouse-join-tokens", "pilothouse-registration-instances", "pilothouse-status-instances"}, verbs: []string{"patch"}},
		{namespaced: true, group: "coordination.k8s.io", resources: []string{"leases"}, verbs: []string{"create"}},
		{namespaced: true, group: "coordination.k8s.io", resources: []string{"leases"}, names: []string{"pilothouse-leader", "pilothouse-leader-" + cmp.Or(revision, "default")}, verbs: []string{"get", "update"}},
		{namespaced: true, group: "networking.istio.io", resources: []string{"gateways"}, verbs: []string{"create"}},
	}, namespace))
}

// DeployerRules are those of AccountRules that run the Gateways of the Gateway API: the chart gives them unless
// PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER is false.
func DeployerRules(namespace string) []Rule {
	write := []string{"create", "get", "patch"}
	return flatten([]grant{
		{group: "apps", resources: []string{"deployments"}, verbs: []string{"create", "get", "list", "patch", "watch"}},
		{resources: []string{"serviceaccounts"}, verbs: []string{"create", "get", "list", "patch", "watch"}},
		{resources: []string{"services"}, verbs: write},
		{group: "autoscaling", resources: []string{"horizontalpodautoscalers"}, verbs: write},
		{group: "policy", resources: []string{"poddisruptionbudgets"}, verbs: write},
		{resources: []string{"configmaps"}, verbs: []string{"get"}},
		{group: "gateway.networking.k8s.io", resources: []string{"gatewayclasses"}, verbs: []string{"create"}},
	}, namespace)
}

// escalate are the verbs that let a user grant what the user may not do.
func escalate(namespace string) []Rule {
	verbs := []string{"bind", "escalate"}
	return flatten([]grant{
		{group: rbacGroup, resources: []string{"clusterroles"}, verbs: verbs},
		{namespaced: true, group: rbacGroup, resources: []string{"roles"}, verbs: verbs},
	}, namespace)
}

// createNamespace is needed if the namespace does not exist.
var createNamespace = Rule{Resource: "namespaces", Verb: "create"}

// InstallRules are what the installer needs for the objects of the chart, with Istio's CustomResourceDefinitions.
func InstallRules(namespace string) []Rule {
	write := []string{"get", "create", "patch", "delete"}
	return flatten([]grant{
		{group: "apiextensions.k8s.io", resources: []string{"customresourcedefinitions"}, verbs: []string{"get", "create"}},
		{group: rbacGroup, resources: []string{"clusterroles", "clusterrolebindings"}, verbs: write},
		{group: webhookGroup, resources: []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}, verbs: write},
		{namespaced: true, group: rbacGroup, resources: []string{"roles", "rolebindings"}, verbs: write},
		{namespaced: true, resources: []string{"serviceaccounts", "services", "configmaps", "secrets"}, verbs: write}, // Helm keeps its releases in Secrets
		{namespaced: true, group: "apps", resources: []string{"deployments"}, verbs: write},
		{namespaced: true, group: "autoscaling", resources: []string{"horizontalpodautoscalers"}, verbs: write},
		{namespaced: true, group: "policy", resources: []string{"poddisruptionbudgets"}, verbs: write},
	}, namespace)
}

// AskedRules are all rules of which [Facts].Permissions says whether they are allowed.
func AskedRules(namespace, revision string) []Rule {
	return slices.Concat(InstallRules(namespace), escalate(namespace), []Rule{createNamespace}, AccountRules(namespace, revision))
}
