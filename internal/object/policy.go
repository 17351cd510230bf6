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
	case ns != "" && p.Labels != "":
		to = fmt.Sprintf("workloads %s of namespace %s", p.Labels, ns)
	case ns != "":
		to = fmt.Sprintf("every workload of namespace %s (of the mesh, if it is the root namespace)", ns)
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
