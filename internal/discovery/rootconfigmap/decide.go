package rootconfigmap

import (
	"maps"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	// key is the key with the roots.
	key = "root-cert.pem"
	// configLabel marks what Istio writes.
	configLabel = "istio.io/config"
)

// ignored are the namespaces that no workload of a mesh is in. Istio ignores the same.
var ignored = map[string]bool{"kube-system": true, "kube-public": true, "kube-node-lease": true, "local-path-storage": true}

// wants reports whether a namespace gets the ConfigMap; without selectors each does that is not ignored.
func wants(ns *corev1.Namespace, selectors []labels.Selector) bool {
	if ignored[ns.Name] || ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		return false
	}
	for _, s := range selectors {
		if s.Matches(labels.Set(ns.Labels)) {
			return true
		}
	}
	return len(selectors) == 0
}

// Selectors returns the discoverySelectors of a mesh configuration. The error names the first that is invalid.
func Selectors(m *meshv1.MeshConfig) ([]labels.Selector, error) {
	var out []labels.Selector
	for _, s := range m.GetDiscoverySelectors() {
		l := &metav1.LabelSelector{MatchLabels: s.GetMatchLabels()}
		for _, e := range s.GetMatchExpressions() {
			l.MatchExpressions = append(l.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.GetKey(), Operator: metav1.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues()})
		}
		selector, err := metav1.LabelSelectorAsSelector(l)
		if err != nil {
			return nil, err
		}
		out = append(out, selector)
	}
	return out, nil
}

// desired returns the ConfigMap of a namespace with the roots, and whether it differs from old, which is nil if
// there is none. What else old has stays.
func desired(old *corev1.ConfigMap, namespace, name, roots string) (*corev1.ConfigMap, bool) {
	if old == nil {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{configLabel: "true"}},
			Data:       map[string]string{key: roots},
		}, true
	}
	if old.Data[key] == roots && old.Labels[configLabel] == "true" {
		return old, false
	}
	out := old.DeepCopy()
	out.Data, out.Labels = maps.Clone(old.Data), maps.Clone(old.Labels)
	if out.Data == nil {
		out.Data = map[string]string{}
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Data[key], out.Labels[configLabel] = roots, "true"
	return out, true
}

// Bounds of the pace at which the same contents are written again to one namespace.
const (
	firstPause = time.Second
	maxPause   = 5 * time.Minute
	// quiet is after how long without a write a namespace begins anew.
	quiet = 10 * time.Minute
)

// pace delays writes to namespaces where somebody else changes the ConfigMap again and again, such as
// another control plane. It is not safe for concurrent use.
type pace struct {
	writes map[string]written
}

// written is the last write to a namespace.
type written struct {
	roots string
	at    time.Time
	// again is how often these roots have been written in a row before.
	again int
}

// wait returns how long a write must wait; the first write of other roots, and the first restoration, need not.
func (p *pace) wait(namespace, roots string, now time.Time) time.Duration {
	w, known := p.writes[namespace]
	if !known || w.roots != roots || w.again == 0 || now.Sub(w.at) >= quiet {
		return 0
	}
	pause := maxPause
	if shift := w.again - 1; shift < 16 {
		pause = min(maxPause, firstPause<<shift)
	}
	return max(0, pause-now.Sub(w.at))
}

// wrote notes a write, and returns how often these roots have been written in a row before.
func (p *pace) wrote(namespace, roots string, now time.Time) int {
	w, known := p.writes[namespace]
	next := written{roots: roots, at: now}
	if known && w.roots == roots && now.Sub(w.at) < quiet {
		next.again = w.again + 1
	}
	if p.writes == nil {
		p.writes = map[string]written{}
	}
	p.writes[namespace] = next
	return next.again
}

// forget drops a namespace that is gone.
func (p *pace) forget(namespace string) { delete(p.writes, namespace) }
