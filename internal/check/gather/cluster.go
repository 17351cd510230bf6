package gather

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1 "istio.io/api/mesh/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/check"
	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/rootconfigmap"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Labels of namespaces, Pods and configurations.
const (
	labelTag       = "istio.io/tag"
	labelInjection = "istio-injection"
	planeSelector  = "app=istiod"
)

// cluster finds out what the API server says.
func (g *gatherer) cluster(ctx context.Context, s check.Situation) {
	f := g.facts
	g.ask(ctx, g.server)
	g.ask(ctx, func(ctx context.Context) {
		ns, err := g.o.Client.CoreV1().Namespaces().Get(ctx, g.o.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.Phase = found("", nil)
			return
		}
		phase := corev1.NamespaceActive
		if err == nil && (ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating) {
			phase = corev1.NamespaceTerminating
		}
		f.Phase = found(string(phase), err)
	})
	g.ask(ctx, g.resources)
	g.ask(ctx, g.planes)
	g.ask(ctx, g.webhooks)
	g.ask(ctx, g.service)
	if s&check.Before != 0 {
		g.permissions(ctx)
	}
	if s&check.After != 0 {
		g.ask(ctx, g.validation)
	}
}

// afterwards finds out what needs other facts.
func (g *gatherer) afterwards(ctx context.Context) {
	g.account(ctx)
	g.ask(ctx, g.roots)
	g.ask(ctx, g.injection)
}

func (g *gatherer) server(ctx context.Context) {
	client, err := rest.HTTPClientFor(g.o.Config)
	if err != nil {
		g.facts.Server, g.facts.ServerClock = found(check.Server{}, err), check.Clock{Err: err.Error()}
		return
	}
	base, _, err := rest.DefaultServerUrlFor(g.o.Config)
	if err != nil {
		g.facts.Server, g.facts.ServerClock = found(check.Server{}, err), check.Clock{Err: err.Error()}
		return
	}
	s, err := get(ctx, client, base.JoinPath("version").String())
	g.facts.ServerClock = s.clock
	var v version.Info
	if err == nil {
		err = json.Unmarshal(s.text, &v)
	}
	major, _ := strconv.Atoi(v.Major)
	minor, _ := strconv.Atoi(strings.TrimRight(v.Minor, "+")) // as some providers have it
	if err == nil && (major == 0 || minor == 0) {
		err = fmt.Errorf("the version is %q", v.Major+"."+v.Minor)
	}
	g.facts.Server = found(check.Server{Address: g.o.Config.Host, Major: major, Minor: minor, Version: printable.Escape(v.GitVersion)}, err)
}

func (g *gatherer) resources(ctx context.Context) {
	out := map[string][]string{}
	var failure error
	for _, name := range []string{"networking.istio.io", "security.istio.io"} {
		var group metav1.APIGroup
		text, err := g.o.Client.Discovery().RESTClient().Get().AbsPath("/apis", name).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, &group)
		}
		for _, v := range group.Versions {
			var list metav1.APIResourceList
			text, more := g.o.Client.Discovery().RESTClient().Get().AbsPath("/apis", name, v.Version).DoRaw(ctx)
			if more == nil {
				more = json.Unmarshal(text, &list)
			}
			if more != nil {
				err = more
			}
			for _, r := range list.APIResources {
				if !strings.Contains(r.Name, "/") { // a subresource
					out[r.Name+"."+name] = append(out[r.Name+"."+name], v.Version)
				}
			}
		}
		if err != nil {
			failure = err
		}
	}
	g.facts.Resources = found(out, failure)
}

func (g *gatherer) planes(ctx context.Context) {
	list, err := g.o.Client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{LabelSelector: planeSelector})
	var out []check.Plane
	if err == nil {
		for _, d := range list.Items {
			p := check.Plane{
				Namespace: d.Namespace, Name: d.Name, Revision: revisionOf(d.Labels), Ours: d.Labels["app.kubernetes.io/part-of"] == "pilothouse",
				Desired: 1, Ready: int(d.Status.ReadyReplicas), Observed: d.Status.ObservedGeneration >= d.Generation,
			}
			if d.Spec.Replicas != nil {
				p.Desired = int(*d.Spec.Replicas)
			}
			out = append(out, p)
		}
	}
	g.facts.Planes = found(out, err)
}

func revisionOf(labels map[string]string) string {
	if r := labels[mesh.RevisionLabel]; r != "" {
		return r
	}
	return "default"
}

func (g *gatherer) revision() string {
	if g.o.Revision != "" {
		return g.o.Revision
	}
	return "default"
}

