package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Service is one service of the mesh, or one outside that it knows.
type Service struct {
	// Key is unique among services.
	Key       string   `json:"-"`
	Host      string   `json:"host"`
	Namespace string   `json:"namespace"`
	External  bool     `json:"external,omitempty"`
	Ports     []string `json:"ports,omitempty"`
	Endpoints int      `json:"endpoints"`
	// Versions are the values of the label version of its endpoints, Routes where its VirtualService sends requests.
	Versions []Version `json:"versions,omitempty"`
	Routes   []Route   `json:"routes,omitempty"`
	// MutualTLS are the modes of its workloads' ports, each once; "no proxy" for those without one, "gateway" for routers, of which
	// Gateways say whom they ask for certificates.
	MutualTLS []string `json:"mutualTLS,omitempty"`
	// Groups are its workloads, by the policies that select them.
	Groups []Group `json:"-"`
	// Access says who may talk to it, and Policies which objects say so; RowsOf writes both from Groups.
	Access   []string `json:"access,omitempty"`
	Policies []string `json:"policies,omitempty"`
	// Workloads are its own, by the names that metrics have.
	Workloads []Workload `json:"-"`
	// Callers are what its workloads are as clients.
	Callers []Caller `json:"-"`
}

// Version is the number of endpoints with a version.
type Version struct {
	Name      string `json:"name"`
	Endpoints int    `json:"endpoints"`
}

// Route is one route of a VirtualService. Conditional is set if it is for some requests only.
type Route struct {
	Name        string        `json:"name,omitempty"`
	Conditional bool          `json:"conditional,omitempty"`
	To          []Destination `json:"to"`
}

// Destination is where a route leads, with its part in percent.
type Destination struct {
	Name    string  `json:"name"`
	Percent float64 `json:"percent"`
}

// Group are workloads that the same policies select. Strict is set if they accept mutual TLS only, Closed if they accept nothing. Gateway
// is set if they are routers: whether these ask a client for its certificate depends on the Gateway's server.
type Group struct {
	Policies                []Policy
	Strict, Closed, Gateway bool
	// TrustDomains are the mesh's and its aliases: a principal of one of them is one of each.
	TrustDomains []string
}

// Policy is an AuthorizationPolicy that is in force; one that is a dry run is not.
type Policy struct {
	Namespace, Name string
	Spec            *security.AuthorizationPolicy
}

// Caller is a workload as a client. Proxy is set if it has a proxy, which proves Identity.
type Caller struct {
	Identity mesh.Identity
	Proxy    bool
}

// Answer is whether a client may talk to a service.
type Answer string

// The answers.
const (
	Allowed Answer = "allowed"
	// Depends: it depends on the request, on the address, or on which of the workloads is meant.
	Depends Answer = "depends"
	Denied  Answer = "denied"
	// Unknown: there is no workload.
	Unknown Answer = "no endpoints"
)

// three is the truth of a condition of which not all is known.
type three int

const (
	no three = iota
	maybe
	yes
)

// Decide returns whether a caller may talk to the workloads of a group. [control-plane 1.10.5]
func Decide(g Group, c Caller) Answer {
	if g.Closed || g.Strict && !c.Proxy {
		return Denied
	}
	if g.Gateway {
		g.Gateway = false
		proved := Decide(g, c)
		if proved != Decide(g, Caller{}) {
			return Depends
		}
		return proved
	}
	allowed, any := no, false
	var refused three
	for _, p := range g.Policies {
		matches := no
		for _, r := range p.Spec.GetRules() {
			matches = max(matches, p.matches(r, c, g.TrustDomains))
		}
		switch p.Spec.GetAction() {
		case security.AuthorizationPolicy_ALLOW:
			allowed, any = max(allowed, matches), true
		case security.AuthorizationPolicy_DENY:
			refused = max(refused, matches)
		case security.AuthorizationPolicy_CUSTOM:
			refused = max(refused, min(matches, maybe)) // another program decides
		case security.AuthorizationPolicy_AUDIT:
		}
	}
	switch {
	case refused == yes || any && allowed == no:
		return Denied
	case refused == maybe || any && allowed == maybe:
		return Depends
	}
	return Allowed
}

