package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Policy describes a rejected document that is or may be a security policy, so that what it may have
// been meant to deny can be denied. It is zero for any other document. Values are comparable.
type Policy struct {
	// Broken is set if there is such a document.
	Broken bool
	// Key is the document's key. Kind, Namespace and Name are each empty if unknown. If the
	// Namespace is unknown, the policy may be for the whole mesh.
	Key Key
	// Labels are those of the workloads that the policy selects, "a=b,c=d" sorted by name; empty if
	// it is for the whole namespace, or if they are unknown.
	Labels string
	// Gateways are the names of Gateways of the Gateway API in the namespace whose proxies the policy selects, "a,b" sorted, or "*"
	// for all of them. If it is not empty, only these are selected, and the workloads with the labels, if there are any.
	Gateways string
}

// Target is one of the objects in the targetRefs of a policy.
type Target struct{ Group, Kind, Name, Namespace string }

// IsGateway reports whether the target is a Gateway of the Gateway API.
func (t Target) IsGateway() bool { return t.Group == gatewayGroup && t.Kind == "Gateway" }

// IsWaypoints reports whether only waypoints can be meant by the target.
func (t Target) IsWaypoints() bool {
	switch t.Kind {
	case "Service":
		return t.Group == "" || t.Group == "core"
	case "ServiceEntry":
		return t.Group == "networking.istio.io"
	case "GatewayClass":
		return t.Group == gatewayGroup
	}
	return false
}

const gatewayGroup = "gateway.networking.k8s.io"

// BrokenPolicy returns the Policy of a rejected document with a selector's labels, if it has a selector, and these targets.
// It is zero if nothing but waypoints can be meant, of which there are none.
func BrokenPolicy(k Key, selector bool, labels string, targets []Target) Policy {
	p := Policy{Broken: true, Key: k, Labels: labels}
	if k.Namespace == "" { // it may be for the whole mesh
		p.Labels = ""
		return p
	}
	if len(targets) == 0 || k.Kind == PeerAuthentication || selector && labels == "" {
		return p
	}
	var names []string
	for _, t := range targets {
		switch {
		case t.IsWaypoints():
		case t.IsGateway() && isLabel(t.Name, "-.", 63):
			names = append(names, t.Name)
		default: // what was meant is unknown
			names = append(names, "*")
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); slices.Contains(names, "*") {
		names = []string{"*"}
	}
	if p.Gateways = strings.Join(names, ","); p.Gateways == "" && p.Labels == "" {
		return Policy{}
	}
	return p
}

// OnlyPlaintext reports whether only plaintext is denied, not every connection. That is so for a
// PeerAuthentication, which cannot deny mutual TLS, and if the namespace is unknown, so that a syntax
// error in one document does not stop all traffic of the mesh.
func (p Policy) OnlyPlaintext() bool {
	return p.Key.Kind == PeerAuthentication || p.Key.Namespace == ""
}

// Denies returns a description of what is denied because of the policy, such as "plaintext to every
// workload of the mesh".
func (p Policy) Denies() string {
	what, to := "every connection", "every workload of the mesh"
	if p.OnlyPlaintext() {
		what = "plaintext"
	}
	switch ns := p.Key.Namespace; {
	case ns != "" && p.Gateways == "*":
		to = "every proxy of a Gateway of namespace " + ns
	case ns != "" && p.Gateways != "":
		to = fmt.Sprintf("the proxies of Gateway %s of namespace %s", strings.ReplaceAll(p.Gateways, ",", ", "), ns)
	case ns != "" && p.Labels != "":
		to = fmt.Sprintf("workloads %s of namespace %s", p.Labels, ns)
	case ns != "":
		to = fmt.Sprintf("every workload of namespace %s (of the mesh, if it is the root namespace)", ns)
	}
	if p.Gateways != "" && p.Labels != "" {
		to += " and to workloads " + p.Labels
	}
	return what + " to " + to
}

// String returns the known parts of the key: "PeerAuthentication shop/a", "a security policy of
// namespace shop", "a PeerAuthentication".
func (p Policy) String() string {
	if p.Key.Kind != "" && p.Key.Name != "" && p.Key.Namespace != "" {
		return p.Key.String()
	}
	s := "a security policy"
	if p.Key.Kind != "" {
		s = "a " + string(p.Key.Kind)
	}
	if p.Key.Name != "" {
		s += " named " + p.Key.Name
	}
	if p.Key.Namespace != "" {
		s += " of namespace " + p.Key.Namespace
	}
	return s
}

// LabelText formats labels for Policy.Labels. It returns "" if one of them is invalid in Kubernetes,
// since the intended selection is then unknown.
func LabelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !isLabel(k, "-_./", 317) || labels[k] != "" && !isLabel(labels[k], "-_.", 63) {
			return ""
		}
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// isLabel reports whether s has 1 to limit bytes, which are letters, digits and, except for the first
// and the last, those in inner.
func isLabel(s, inner string, limit int) bool {
	alphanumeric := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
	for i := 0; i < len(s); i++ {
		if !alphanumeric(s[i]) && (i == 0 || i == len(s)-1 || strings.IndexByte(inner, s[i]) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= limit
}