func (g *gatherer) webhooks(ctx context.Context) {
	api := g.o.Client.AdmissionregistrationV1()
	mutating, err := api.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		g.facts.Webhooks = found[[]check.Webhook](nil, err)
		return
	}
	validating, err := api.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		g.facts.Webhooks = found[[]check.Webhook](nil, err)
		return
	}
	var out []check.Webhook
	for _, c := range mutating.Items {
		for _, h := range c.Webhooks {
			out = append(out, webhook(c.ObjectMeta, false, h.Name, h.ClientConfig, h.FailurePolicy))
		}
	}
	for _, c := range validating.Items {
		for _, h := range c.Webhooks {
			out = append(out, webhook(c.ObjectMeta, true, h.Name, h.ClientConfig, h.FailurePolicy))
		}
	}
	g.facts.Webhooks = found(out, nil)
}

func webhook(m metav1.ObjectMeta, validating bool, name string, c admissionregistrationv1.WebhookClientConfig, p *admissionregistrationv1.FailurePolicyType) check.Webhook {
	w := check.Webhook{
		Configuration: m.Name, Name: name, Validating: validating, Revision: m.Labels[mesh.RevisionLabel], Tag: m.Labels[labelTag],
		Bundle: c.CABundle, Fails: p == nil || *p == admissionregistrationv1.Fail,
	}
	if s := c.Service; s != nil {
		w.Namespace, w.Service = s.Namespace, s.Name
		if s.Path != nil {
			w.Path = *s.Path
		}
	}
	return w
}

// permissions asks what the user may do.
func (g *gatherer) permissions(ctx context.Context) {
	g.review(ctx, check.AskedRules(g.o.Namespace, g.o.Revision), &g.facts.Permissions, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		r, err := g.o.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: a}}, metav1.CreateOptions{})
		return err == nil && r.Status.Allowed, err
	})
}

// account asks what the control plane's ServiceAccount may do.
func (g *gatherer) account(ctx context.Context) {
	name, deploys := "default", true
	if d := g.deployment(ctx); d != nil {
		name = cmp.Or(d.Spec.Template.Spec.ServiceAccountName, name)
		deploys = deploysGateways(d)
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:" + g.o.Namespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + g.o.Namespace, "system:authenticated"},
	}
	rules := check.AccountRules(g.o.Namespace, g.o.Revision)
	validates := slices.ContainsFunc(g.facts.Webhooks.Value, func(w check.Webhook) bool { return w.Validating && w.Revision == g.revision() })
	rules = slices.DeleteFunc(rules, func(r check.Rule) bool { // the chart grants it only with a configuration that validates
		return !validates && r.Resource == "validatingwebhookconfigurations" && r.Verb == "patch"
	})
	if deployer := check.DeployerRules(g.o.Namespace); !deploys {
		rules = slices.DeleteFunc(rules, func(r check.Rule) bool { return slices.Contains(deployer, r) })
	}
	g.review(ctx, rules, &g.facts.Account, func(ctx context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		s := spec
		s.ResourceAttributes = a
		r, err := g.o.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: s}, metav1.CreateOptions{})
		return err == nil && r.Status.Allowed, err
	})
}

// deploysGateways reports whether a control plane runs the Gateways of the Gateway API; the chart grants what that needs only then.
func deploysGateways(d *appsv1.Deployment) bool {
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER" && e.Value == "false" {
				return false
			}
		}
	}
	return true
}

// review asks for each rule whether it is allowed.
func (g *gatherer) review(ctx context.Context, rules []check.Rule, into *check.Known[[]check.Permission], allowed func(context.Context, *authorizationv1.ResourceAttributes) (bool, error)) {
	out := make([]check.Permission, len(rules))
	var mu sync.Mutex
	*into = found(out, nil)
	for i, r := range rules {
		g.ask(ctx, func(ctx context.Context) {
			resource, subresource, _ := strings.Cut(r.Resource, "/")
			yes, err := allowed(ctx, &authorizationv1.ResourceAttributes{Namespace: r.Namespace, Group: r.Group, Resource: resource, Subresource: subresource, Name: r.Name, Verb: r.Verb})
			mu.Lock()
			defer mu.Unlock()
			out[i] = check.Permission{Rule: r, Allowed: yes}
			if err != nil {
				*into = found(out, err)
			}
		})
	}
}

// deployment is that of the control plane; nil if it is not known.
func (g *gatherer) deployment(ctx context.Context) *appsv1.Deployment {
	for _, p := range g.facts.Planes.Value {
		if p.Namespace == g.o.Namespace && p.Revision == g.revision() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			d, err := g.o.Client.AppsV1().Deployments(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err == nil {
				return d
			}
		}
	}
	return nil
}

