package charts_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// need is what pilot-discovery asks of the API server, and for what.
type need struct {
	why string
	// start is set if every pilot-discovery asks for it at its start.
	start     bool
	namespace string // empty for all
	group     string
	resources []string
	name      string // empty if it is not known in advance
	verbs     []string
}

var watches = []string{"list", "watch"}

// statuses are the subresources of resources.
func statuses(resources ...string) (all []string) {
	for _, r := range resources {
		all = append(all, r+"/status")
	}
	return all
}

// needs are all that pilot-discovery does. A rule of the chart that no row needs fails TestEveryRuleIsNeeded, a row
// without a rule TestNeedsAreAllowed.
var needs = []need{
	{why: "the source", start: true, resources: []string{"namespaces", "nodes", "pods", "services"}, verbs: watches},
	{why: "the source", start: true, group: "discovery.k8s.io", resources: []string{"endpointslices"}, verbs: watches},
	{why: "the source", start: true, group: "apiextensions.k8s.io", resources: []string{"customresourcedefinitions"}, verbs: watches},
	{why: "the source", start: true, group: "networking.istio.io", resources: []string{"destinationrules", "envoyfilters", "gateways", "proxyconfigs", "serviceentries", "sidecars", "virtualservices", "workloadentries", "workloadgroups"}, verbs: watches},
	{why: "the source", start: true, group: "security.istio.io", resources: []string{"authorizationpolicies", "peerauthentications", "requestauthentications"}, verbs: watches},
	{why: "the source", start: true, group: "telemetry.istio.io", resources: []string{"telemetries"}, verbs: watches},
	{why: "the source", start: true, group: "extensions.istio.io", resources: []string{"trafficextensions", "wasmplugins"}, verbs: watches},
	{why: "the source", group: "gateway.networking.k8s.io", resources: []string{"backendtlspolicies", "gatewayclasses", "gateways", "grpcroutes", "httproutes", "listenersets", "referencegrants", "tcproutes", "tlsroutes", "udproutes"}, verbs: watches},
	{why: "the source", start: true, group: "networking.k8s.io", resources: []string{"ingressclasses", "ingresses"}, verbs: watches},
	{why: "the source", start: true, namespace: namespace, resources: []string{"configmaps"}, name: "istio", verbs: watches},

	{why: "tokens of workloads", group: "authentication.k8s.io", resources: []string{"tokenreviews"}, verbs: []string{"create"}},
	{why: "the roots for workloads", start: true, resources: []string{"configmaps"}, verbs: []string{"create"}},
	{why: "the roots for workloads", start: true, resources: []string{"configmaps"}, name: "istio-ca-root-cert", verbs: []string{"list", "watch", "update"}},
	{why: "remote clusters", start: true, namespace: namespace, resources: []string{"secrets"}, verbs: watches},
	{why: "certificates of gateways", resources: []string{"secrets"}, verbs: watches},
	{why: "which gateways may have them", group: "authorization.k8s.io", resources: []string{"subjectaccessreviews"}, verbs: []string{"create"}},
	{why: "the root", start: true, namespace: namespace, resources: []string{"secrets"}, verbs: []string{"create"}},
	{why: "the root", start: true, namespace: namespace, resources: []string{"secrets"}, name: "istio-ca-secret", verbs: []string{"get", "update"}},
	{why: "rotation of the root", start: true, namespace: namespace, resources: []string{"configmaps"}, verbs: []string{"create"}},
	{why: "rotation of the root", start: true, namespace: namespace, resources: []string{"configmaps"}, name: "pilothouse-ca-instances", verbs: []string{"get", "patch"}},
	{why: "used join tokens", namespace: namespace, resources: []string{"configmaps"}, name: "pilothouse-join-tokens", verbs: []string{"get", "patch"}},
	{why: "statuses", start: true, group: "networking.istio.io", resources: statuses("destinationrules"), verbs: []string{"patch"}},
	{why: "statuses", group: "networking.istio.io", resources: statuses("envoyfilters", "gateways", "proxyconfigs", "serviceentries", "sidecars", "virtualservices", "workloadentries", "workloadgroups"), verbs: []string{"patch"}},
	{why: "statuses", start: true, group: "security.istio.io", resources: statuses("authorizationpolicies", "peerauthentications", "requestauthentications"), verbs: []string{"patch"}},
	{why: "statuses", start: true, group: "telemetry.istio.io", resources: statuses("telemetries"), verbs: []string{"patch"}},
	{why: "statuses", start: true, group: "extensions.istio.io", resources: statuses("trafficextensions", "wasmplugins"), verbs: []string{"patch"}},
	{why: "statuses", group: "gateway.networking.k8s.io", resources: statuses("backendtlspolicies", "gatewayclasses", "gateways", "grpcroutes", "httproutes", "listenersets", "tcproutes", "tlsroutes", "udproutes"), verbs: []string{"patch"}},
	{why: "addresses of Ingresses", group: "networking.k8s.io", resources: statuses("ingresses"), verbs: []string{"patch"}},
	{why: "Gateways: what runs them", start: true, group: "apps", resources: []string{"deployments"}, verbs: watches},
	{why: "Gateways: what runs them", group: "apps", resources: []string{"deployments"}, verbs: []string{"create", "get", "patch"}},
	{why: "Gateways: what runs them", start: true, resources: []string{"serviceaccounts"}, verbs: watches},
	{why: "Gateways: what runs them", resources: []string{"serviceaccounts", "services"}, verbs: []string{"create", "get", "patch"}},
	{why: "Gateways: what runs them", group: "autoscaling", resources: []string{"horizontalpodautoscalers"}, verbs: []string{"create", "get", "patch"}},
	{why: "Gateways: what runs them", group: "policy", resources: []string{"poddisruptionbudgets"}, verbs: []string{"create", "get", "patch"}},
	{why: "certificates that BackendTLSPolicies name, and patches of what runs Gateways", resources: []string{"configmaps"}, verbs: []string{"get"}},
	{why: "Gateways: their class", group: "gateway.networking.k8s.io", resources: []string{"gatewayclasses"}, verbs: []string{"create"}},
	{why: "statuses of all replicas' proxies", start: true, namespace: namespace, resources: []string{"configmaps"}, name: "pilothouse-status-instances", verbs: []string{"get", "patch"}},
	{why: "proxies that register themselves", group: "networking.istio.io", resources: []string{"workloadentries"}, verbs: []string{"create", "delete", "get", "update"}},
	{why: "which replicas hold registered proxies", namespace: namespace, resources: []string{"configmaps"}, name: "pilothouse-registration-instances", verbs: []string{"get", "patch"}},
	{why: "election of a leader", start: true, namespace: namespace, group: "coordination.k8s.io", resources: []string{"leases"}, verbs: []string{"create"}},
	{why: "election of a leader", start: true, namespace: namespace, group: "coordination.k8s.io", resources: []string{"leases"}, name: "pilothouse-leader", verbs: []string{"get", "update"}},
	{why: "election of the leader of a revision", start: true, namespace: namespace, group: "coordination.k8s.io", resources: []string{"leases"}, name: "pilothouse-leader-default", verbs: []string{"get", "update"}},

	{why: "webhooks", start: true, group: "admissionregistration.k8s.io", resources: []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}, verbs: watches},
	{why: "webhooks", start: true, group: "admissionregistration.k8s.io", resources: []string{"mutatingwebhookconfigurations"}, name: "istio-sidecar-injector", verbs: []string{"patch"}},
	{why: "webhooks", start: true, group: "admissionregistration.k8s.io", resources: []string{"mutatingwebhookconfigurations"}, name: "istio-revision-tag-prod", verbs: []string{"patch"}},
	{why: "webhooks of istioctl's tags", group: "admissionregistration.k8s.io", resources: []string{"mutatingwebhookconfigurations"}, name: "istio-revision-tag-old", verbs: []string{"patch"}},
	{why: "webhooks", start: true, group: "admissionregistration.k8s.io", resources: []string{"validatingwebhookconfigurations"}, name: "istio-validator-" + namespace, verbs: []string{"patch"}},
	{why: "webhooks: the probe that is refused", start: true, namespace: namespace, group: "networking.istio.io", resources: []string{"gateways"}, verbs: []string{"create"}},
	{why: "injection", start: true, namespace: namespace, resources: []string{"configmaps"}, name: "istio-sidecar-injector", verbs: watches},
	{why: "injection: Pods without a proxy", resources: []string{"events"}, verbs: []string{"create", "patch"}},
}