// matches reports whether a rule is for a caller: maybe, if that depends on the request.
func (p Policy) matches(r *security.Rule, c Caller, trustDomains []string) three {
	from := yes
	if len(r.GetFrom()) > 0 {
		from = no
		for _, f := range r.GetFrom() {
			from = max(from, p.source(f.GetSource(), c, trustDomains))
		}
	}
	if len(r.GetTo())+len(r.GetWhen()) > 0 {
		return min(from, maybe)
	}
	return from
}

// source reports whether a source is a caller.
func (p Policy) source(s *security.Source, c Caller, trustDomains []string) three {
	id := c.Identity
	if !c.Proxy {
		id = mesh.Identity{} // nothing is proved
	}
	var principals []string
	if id != (mesh.Identity{}) {
		names := []string{id.TrustDomain}
		if slices.Contains(trustDomains, id.TrustDomain) {
			names = trustDomains
		}
		for _, id.TrustDomain = range names {
			principals = append(principals, strings.TrimPrefix(id.SPIFFE(), "spiffe://"))
		}
		id.TrustDomain = c.Identity.TrustDomain
	}
	account := func(value string) bool {
		namespace, name, ok := strings.Cut(value, "/")
		if !ok {
			namespace, name = p.Namespace, value
		}
		return len(principals) > 0 && id.Namespace == namespace && id.ServiceAccount == name
	}
	is := func(texts ...string) func(string) bool {
		return func(value string) bool {
			return slices.ContainsFunc(texts, func(text string) bool { return text != "" && fits(value, text) })
		}
	}
	out := yes
	for _, field := range []struct {
		values, not []string
		is          func(string) bool
	}{
		{s.GetPrincipals(), s.GetNotPrincipals(), is(principals...)},
		{s.GetServiceAccounts(), s.GetNotServiceAccounts(), account},
		{s.GetTrustDomains(), s.GetNotTrustDomains(), is(id.TrustDomain)},
		{s.GetNamespaces(), s.GetNotNamespaces(), is(id.Namespace)},
	} {
		if len(field.values) > 0 && !slices.ContainsFunc(field.values, field.is) || slices.ContainsFunc(field.not, field.is) {
			return no
		}
	}
	if len(s.GetRequestPrincipals())+len(s.GetNotRequestPrincipals())+len(s.GetIpBlocks())+len(s.GetNotIpBlocks())+len(s.GetRemoteIpBlocks())+len(s.GetNotRemoteIpBlocks()) > 0 {
		out = maybe
	}
	return out
}

// fits reports whether a text is a value, which may begin or end with a star.
func fits(value, text string) bool {
	switch {
	case value == "*":
		return true
	case strings.HasPrefix(value, "*"):
		return strings.HasSuffix(text, value[1:])
	case strings.HasSuffix(value, "*"):
		return strings.HasPrefix(text, value[:len(value)-1])
	}
	return value == text
}

// between returns whether the workloads of one service may talk to another.
func between(from, to *Service) Answer {
	if to.External {
		return Allowed // nobody of the mesh decides that
	}
	if len(from.Callers) == 0 || len(to.Groups) == 0 {
		return Unknown
	}
	answer := Answer("")
	for _, c := range from.Callers {
		for _, g := range to.Groups {
			switch a := Decide(g, c); answer {
			case "", a:
				answer = a
			default:
				return Depends
			}
		}
	}
	return answer
}

// Neighbours are the services that one may talk to, or may not, and those that may talk to it.
type Neighbours struct {
	Callers map[string]Answer `json:"callers"`
	Callees map[string]Answer `json:"callees"`
	// From and To are the requests of callers, and those to callees; nil without metrics. Senders are the workloads that send most of
	// them to the service, also those behind no service; MoreSenders is how many there are besides.
	From        map[string]Rate `json:"from,omitempty"`
	To          map[string]Rate `json:"to,omitempty"`
	Senders     []Sender        `json:"senders,omitempty"`
	MoreSenders int             `json:"moreSenders,omitempty"`
}

