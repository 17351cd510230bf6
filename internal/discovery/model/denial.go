package model

import (
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1 "istio.io/api/type/v1beta1"

	"github.com/pilothouse/pilothouse/internal/incr"
)

// Denial replaces an invalid security policy: the workloads that the policy might select accept no
// plaintext, or no connection at all, regardless of other policies. Values are comparable.
type Denial struct {
	// Name is unique among the denials of one namespace. It has no spaces.
	Name string
	// Namespace is that of the workloads. If it is empty or the root namespace, the denial is for
	// the whole mesh.
	Namespace string
	// Labels select workloads of the namespace, "a=b,c=d"; empty for all of them.
	Labels string
	// Gateways are names of Gateways of the Gateway API, "a,b", or "*" for all of the namespace. If it is not empty, the proxies
	// of these are selected, and otherwise only workloads with the labels.
	Gateways string
	// Everything denies every connection; otherwise only plaintext is denied.
	Everything bool
}

// everywhere is the namespace of denials for the whole mesh. It is not a valid name of a namespace.
const everywhere = "*"

// deny is what a row denies.
type deny uint8

const (
	denyNothing deny = iota
	denyPlaintext
	denyEverything
)

// Deny replaces all denials in force.
func (m *Model) Deny(denials []Denial) {
	now := map[Denial]bool{}
	for _, d := range denials {
		now[d] = true
		if !m.denials[d] {
			row := &PeerAuthentication{Row: d.row(), Spec: &security.PeerAuthentication{}, deny: denyPlaintext}
			if d.Everything {
				row.deny = denyEverything
			}
			if d.Gateways != "" {
				row.gateways = strings.Split(d.Gateways, ",")
			}
			if d.Labels != "" {
				row.Spec.Selector = &typev1.WorkloadSelector{MatchLabels: map[string]string{}}
				for _, pair := range strings.Split(d.Labels, ",") {
					k, v, _ := strings.Cut(pair, "=")
					row.Spec.Selector.MatchLabels[k] = v
				}
			}
			m.tables.peers.Put(d.key(), row, "ns:"+row.Namespace)
		}
	}
	for d := range m.denials {
		if !now[d] {
			m.tables.peers.Delete(d.key())
		}
	}
	m.denials = now
}

func (d Denial) row() Row {
	if d.Namespace == "" {
		return Row{Namespace: everywhere, Name: d.Name}
	}
	return Row{Namespace: d.Namespace, Name: d.Name}
}

// denialPrefix begins the keys of the rows of denials; no namespace has a space.
const denialPrefix = "denial "

// key returns the key of the denial's row, which is unique and not that of an object.
func (d Denial) key() string {
	key := denialPrefix + d.row().Key() + " " + d.Labels
	if d.Gateways != "" {
		key += " gateways " + d.Gateways
	}
	if d.Everything {
		key += " everything"
	}
	return key
}

// denied returns what the denials for a whole namespace deny together.
func (m *Model) denied(r *incr.Reader, ns string) deny {
	most := denyNothing
	for _, p := range m.rules.policies.Of(r, ns) {
		if len(p.Spec.GetSelector().GetMatchLabels())+len(p.gateways) == 0 {
			most = max(most, p.deny)
		}
	}
	return most
}