// request is one question that the API server asks RBAC.
type request struct{ namespace, group, resource, name, verb string }

func (n need) requests() []request {
	var all []request
	for _, resource := range n.resources {
		for _, verb := range n.verbs {
			all = append(all, request{n.namespace, n.group, resource, n.name, verb})
		}
	}
	return all
}

// grant is one rule of the chart, which holds in a namespace or, if that is empty, everywhere.
type grant struct {
	namespace string
	rule      rbacv1.PolicyRule
}

// allows says what RBAC says.
func (g grant) allows(r request) bool {
	has := func(list []string, x string) bool { return slices.Contains(list, x) || slices.Contains(list, "*") }
	return (g.namespace == "" || g.namespace == r.namespace) && has(g.rule.APIGroups, r.group) && has(g.rule.Resources, r.resource) && has(g.rule.Verbs, r.verb) &&
		(len(g.rule.ResourceNames) == 0 || slices.Contains(g.rule.ResourceNames, r.name))
}

// withTag are the values that the needs are those of. With withoutGateways, those whose reason begins with ofGateways are none.
const (
	withTag         = "revisionTags: [prod]\nexternalRevisionTags: [old]"
	withoutGateways = withTag + "\nenv: {PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER: \"false\"}"
	ofGateways      = "Gateways: "
)

