package inject

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Reason says why a Pod gets a proxy or not. It is a word for events and the label of a metric.
type Reason string

// The reasons. [control-plane 1.15.2]
const (
	// HostNetwork: the Pod shares its node's network, whose traffic must not be captured.
	HostNetwork Reason = "HostNetwork"
	// SystemNamespace: the namespace belongs to Kubernetes.
	SystemNamespace Reason = "SystemNamespace"
	// ControlPlane: the Pod is one of the control plane, which must start without it.
	ControlPlane Reason = "ControlPlane"
	// Label: the Pod's label sidecar.istio.io/inject says so.
	Label Reason = "Label"
	// Annotation: the Pod's annotation sidecar.istio.io/inject says so.
	Annotation Reason = "Annotation"
	// NeverSelector: a neverInjectSelector matches the Pod's labels.
	NeverSelector Reason = "NeverSelector"
	// AlwaysSelector: an alwaysInjectSelector matches the Pod's labels.
	AlwaysSelector Reason = "AlwaysSelector"
	// Namespace: the labels of the namespace, with those of the Pod, choose another revision, or none.
	Namespace Reason = "Namespace"
	// Policy: nothing about the Pod decides, so the policy of the configuration does.
	Policy Reason = "Policy"
)

// Decision is whether a Pod gets a proxy.
type Decision struct {
	Inject bool
	Reason Reason
	// Message is the reason in a sentence for people.
	Message string
	// Warning says that a label or annotation has an invalid value, which was ignored; else it is empty.
	Warning string
}

const (
	labelInject         = "sidecar.istio.io/inject" // a label, and an annotation
	labelNamespace      = "istio-injection"
	labelNetwork        = "topology.istio.io/network"
	annotationTemplates = "inject.istio.io/templates"
)

// systemNamespaces never get proxies: what is in them makes the cluster run.
var systemNamespaces = []string{"kube-system", "kube-public", "kube-node-lease", "local-path-storage"}

// controlPlaneLabels are the labels of Pods of the control plane.
var controlPlaneLabels = map[string]string{"app": "istiod", "istio": "pilot"}

// Decide says whether the Pod of r gets a proxy. [control-plane 1.15.1, 1.15.2]
func (c *Config) Decide(r Request) Decision {
	pod := r.Pod
	ns := firstNonEmpty(pod.Namespace, r.Namespace)
	switch {
	case pod.Spec.HostNetwork:
		return decision(false, HostNetwork, "the Pod has host networking")
	case slices.Contains(systemNamespaces, ns):
		return decision(false, SystemNamespace, "namespace %s belongs to Kubernetes", ns)
	case ns == c.values.Global.IstioNamespace && ofControlPlane(pod.Labels):
		return decision(false, ControlPlane, "the Pod belongs to the control plane")
	}
	asked, given, reason, warning := wish(pod.Labels, pod.Annotations)
	d := c.decide(r, asked, given, reason)
	d.Warning = warning
	return d
}

func (c *Config) decide(r Request, asked, given bool, reason Reason) Decision {
	if given && !asked {
		return decision(false, reason, "%s %s is false", strings.ToLower(string(reason)), labelInject)
	}
	if r.NamespaceLabels != nil {
		if why := c.notChosen(r.NamespaceLabels, r.Pod.Labels, given && reason == Label); why != "" {
			return decision(false, Namespace, "%s", why)
		}
	}
	if given {
		return decision(true, reason, "%s %s is true", strings.ToLower(string(reason)), labelInject)
	}
	if s := match(c.never, r.Pod.Labels); s != "" {
		return decision(false, NeverSelector, "neverInjectSelector %s matches", s)
	}
	if s := match(c.always, r.Pod.Labels); s != "" {
		return decision(true, AlwaysSelector, "alwaysInjectSelector %s matches", s)
	}
	if !c.enabled {
		return decision(false, Policy, "policy is disabled, and neither label nor annotation %s is true", labelInject)
	}
	return decision(true, Policy, "policy is enabled")
}

func decision(inject bool, reason Reason, format string, args ...any) Decision {
	return Decision{Inject: inject, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// wish returns what the label says, else what the annotation says. A value that is neither true nor false
// is as if it were not there.
func wish(podLabels, annotations map[string]string) (inject, given bool, reason Reason, warning string) {
	value, ok := podLabels[labelInject]
	reason = Label
	if !ok {
		value, reason = annotations[labelInject], Annotation
	}
	switch value {
	case "true":
		return true, true, reason, ""
	case "false":
		return false, true, reason, ""
	case "":
		return false, false, "", ""
	}
	return false, false, "", fmt.Sprintf("invalid %s %s %q is ignored: want true or false", strings.ToLower(string(reason)), labelInject, clip(value))
}

// notChosen returns why this revision's webhooks do not select a Pod, by the labels of its namespace and
// its own; empty if one of them does.
func (c *Config) notChosen(ns, pod map[string]string, asked bool) string {
	injection, hasInjection := ns[labelNamespace]
	if hasInjection {
		if injection != "enabled" {
			return fmt.Sprintf("the namespace has the label %s=%s", labelNamespace, injection)
		}
		if !c.isDefault() {
			return fmt.Sprintf("the namespace has the label %s, which chooses revision %s, and this is %s", labelNamespace, defaultRevision, c.revision)
		}
		return ""
	}
	if rev, ok := ns[mesh.RevisionLabel]; ok {
		if !slices.Contains(c.revisions, rev) {
			return fmt.Sprintf("the namespace chooses revision %s, and this is %s", rev, c.revision)
		}
		return ""
	}
	if rev, ok := pod[mesh.RevisionLabel]; ok {
		if !slices.Contains(c.revisions, rev) {
			return fmt.Sprintf("the Pod chooses revision %s, and this is %s", rev, c.revision)
		}
		return ""
	}
	if (asked || c.values.Webhook.ByDefault) && c.isDefault() {
		return ""
	}
	return fmt.Sprintf("neither the namespace nor the Pod asks for injection by the label %s, %s or %s", labelNamespace, mesh.RevisionLabel, labelInject)
}

// isDefault reports whether Pods that name no revision are for this one.
func (c *Config) isDefault() bool { return slices.Contains(c.revisions, defaultRevision) }

func ofControlPlane(l map[string]string) bool {
	for k, v := range controlPlaneLabels {
		if l[k] == v {
			return true
		}
	}
	return false
}

func match(list []labels.Selector, podLabels map[string]string) string {
	for _, s := range list {
		if s.Matches(labels.Set(podLabels)) {
			return s.String()
		}
	}
	return ""
}

// nativeSince is the first version in which native sidecars are a stable feature.
var nativeSince = version.MustParseGeneric("1.33.0")

// isNative reports whether the proxy is a native sidecar.
func (c *Config) isNative(r Request) bool {
	if v, ok := r.Pod.Annotations[annotationNative]; ok {
		return v != "false"
	}
	if c.native != NativeAuto {
		return c.native == NativeOn
	}
	return len(r.Kubelets) > 0 && !slices.ContainsFunc(r.Kubelets, func(v string) bool {
		parsed, err := version.ParseGeneric(v)
		return err != nil || parsed.LessThan(nativeSince)
	})
}