func (g *gatherer) service(ctx context.Context) {
	list, err := g.o.Client.CoreV1().Services(g.o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: planeSelector})
	if err != nil {
		g.facts.Service = found(check.Service{}, err)
		return
	}
	var out check.Service
	for _, s := range list.Items {
		if revisionOf(s.Labels) != g.revision() {
			continue
		}
		out = check.Service{Name: s.Name, Exists: true}
		for _, p := range s.Spec.Ports {
			out.Ports = append(out.Ports, int(p.Port))
		}
	}
	if out.Exists {
		endpoints, err := g.o.Client.DiscoveryV1().EndpointSlices(g.o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + out.Name})
		if err != nil {
			g.facts.Service = found(check.Service{}, err)
			return
		}
		for _, s := range endpoints.Items {
			for _, e := range s.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					out.Ready++
				}
			}
		}
	}
	g.facts.Service = found(out, nil)
}

// defaultRootConfigMap is the ConfigMap with the roots, unless rootConfigMapVariable of the control plane names another.
const (
	defaultRootConfigMap  = "istio-ca-root-cert"
	rootConfigMapVariable = "PILOT_CA_CERT_CONFIGMAP"
)

func (g *gatherer) roots(ctx context.Context) {
	name := defaultRootConfigMap
	if d := g.deployment(ctx); d != nil {
		for _, c := range d.Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				if e.Name == rootConfigMapVariable && e.Value != "" {
					name = e.Value
				}
			}
		}
	}
	namespaces, err := g.o.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		g.facts.Roots = found[map[string]string](nil, err)
		return
	}
	copies, err := g.o.Client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		g.facts.Roots = found[map[string]string](nil, err)
		return
	}
	selectors, err := rootconfigmap.Selectors(g.mesh(ctx))
	if err != nil {
		g.facts.Roots = found[map[string]string](nil, err)
		return
	}
	out := map[string]string{}
	for _, ns := range namespaces.Items {
		if rootconfigmap.Wants(&ns, selectors) {
			out[ns.Name] = ""
		}
	}
	for _, m := range copies.Items {
		if _, wanted := out[m.Namespace]; wanted {
			out[m.Namespace] = m.Data["root-cert.pem"]
		}
	}
	g.facts.Roots = found(out, nil)
}

// mesh is the mesh configuration in force; nil, the defaults, if no replica says it.
func (g *gatherer) mesh(ctx context.Context) *meshv1.MeshConfig {
	for _, r := range g.o.Replicas {
		s, err := get(ctx, r.Client, r.Base+"/debug/mesh")
		m := &meshv1.MeshConfig{}
		if err == nil && (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(s.text, m) == nil {
			return m
		}
	}
	return nil
}

// injection has the API server create a Pod, as a dry run.
func (g *gatherer) injection(ctx context.Context) {
	namespace := g.o.Namespace
	if list, err := g.o.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err == nil { // without it, the own one serves
		for _, ns := range list.Items {
			if ns.DeletionTimestamp == nil && g.selects(ns.Labels) {
				namespace = ns.Name
				break
			}
		}
	}
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pilotctl-check-", Namespace: namespace, Labels: map[string]string{"sidecar.istio.io/inject": "true"}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "app", Image: "pilotctl-check", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}}},
	}
	if r := g.revision(); r != "default" {
		pod.Labels[mesh.RevisionLabel] = r
	}
	made, err := g.o.Client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	out := check.Injection{Namespace: namespace}
	if err != nil {
		out.Refused = printable.Escape(printable.Clip(err.Error(), maxSaid))
	} else {
		for _, c := range append(made.Spec.InitContainers, made.Spec.Containers...) {
			out.Injected = out.Injected || c.Name == "istio-proxy"
		}
	}
	g.facts.Injection = found(out, nil)
}

// selects reports whether a namespace has its Pods injected by the control plane.
func (g *gatherer) selects(labels map[string]string) bool {
	if injection := labels[labelInjection]; injection != "" {
		return injection == "enabled" && g.revision() == "default"
	}
	return labels[mesh.RevisionLabel] == g.revision()
}

// validation has the API server create an object that must be refused, as a dry run.
func (g *gatherer) validation(ctx context.Context) {
	m := metav1.ObjectMeta{Name: "pilotctl-check", Namespace: g.o.Namespace, Annotations: map[string]string{admit.RejectAnnotation: "true"}}
	if r := g.revision(); r != "default" {
		m.Labels = map[string]string{mesh.RevisionLabel: r}
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": m, "spec": map[string]any{}})
	if err != nil {
		g.facts.Validation = found(check.Validation{}, err)
		return
	}
	err = g.o.Client.CoreV1().RESTClient().Post().AbsPath("/apis/networking.istio.io/v1/namespaces", g.o.Namespace, "gateways").
		Param("dryRun", metav1.DryRunAll).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	out := check.Validation{}
	if err != nil {
		out.Refused = printable.Escape(printable.Clip(err.Error(), maxSaid))
	}
	g.facts.Validation = found(out, nil)
}