// grants are the rules of the chart.
func grants(t *testing.T, values string) []grant {
	t.Helper()
	objects := mustRender(t, "pilothouse", values)
	var all []grant
	for _, rule := range find[rbacv1.ClusterRole](t, objects, "ClusterRole", "istiod-clusterrole-"+namespace).Rules {
		all = append(all, grant{"", rule})
	}
	for _, rule := range find[rbacv1.Role](t, objects, "Role", "istiod").Rules {
		all = append(all, grant{namespace, rule})
	}
	return all
}

// forbidden lists the needs that rules do not allow; without leaves those of Gateways out.
func forbidden(grants []grant, without bool) []string {
	var all []string
	for _, n := range needs {
		if without && strings.HasPrefix(n.why, ofGateways) {
			continue
		}
		for _, r := range n.requests() {
			if !slices.ContainsFunc(grants, func(g grant) bool { return g.allows(r) }) {
				all = append(all, fmt.Sprintf("%s: %s %s.%s %q in %q", n.why, r.verb, r.resource, r.group, r.name, r.namespace))
			}
		}
	}
	return all
}

// TestEveryRuleIsNeeded fails for a part of a rule, a resource with a verb and a name, that nothing needs: without
// it, nothing would be forbidden, whether Gateways are deployed or not.
func TestEveryRuleIsNeeded(t *testing.T) {
	all, fewer := grants(t, withTag), grants(t, withoutGateways)
	if missing := append(forbidden(all, false), forbidden(fewer, true)...); len(missing) > 0 {
		t.Fatalf("no rule allows\n%s", strings.Join(missing, "\n"))
	}
	needed := func(all []grant, g grant, p part, off bool) bool {
		i := slices.IndexFunc(all, func(x grant) bool { return reflect.DeepEqual(x, g) })
		return i >= 0 && len(forbidden(append(append(slices.Clone(all[:i]), all[i+1:]...), without(g, p)...), off)) > 0
	}
	for _, g := range fewer {
		if !slices.ContainsFunc(all, func(x grant) bool { return reflect.DeepEqual(x, g) }) {
			t.Errorf("without Gateways there is one more rule: %+v", g)
		}
	}
	for _, g := range all {
		for _, part := range parts(g) {
			if !needed(all, g, part, false) && !needed(fewer, g, part, true) {
				t.Errorf("nothing needs %v in the rule %+v", part, g)
			}
		}
		if slices.Contains(g.rule.Resources, "*") || slices.Contains(g.rule.Verbs, "*") || slices.Contains(g.rule.APIGroups, "*") {
			t.Errorf("the rule %+v has a wildcard", g)
		}
	}
}

