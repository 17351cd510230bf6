// Package explain says who may do what at a workload, and which policy says so.
//
// It consists of pure functions: what is decided is what package simulate evaluates, from the configuration that the proxies of
// both sides are sent, so that an explanation and what happens cannot differ in how a policy is read. The objects only give names
// and places to what was evaluated. Functions are safe for concurrent use.
package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Decision is what becomes of a connection or a request.
type Decision string

// The decisions.
const (
	Allowed Decision = "allowed"
	Denied  Decision = "denied"
	// Answered: the client's own proxy answers, with Status or, without one, by closing the connection.
	Answered Decision = "answered"
	// Asks: an external authorizer decides.
	Asks Decision = "asks"
	// Depends: it differs between the workloads, or between the subsets that a client reaches one by.
	Depends Decision = "depends"
	// Unknown: it cannot be evaluated; the reason says why.
	Unknown Decision = "unknown"
)

// The states of a rule.
const (
	Matches = "matches"
	Other   = "no match"
	// NotReached: what comes before it has refused.
	NotReached = "not reached"
	// NotHere: the rule has fields of HTTP, and so is not part of what a connection is checked against.
	NotHere = "HTTP only"
)

// Rule is a rule of an AuthorizationPolicy that selects the workload.
type Rule struct {
	// Object is the policy, such as "AuthorizationPolicy shop/viewers", and Origin its file and line, or its place in the cluster;
	// empty if that is not known.
	Object string `json:"object"`
	Origin string `json:"origin,omitempty"`
	// Index is that in spec.rules; -1 for a policy without rules.
	Index int `json:"index"`
	// Action is ALLOW, DENY, AUDIT or CUSTOM, and Provider whom CUSTOM asks.
	Action   string `json:"action"`
	Provider string `json:"provider,omitempty"`
	// DryRun is set for a policy that decides nothing.
	DryRun bool   `json:"dryRun,omitempty"`
	State  string `json:"state"`
}

// String is the rule as one writes it: its path, its object, and where that is.
func (r Rule) String() string {
	s := r.Object
	if r.Index >= 0 {
		s = fmt.Sprintf("spec.rules[%d] of %s", r.Index, r.Object)
	}
	return s + at(r.Origin)
}

// at is where an object is, to be appended to its name.
func at(origin string) string {
	if origin == "" {
		return ""
	}
	return " (" + origin + ")"
}

// Token is a rule of a RequestAuthentication: tokens that a request may have.
type Token struct {
	Object    string   `json:"object,omitempty"`
	Origin    string   `json:"origin,omitempty"`
	Issuer    string   `json:"issuer"`
	Audiences []string `json:"audiences,omitempty"`
	// From are the places where a token is looked for.
	From []string `json:"from"`
}

// Source is an object and its place.
type Source struct {
	Object string `json:"object"`
	Origin string `json:"origin,omitempty"`
}

// Verdict is what becomes of a connection, or of a request on it, at a workload.
type Verdict struct {
	Decision Decision `json:"decision"`
	// Status is that of a request that the proxy answers itself: 400, 401 or 403, else 0.
	Status int `json:"status,omitempty"`
	// Reason is what decides, in words, and By the rule, if it is one.
	Reason string `json:"reason"`
	By     *Rule  `json:"by,omitempty"`
	// Path is the path that policies see, normalized; empty for a connection.
	Path string `json:"path,omitempty"`
	// Mode is that of mutual TLS at the port, STRICT, PERMISSIVE or DISABLE, or CLOSED if nothing is accepted; ModeFrom is the
	// PeerAuthentication that sets it, nil for the default.
	Mode     string  `json:"mutualTLS,omitempty"`
	ModeFrom *Source `json:"peerAuthentication,omitempty"`
	// Rules are all rules for the workload, in the order in which they are evaluated.
	Rules []Rule `json:"rules,omitempty"`
	// Tokens are the rules of RequestAuthentications; nil for a connection.
	Tokens []Token `json:"jwtRules,omitempty"`
	// Notes are what else one should know.
	Notes []string `json:"notes,omitempty"`
}