// NeighboursOf returns the neighbours of the service with a key, with the requests between them; false if there is none. Services without
// workloads in the mesh call nobody.
func NeighboursOf(services []Service, t Traffic, key string) (Neighbours, bool) {
	i := slices.IndexFunc(services, func(s Service) bool { return s.Key == key })
	if i < 0 {
		return Neighbours{}, false
	}
	s := &services[i]
	out := Neighbours{Callers: map[string]Answer{}, Callees: map[string]Answer{}}
	for j := range services {
		other := &services[j]
		if i == j {
			continue
		}
		if len(other.Callers) > 0 {
			out.Callers[other.Key] = between(other, s)
		}
		if len(s.Callers) > 0 {
			out.Callees[other.Key] = between(s, other)
		}
	}
	out.traffic(t, services, s)
	return out, true
}

// access says in words who may talk to the workloads of groups, and names the policies that say so.
func access(groups []Group) (lines, policies []string) {
	for _, g := range groups {
		switch {
		case g.Closed:
			lines = append(lines, "nobody: a policy that is not valid denies everything")
			continue
		case len(g.Policies) == 0:
			lines = append(lines, "everybody")
			continue
		}
		var custom, deny, allow []string
		allows := false
		for _, p := range g.Policies {
			policies = append(policies, p.Namespace+"/"+p.Name)
			var rules []string
			for _, r := range p.Spec.GetRules() {
				rules = append(rules, ruleText(r))
			}
			switch p.Spec.GetAction() {
			case security.AuthorizationPolicy_ALLOW:
				allow, allows = append(allow, rules...), true
			case security.AuthorizationPolicy_DENY:
				deny = append(deny, rules...)
			case security.AuthorizationPolicy_CUSTOM:
				custom = append(custom, rules...)
			case security.AuthorizationPolicy_AUDIT:
			}
		}
		switch {
		case !allows:
			lines = append(lines, "everybody")
		case len(allow) == 0:
			lines = append(lines, "nobody")
		}
		lines = append(lines, allow...)
		for _, d := range deny {
			lines = append(lines, "but not: "+d)
		}
		for _, c := range custom {
			lines = append(lines, "another program decides about: "+c)
		}
	}
	slices.Sort(policies)
	if len(groups) > 1 {
		lines = append([]string{fmt.Sprintf("differs between %d kinds of its workloads:", len(groups))}, lines...)
	}
	return lines, slices.Compact(policies)
}

// ruleText is a rule in words.
func ruleText(r *security.Rule) string {
	var from []string
	for _, f := range r.GetFrom() {
		s := f.GetSource()
		from = append(from, cmp.Or(fields(
			"", s.GetPrincipals(), "not ", s.GetNotPrincipals(), "account ", s.GetServiceAccounts(), "not account ", s.GetNotServiceAccounts(),
			"trust domain ", s.GetTrustDomains(), "not trust domain ", s.GetNotTrustDomains(), "namespace ", s.GetNamespaces(), "not namespace ", s.GetNotNamespaces(),
			"token of ", s.GetRequestPrincipals(), "no token of ", s.GetNotRequestPrincipals(), "address ", s.GetIpBlocks(), "not address ", s.GetNotIpBlocks(),
			"original address ", s.GetRemoteIpBlocks(), "not original address ", s.GetNotRemoteIpBlocks()), "everybody"))
	}
	out := cmp.Or(strings.Join(from, " or "), "everybody")
	var to []string
	for _, t := range r.GetTo() {
		o := t.GetOperation()
		to = append(to, cmp.Or(fields("", o.GetMethods(), "not ", o.GetNotMethods(), "path ", o.GetPaths(), "not path ", o.GetNotPaths(),
			"host ", o.GetHosts(), "not host ", o.GetNotHosts(), "port ", o.GetPorts(), "not port ", o.GetNotPorts()), "anything"))
	}
	if len(to) > 0 {
		out += ", for " + strings.Join(to, " or ")
	}
	for _, w := range r.GetWhen() {
		out += ", if " + w.GetKey() + " " + fields("is ", w.GetValues(), "is not ", w.GetNotValues())
	}
	return out
}

// fields are lists with what is before each; empty ones are left out. Arguments are a text and a list in turn.
func fields(args ...any) string {
	var out []string
	for i := 0; i < len(args); i += 2 {
		list, _ := args[i+1].([]string)
		if list = once(list); len(list) > 0 {
			out = append(out, fmt.Sprint(args[i])+strings.Join(list[:min(len(list), 5)], " or "))
		}
	}
	return strings.Join(out, ", ")
}

// once are the texts of a list, each where it is first.
func once(list []string) (out []string) {
	for _, text := range list {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}
