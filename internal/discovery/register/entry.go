package register

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Proxy is what a proxy that registers itself says of itself. Namespace and Account are those that it has proved.
type Proxy struct {
	Namespace, Account, Group string
	Address                   netip.Addr
	// Network, Locality and Labels may be empty.
	Network  string
	Locality mesh.Locality
	Labels   map[string]string
	// Reports is set if its agent reports the health of its application.
	Reports bool
}

// Reason is why a proxy is refused, for metrics.
type Reason string

// The reasons.
const (
	NotAuthenticated Reason = "not_authenticated"
	NoAddress        Reason = "no_address"
	NoGroup          Reason = "no_group"
	OtherAccount     Reason = "other_account"
	InvalidEntry     Reason = "invalid_entry"
)

// Refusal is the error of a proxy that may not register itself.
type Refusal struct {
	Reason Reason
	Text   string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Text }

// ProxyOf returns the proxy of a node that names a WorkloadGroup, whose caller has proved to be who. The error is a *Refusal.
func ProxyOf(n mesh.Node, who mesh.Identity) (Proxy, error) {
	p := Proxy{
		Namespace: who.Namespace, Account: who.ServiceAccount, Group: n.Metadata.AutoRegisterGroup, Network: n.Metadata.Network,
		Locality: n.Locality, Labels: n.Metadata.Labels, Reports: n.Metadata.ReadinessProbe,
	}
	if who.Namespace == "" || who.ServiceAccount == "" {
		return p, &Refusal{NotAuthenticated, fmt.Sprintf("WorkloadGroup %q is for proxies that have proved their identity: connect to the secure port", p.Group)}
	}
	ips := n.IPs()
	if len(ips) == 0 {
		return p, &Refusal{NoAddress, fmt.Sprintf("register a proxy of WorkloadGroup %s/%s: the node has no IP address", p.Namespace, p.Group)}
	}
	p.Address = ips[0]
	return p, nil
}

func (p *Proxy) groupKey() object.Key {
	return object.Key{Kind: object.WorkloadGroup, Namespace: p.Namespace, Name: p.Group}
}

// maxName is the longest name of an object in Kubernetes.
const maxName = 253

// Key returns the key of the proxy's entry, which is named as Istio names it: by group, address and network. What may not be in a name
// is replaced; of a name that is too long, the beginning is left out.
func (p *Proxy) Key() object.Key {
	name := p.Group + "-" + strings.ReplaceAll(p.Address.String(), ":", "-")
	if p.Network != "" {
		name += "-" + p.Network
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '-'
	}, name)
	name = strings.Trim(name[max(0, len(name)-maxName):], "-.")
	return object.Key{Kind: object.WorkloadEntry, Namespace: p.Namespace, Name: name}
}

// Admit returns why a proxy may not register itself, a *Refusal, and nil if it may. conflict is set if an entry with its name
// was not registered: it stays as it is.
func (m *Machine) Admit(p Proxy, now time.Time) (conflict bool, err error) {
	group := m.groups[p.groupKey()]
	if group == nil {
		return false, &Refusal{NoGroup, fmt.Sprintf("there is no WorkloadGroup %s/%s: create it, or change AUTO_REGISTER_GROUP of the proxy", p.Namespace, p.Group)}
	}
	if want := accountOf(group); want != p.Account {
		return false, &Refusal{OtherAccount, fmt.Sprintf("WorkloadGroup %s/%s is for service account %q (spec.template.serviceAccount), but the proxy has %q", p.Namespace, p.Group, want, p.Account)}
	}
	e := m.wanted(group, &connection{proxy: p, at: now})
	e.Key = p.Key()
	for _, v := range config.Validate(*e) {
		if v.Severity == object.Error {
			return false, &Refusal{InvalidEntry, fmt.Sprintf("the proxy would have an invalid WorkloadEntry: %s", v.Error())}
		}
	}
	known := m.entries[p.Key()]
	return known != nil && !isRegistered(known.Object), nil
}

// localityLabel is how agents of Istio say where they are, in a form that is not allowed in a label. The node says it, too.
const localityLabel = "istio-locality"

// wanted returns the entry of a connected proxy.
func (m *Machine) wanted(group *object.Object, c *connection) *object.Object {
	spec, _ := group.Spec.(*networking.WorkloadGroup)
	e := &networking.WorkloadEntry{}
	if t := spec.GetTemplate(); t != nil {
		e = proto.Clone(t).(*networking.WorkloadEntry)
	}
	e.Address, e.ServiceAccount = c.proxy.Address.String(), c.proxy.Account
	e.Network = cmp.Or(c.proxy.Network, e.Network)
	e.Locality = cmp.Or(c.proxy.Locality.String(), e.Locality)
	// Those of the node override those of the group's metadata, and those the template's.
	labels := maps.Clone(e.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, spec.GetMetadata().GetLabels())
	maps.Copy(labels, c.proxy.Labels)
	delete(labels, localityLabel)
	e.Labels = labels
	annotations := map[string]string{}
	for name, v := range spec.GetMetadata().GetAnnotations() {
		if !mesh.IsRegistration(name) {
			annotations[name] = v
		}
	}
	annotations[mesh.AutoRegistrationGroup] = group.Name
	annotations[mesh.WorkloadController] = m.controller()
	annotations[mesh.ConnectedAt] = c.at.UTC().Format(time.RFC3339Nano)
	if c.proxy.Reports && !m.o.NoHealth {
		annotations[mesh.HealthChecksEnabled] = "true"
	}
	return &object.Object{Key: c.proxy.Key(), Meta: object.Meta{Labels: labels, Annotations: annotations}, Spec: e}
}

// sameEntry reports whether an entry is as it is wanted. It may have further annotations.
func sameEntry(e, want *object.Object) bool {
	if !maps.Equal(e.Meta.Labels, want.Meta.Labels) {
		return false
	}
	for name, v := range want.Meta.Annotations {
		if have, ok := e.Meta.Annotations[name]; !ok || have != v {
			return false
		}
	}
	for name := range e.Meta.Annotations {
		if _, wanted := want.Meta.Annotations[name]; !wanted && mesh.IsRegistration(name) {
			return false
		}
	}
	have, ok := e.Spec.(*networking.WorkloadEntry)
	return ok && proto.Equal(have, want.Spec.(*networking.WorkloadEntry))
}