// Decide returns what becomes of a connection at a listener, and of a request on it, which is nil for one that is not HTTP. objects
// are those that the listener was made from, PeerAuthentications in the order in which they count.
func Decide(l *listenerv3.Listener, c simulate.Connection, r *simulate.Request, objects []*object.Object, now time.Time) Verdict {
	out := Verdict{Decision: Unknown, Mode: mode(l, c), ModeFrom: modeFrom(objects, uint32(c.Destination.Port()))}
	chain, err := simulate.Chain(l, c)
	if err != nil {
		out.Reason = err.Error()
		return out
	}
	found := compiledOf(chain)
	v, err := simulate.Evaluate(l, c, r, now)
	out.Rules = rules(v, found, objects)
	if !found.http {
		r = nil
	}
	if r != nil {
		out.Tokens = tokens(found.jwt, objects)
	}
	if err != nil {
		out.Reason = err.Error()
		return out
	}
	out.Path, out.Status = withoutQuery(v.Path), v.Status
	out.decide(v, c, found)
	return out
}

// decide puts a verdict of the simulation into words.
func (v *Verdict) decide(s simulate.Verdict, c simulate.Connection, found compiled) {
	by := func(name string) *Rule {
		n, ok := parse(name)
		if !ok {
			return nil
		}
		i := slices.IndexFunc(v.Rules, func(r Rule) bool { return r.Object == n.object && (r.Index == n.index || r.Index < 0) })
		if i < 0 {
			return nil
		}
		return &v.Rules[i]
	}
	v.Decision = Denied
	if s.Allowed {
		v.Decision = Allowed
	}
	v.By = by(s.By)
	restricting := v.having("ALLOW")
	switch {
	case s.By == simulate.NoChain && v.Mode == "CLOSED":
		v.Reason = "the workload accepts nothing: a policy is not valid, or its proxy cannot enforce one; pilotctl objects says which"
	case s.By == simulate.NoChain && c.TLS == nil:
		v.Reason = "the port accepts mutual TLS only"
		if v.ModeFrom != nil {
			v.Reason += ": " + v.ModeFrom.Object + at(v.ModeFrom.Origin)
		}
	case s.By == simulate.NoChain:
		v.Reason = "the port accepts no such connection"
	case !s.Allowed && v.By != nil && v.By.Action == "CUSTOM":
		v.Reason = v.By.String() + " asks " + v.By.Provider + ", which cannot be used; pilotctl objects says why"
	case !s.Allowed && v.By != nil:
		v.Reason = v.By.Action + " by " + v.By.String()
	case s.Status == 400:
		v.Reason = "the path is refused by path normalization"
	case s.Status == 401:
		v.Reason = "the token is not one that the JWT rules accept" + issuers(v.Tokens)
	case s.Status == 403 && found.jwtFilter == s.By:
		v.Reason = "the token is for none of the audiences of its JWT rule"
	case s.By == simulate.NoAllow && len(restricting) > 0:
		v.Reason = "no rule matches of " + strings.Join(restricting, " and ")
	case s.By == simulate.NoAllow:
		v.Reason = "an ALLOW policy has no rule that lets anything in"
	case !s.Allowed:
		v.Reason = s.By
	case v.By != nil:
		v.Reason = v.By.Action + " by " + v.By.String()
	case len(v.Rules) == 0:
		v.Reason = "no AuthorizationPolicy selects the workload"
	default:
		v.Reason = "no rule denies it, and no ALLOW policy selects the workload"
	}
	if s.Allowed && len(s.Asks) > 0 {
		v.Decision, v.By = Asks, by(s.Asks[0])
		v.Reason = "an external authorizer decides"
		if v.By != nil {
			v.Reason = v.By.Provider + " decides, by " + v.By.String()
		}
	}
	for _, r := range v.Rules {
		switch {
		case r.State != Matches:
		case r.DryRun:
			v.Notes = append(v.Notes, "dry run: it would be "+r.Action+" by "+r.String())
		case r.Action == "AUDIT":
			v.Notes = append(v.Notes, "AUDIT by "+r.String())
		}
	}
	if s.Allowed && c.TLS != nil && !found.tls {
		v.Notes = append(v.Notes, "the proxy does not end TLS here: the application gets the encrypted connection")
	}
}

