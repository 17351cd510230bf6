package object

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Policy is what is known of a document that is, or may be, a security policy and
// cannot be used: enough to say what must be denied because of it. The zero value is
// that of any other document. Values are comparable.
type Policy struct {
	// Broken is set where there is such a document.
	Broken bool
	// Key is its key as far as it is known: Kind, Namespace and Name are empty where
	// they cannot. An empty Namespace means that the policy may be for the whole mesh.
	Key Key
	// Labels are those of the workloads that it selects, "a=b,c=d" in order of their
	// names; empty where it is for the whole namespace, or that is unknown.
	Labels string
}

// OnlyPlaintext says whether denying plaintext is as much as the policy could have asked
// for. It is for a PeerAuthentication, which cannot refuse mutual TLS; and it is all that
// is denied where the namespace is unknown, so that one stray bracket does not end
// all traffic of a mesh.
func (p Policy) OnlyPlaintext() bool {
	return p.Key.Kind == PeerAuthentication || p.Key.Namespace == ""
}

// Denies describes, for people, what is denied because of the policy.
func (p Policy) Denies() string {
	what, to := "every connection", "every workload of the mesh"
	if p.OnlyPlaintext() {
		what = "plaintext"
	}
	switch ns := p.Key.Namespace; {
	case ns != "" && p.Labels != "":
		to = fmt.Sprintf("workloads %s of namespace %s", p.Labels, ns)
	case ns != "":
		to = fmt.Sprintf("every workload of namespace %s (of the mesh, where that is the root namespace)", ns)
	}
	return what + " to " + to
}

// String is the key as far as it is known: "PeerAuthentication shop/a", "a security
// policy of namespace shop", "a PeerAuthentication".
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

// LabelText writes labels as Policy has them. It is empty where one of them is invalid
// in Kubernetes: what was meant to be selected is unknown then.
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

// isLabel says whether s consists of letters, digits and, inside, some of between.
func isLabel(s, between string, most int) bool {
	word := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' }
	for i := 0; i < len(s); i++ {
		if !word(s[i]) && (i == 0 || i == len(s)-1 || strings.IndexByte(between, s[i]) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= most
}