// part is what one rule allows for one resource, verb and name.
type part struct{ group, resource, verb, name string }

func parts(g grant) []part {
	names := g.rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var all []part
	for _, group := range g.rule.APIGroups {
		for _, resource := range g.rule.Resources {
			for _, verb := range g.rule.Verbs {
				for _, name := range names {
					all = append(all, part{group, resource, verb, name})
				}
			}
		}
	}
	return all
}

// without returns rules that allow what a rule does, except one part of it.
func without(g grant, removed part) []grant {
	var all []grant
	for _, p := range parts(g) {
		if p == removed {
			continue
		}
		rule := rbacv1.PolicyRule{APIGroups: []string{p.group}, Resources: []string{p.resource}, Verbs: []string{p.verb}}
		if p.name != "" {
			rule.ResourceNames = []string{p.name}
		}
		all = append(all, grant{g.namespace, rule})
	}
	return all
}

// as is a client with a token of a ServiceAccount in the namespace of the releases.
func (c *cluster) as(t *testing.T, account string) kubernetes.Interface {
	t.Helper()
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestNeedsAreAllowed asks the API server, as the chart's ServiceAccount, whether each need is allowed, and
// whether what would give the cluster away is not.
func TestNeedsAreAllowed(t *testing.T) {
	c := startCluster(t)
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), withTag); err != nil {
		t.Fatal(err)
	}
	reviews := c.as(t, "istiod").AuthorizationV1().SelfSubjectAccessReviews()
	allowed := func(r request) bool {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Group: r.group, Resource: r.resource, Name: r.name, Verb: r.verb,
		}}}
		answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status.Allowed
	}
	for _, n := range needs {
		for _, r := range n.requests() {
			if !allowed(r) {
				t.Errorf("%s: %+v is forbidden", n.why, r)
			}
		}
	}
	for _, r := range []request{
		{"", "", "secrets", "", "get"}, {"", "", "secrets", "", "update"}, {namespace, "", "secrets", "other", "get"}, {"default", "", "secrets", "", "create"},
		{"default", "", "secrets", "istio-ca-secret", "get"}, {namespace, "", "secrets", "istio-ca-secret", "delete"}, {namespace, "", "secrets", "cacerts", "get"},
		{"", "", "pods", "", "create"}, {"", "", "pods", "", "delete"}, {"", "", "nodes", "", "patch"}, {"", "", "configmaps", "other", "update"}, {"", "", "configmaps", "", "list"}, {namespace, "", "configmaps", "other", "list"},
		{"default", "", "serviceaccounts/token", "default", "create"}, {"", "rbac.authorization.k8s.io", "clusterrolebindings", "", "create"},
		{"", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "another", "patch"}, {"", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "create"},
		{"", "networking.istio.io", "virtualservices", "", "update"}, {"default", "networking.istio.io", "gateways", "", "create"},
		{"default", "coordination.k8s.io", "leases", "pilothouse-leader", "update"}, {namespace, "coordination.k8s.io", "leases", "other", "update"}, {"", "apps", "deployments", "", "delete"}, {"", "apps", "daemonsets", "", "create"},
		{"", "", "services", "", "delete"}, {"", "", "serviceaccounts", "", "delete"}, {"", "rbac.authorization.k8s.io", "roles", "", "create"},
	} {
		if allowed(r) {
			t.Errorf("%+v is allowed", r)
		}
	}
}