// having are the policies with an action that are in force, each once.
func (v *Verdict) having(action string) (out []string) {
	for _, r := range v.Rules {
		if text := r.Object + at(r.Origin); r.Action == action && !r.DryRun && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// issuers are those of JWT rules, to be appended.
func issuers(all []Token) string {
	var out []string
	for _, t := range all {
		if !slices.Contains(out, t.Issuer) {
			out = append(out, t.Issuer)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ": want a valid one of " + strings.Join(out, " or ")
}

// modeFrom is the PeerAuthentication that the mode of a port is from, the first that sets one; nil for the default.
func modeFrom(objects []*object.Object, port uint32) *Source {
	seen := map[string]bool{}
	for _, o := range objects {
		spec, ok := o.Spec.(*security.PeerAuthentication)
		level, mode := o.Namespace, security.PeerAuthentication_MutualTLS_UNSET
		if len(spec.GetSelector().GetMatchLabels()) > 0 {
			level, mode = "with a selector", spec.GetPortLevelMtls()[port].GetMode()
		}
		if !ok || seen[level] {
			continue // of those of one level the first counts
		}
		seen[level] = true
		if mode == security.PeerAuthentication_MutualTLS_UNSET {
			mode = spec.GetMtls().GetMode()
		}
		if mode != security.PeerAuthentication_MutualTLS_UNSET {
			return &Source{o.Key.String(), o.Origin.String()}
		}
	}
	return nil
}

// compiled is what a filter chain has that policies were compiled to.
type compiled struct {
	// http is set for a chain for HTTP, and tls if it ends TLS.
	http, tls bool
	rules     map[string]bool
	jwt       *jwtv3.JwtAuthentication
	jwtFilter string
}

// compiledOf reads a filter chain, nil for none. What it cannot read the simulation refuses.
func compiledOf(chain *listenerv3.FilterChain) compiled {
	out := compiled{rules: map[string]bool{}, tls: chain.GetTransportSocket() != nil}
	add := func(all ...*rbacv3.RBAC) {
		for _, r := range all {
			for name := range r.GetPolicies() {
				out.rules[name] = true
			}
		}
	}
	for _, f := range chain.GetFilters() {
		network, manager := &networkrbacv3.RBAC{}, &hcmv3.HttpConnectionManager{}
		if f.GetTypedConfig().UnmarshalTo(network) == nil {
			add(network.GetRules(), network.GetShadowRules())
		}
		if f.GetTypedConfig().UnmarshalTo(manager) != nil {
			continue
		}
		out.http = true
		for _, h := range manager.GetHttpFilters() {
			r, j := &httprbacv3.RBAC{}, &jwtv3.JwtAuthentication{}
			switch {
			case h.GetDisabled():
			case h.GetTypedConfig().UnmarshalTo(r) == nil:
				add(r.GetRules(), r.GetShadowRules())
			case h.GetTypedConfig().UnmarshalTo(j) == nil:
				out.jwt, out.jwtFilter = j, h.GetName()
			}
		}
	}
	return out
}

// ruleName has the parts of the name of a rule, as package authz writes it, which is Istio's.
var ruleName = regexp.MustCompile(`^(?:istio-ext-authz-(.*)-)?ns\[([^\[\]]*)\]-policy\[([^\[\]]*)\]-rule\[([0-9]+)\](?:-deny-due-to-bad-CUSTOM-action)?$`)

type parsed struct {
	provider, object string
	index            int
}

func parse(name string) (parsed, bool) {
	m := ruleName.FindStringSubmatch(name)
	if m == nil {
		return parsed{}, false
	}
	index, err := strconv.Atoi(m[4])
	return parsed{m[1], object.Key{Kind: object.AuthorizationPolicy, Namespace: m[2], Name: m[3]}.String(), index}, err == nil
}

// actions in the order in which their rules are evaluated.
var actions = []string{"CUSTOM", "AUDIT", "DENY", "ALLOW"}

// rules are those of the policies, and those of policies that are not among the objects.
func rules(v simulate.Verdict, found compiled, objects []*object.Object) (out []Rule) {
	state, action, dry := map[string]string{}, map[string]string{}, map[string]bool{}
	names := map[parsed]string{}
	note := func(all []simulate.Match, as string) {
		for _, m := range all {
			state[m.Rule], action[m.Rule], dry[m.Rule] = as, strings.Replace(m.Action, "LOG", "AUDIT", 1), m.DryRun
		}
	}
	for name := range found.rules {
		if n, ok := parse(name); ok {
			names[n], state[name] = name, NotReached
		}
	}
	note(v.Rules, Matches)
	note(v.Others, Other)
	for _, o := range objects {
		spec, ok := o.Spec.(*security.AuthorizationPolicy)
		if !ok {
			continue
		}
		n := parsed{spec.GetProvider().GetName(), o.Key.String(), 0}
		one := Rule{Object: n.object, Origin: o.Origin.String(), Action: spec.GetAction().String(), Provider: n.provider, DryRun: model.DryRun(o.Meta.Annotations[model.DryRunAnnotation])}
		switch spec.GetAction() {
		case security.AuthorizationPolicy_CUSTOM:
			one.DryRun = false
		case security.AuthorizationPolicy_AUDIT:
			one.DryRun, n.provider = false, ""
		case security.AuthorizationPolicy_ALLOW, security.AuthorizationPolicy_DENY:
			n.provider = ""
		}
		for i := range max(len(spec.GetRules()), 1) {
			n.index = i
			one.Index, one.State = i, NotHere
			if len(spec.GetRules()) == 0 {
				one.Index = -1
			}
			if name, ok := names[n]; ok {
				one.State = state[name]
				delete(names, n)
			}
			out = append(out, one)
		}
	}
	for n, name := range names {
		one := Rule{Object: n.object, Index: n.index, Action: action[name], Provider: n.provider, DryRun: dry[name] && n.provider == "", State: state[name]}
		if n.provider != "" {
			one.Action = "CUSTOM"
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(slices.Index(actions, a.Action), slices.Index(actions, b.Action)), strings.Compare(a.Object, b.Object), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// tokens are the JWT rules of a filter; nil is none.
func tokens(c *jwtv3.JwtAuthentication, objects []*object.Object) (out []Token) {
	names := make([]string, 0, len(c.GetProviders()))
	for name := range c.GetProviders() {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	for _, name := range names {
		p := c.GetProviders()[name]
		t := Token{Issuer: p.GetIssuer(), Audiences: p.GetAudiences()}
		for _, h := range p.GetFromHeaders() {
			t.From = append(t.From, "header "+strings.TrimSpace(h.GetName()+": "+h.GetValuePrefix()))
		}
		for _, n := range p.GetFromParams() {
			t.From = append(t.From, "query parameter "+n)
		}
		for _, n := range p.GetFromCookies() {
			t.From = append(t.From, "cookie "+n)
		}
		if len(t.From) == 0 {
			t.From = []string{"header authorization: Bearer", "query parameter access_token"}
		}
		for _, o := range objects {
			spec, ok := o.Spec.(*security.RequestAuthentication)
			if ok && slices.ContainsFunc(spec.GetJwtRules(), func(r *security.JWTRule) bool { return r.GetIssuer() == t.Issuer }) {
				t.Object, t.Origin = o.Key.String(), o.Origin.String()
			}
		}
		out = append(out, t)
	}
	return out
}

// mode is the mode of mutual TLS that a listener has for where a connection goes, by what it accepts.
func mode(l *listenerv3.Listener, c simulate.Connection) string {
	probe := func(c simulate.Connection) *listenerv3.FilterChain {
		chain, err := simulate.Chain(l, c)
		if err != nil {
			return nil
		}
		return chain
	}
	to := simulate.Connection{Source: c.Source, Destination: c.Destination}
	plain := probe(to)
	if plain == nil {
		to.Protocol = "http/1.1"
		plain = probe(to)
	}
	to = simulate.Connection{Source: c.Source, Destination: c.Destination, TLS: &simulate.TLS{ALPN: meshALPN}}
	tls := probe(to)
	mutual := false
	if s := tls.GetTransportSocket(); s != nil {
		context := &tlsv3.DownstreamTlsContext{}
		mutual = s.GetTypedConfig().UnmarshalTo(context) == nil && slices.ContainsFunc(context.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs(), func(s *tlsv3.SdsSecretConfig) bool {
			return s.GetName() == mesh.SecretDefault
		})
	}
	switch {
	case mutual && plain != nil:
		return mesh.Permissive.String()
	case mutual:
		return mesh.Strict.String()
	case plain != nil || tls != nil:
		return mesh.Disable.String()
	}
	return "CLOSED"
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}
