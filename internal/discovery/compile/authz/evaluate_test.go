package authz_test

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/authz"
	"github.com/pilothouse/pilothouse/test/policytest"
)

// request is what a client sends, and from where.
type request struct {
	identity           string // without its scheme; "" without a certificate
	method, host, path string
	seen               string // the path after normalization
	headers            map[string]string
	remote             string // of x-forwarded-for; "" without
	tcp                bool
	port               string
	claims             map[string]any // of its token; nil without one
}

// sent is what goes over the wire.
func (r request) sent() policytest.Request {
	headers := map[string][]string{}
	for k, v := range r.headers {
		headers[k] = []string{v}
	}
	if r.remote != "" {
		headers["x-forwarded-for"] = []string{r.remote}
	}
	return policytest.Request{Method: r.method, Host: r.host, Path: r.path, Headers: headers}
}

// allowed is what Istio's documentation says of policies and a request, written without a look at the translation.
func allowed(policies []authz.Policy, r request) bool {
	allow, some := false, false
	for _, p := range policies {
		if p.DryRun {
			continue
		}
		hit := slices.ContainsFunc(p.Spec.GetRules(), func(rule *security.Rule) bool {
			return ruleMatches(rule, p, r)
		})
		switch p.Spec.GetAction() {
		case security.AuthorizationPolicy_DENY, security.AuthorizationPolicy_CUSTOM: // no provider is known
			if hit {
				return false
			}
		case security.AuthorizationPolicy_ALLOW:
			some, allow = true, allow || hit
		}
	}
	return allow || !some
}

// field is one that must match: the values, or not those of not; http is whether only requests have it.
type field struct {
	values, not []string
	http        bool
	has         func(value string) bool
}

func ruleMatches(rule *security.Rule, p authz.Policy, r request) bool {
	var sources, operations [][]field
	var when []field
	for _, w := range rule.GetWhen() {
		when = append(when, conditionField(w, p, r))
	}
	for _, f := range rule.GetFrom() {
		s := f.GetSource()
		sources = append(sources, []field{
			{s.Principals, s.NotPrincipals, false, func(v string) bool { return isPrincipal(v, r.identity) }},
			{s.RequestPrincipals, s.NotRequestPrincipals, true, func(v string) bool { return isRequestPrincipal(v, r.claims) }},
			{s.Namespaces, s.NotNamespaces, false, func(v string) bool { return within(v, part(r.identity, 2)) }},
			{s.ServiceAccounts, s.NotServiceAccounts, false, func(v string) bool { return isAccount(v, p.Namespace, r.identity) }},
			{s.TrustDomains, s.NotTrustDomains, false, func(v string) bool { return within(v, part(r.identity, 0)) }},
			{s.IpBlocks, s.NotIpBlocks, false, func(v string) bool { return inBlock(v, "127.0.0.1") }},
			{s.RemoteIpBlocks, s.NotRemoteIpBlocks, false, func(v string) bool { return inBlock(v, remoteOf(r)) }},
		})
	}
	for _, t := range rule.GetTo() {
		o := t.GetOperation()
		operations = append(operations, []field{
			{o.Hosts, o.NotHosts, true, func(v string) bool { return like(strings.ToLower(v), strings.ToLower(r.host)) }},
			{o.Methods, o.NotMethods, true, func(v string) bool { return like(v, r.method) }},
			{o.Paths, o.NotPaths, true, func(v string) bool { return isPath(v, r.seen) }},
			{o.Ports, o.NotPorts, false, func(v string) bool { return v == r.port }},
		})
	}
	all := slices.Concat(when, slices.Concat(sources...), slices.Concat(operations...))
	if r.tcp && p.Spec.GetAction() == security.AuthorizationPolicy_ALLOW && slices.ContainsFunc(all, func(f field) bool { return f.http && len(f.values)+len(f.not) > 0 }) {
		return false
	}
	holds := func(fields []field) bool {
		return !slices.ContainsFunc(fields, func(f field) bool {
			if f.http && r.tcp {
				return false
			}
			return len(f.values) > 0 && !slices.ContainsFunc(f.values, f.has) || slices.ContainsFunc(f.not, f.has)
		})
	}
	return (len(sources) == 0 || slices.ContainsFunc(sources, holds)) && (len(operations) == 0 || slices.ContainsFunc(operations, holds)) && holds(when)
}

func conditionField(w *security.Condition, p authz.Policy, r request) field {
	f := field{values: w.Values, not: w.NotValues}
	if name, ok := strings.CutPrefix(w.Key, "request.headers["); ok {
		value, sent := r.headers[strings.ToLower(strings.TrimSuffix(name, "]"))]
		f.http, f.has = true, func(v string) bool { return sent && (v == "*" || like(v, value)) }
		return f
	}
	if path, ok := strings.CutPrefix(w.Key, "request.auth.claims["); ok {
		var claim any = r.claims
		for _, name := range strings.Split(strings.TrimSuffix(path, "]"), "][") {
			inner, _ := claim.(map[string]any)
			claim = inner[name]
		}
		if text, ok := claim.(string); ok && slices.Contains([]string{"scope", "perms"}, path[:len(path)-1]) {
			claim = strings.Fields(text)
		}
		f.http, f.has = true, func(v string) bool { return hasClaim(v, claim) }
		return f
	}
	f.has = map[string]func(string) bool{
		"source.ip":              func(v string) bool { return inBlock(v, "127.0.0.1") },
		"destination.ip":         func(v string) bool { return inBlock(v, "127.0.0.1") },
		"remote.ip":              func(v string) bool { return inBlock(v, remoteOf(r)) },
		"source.namespace":       func(v string) bool { return within(v, part(r.identity, 2)) },
		"source.trustDomain":     func(v string) bool { return within(v, part(r.identity, 0)) },
		"source.serviceAccount":  func(v string) bool { return isAccount(v, p.Namespace, r.identity) },
		"source.principal":       func(v string) bool { return isPrincipal(v, r.identity) },
		"destination.port":       func(v string) bool { return v == r.port },
		"connection.sni":         func(v string) bool { return like(v, serverName) },
		"request.auth.principal": func(v string) bool { return isRequestPrincipal(v, r.claims) },
		"request.auth.audiences": func(v string) bool { return hasClaim(v, r.claims["aud"]) },
		"request.auth.presenter": func(v string) bool { return hasClaim(v, r.claims["azp"]) },
		"experimental.envoy.filters.a[b]": func(string) bool {
			return false
		},
	}[w.Key]
	f.http = strings.HasPrefix(w.Key, "request.")
	return f
}

func like(pattern, s string) bool {
	switch {
	case pattern == "*":
		return s != ""
	case strings.HasPrefix(pattern, "*"):
		return s != "" && strings.HasSuffix(s, pattern[1:])
	case strings.HasSuffix(pattern, "*"):
		return s != "" && strings.HasPrefix(s, pattern[:len(pattern)-1])
	}
	return s == pattern
}

// within is for namespaces and trust domains, of which any "*" is a wildcard.
func within(pattern, s string) bool {
	if pattern == "" || s == "" {
		return pattern == s && s != ""
	}
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

func part(identity string, i int) string {
	if all := strings.Split(identity, "/"); i < len(all) {
		return all[i]
	}
	return ""
}

// isPrincipal compares with all trust domains of the mesh being one, for principals that have all parts of an identity.
func isPrincipal(pattern, identity string) bool {
	parts := strings.Split(pattern, "/")
	if len(parts) != 5 || parts[0] == "*" || identity == "" {
		return like(pattern, identity)
	}
	rest := strings.Join(parts[1:], "/")
	for _, d := range trustDomains { // each is one that the pattern may mean
		if parts[0] == "cluster.local" || like(parts[0], d) || slices.ContainsFunc(trustDomains, func(d string) bool { return like(parts[0], d) }) {
			if like(d+"/"+rest, identity) {
				return true
			}
		}
	}
	return like(pattern, identity)
}

// isRequestPrincipal compares issuer/subject. The first or the last character is a wildcard, others are not: at the start it is for the issuer, or for
// the subject where there is no slash; at the end for the subject, or for the issuer.
func isRequestPrincipal(pattern string, claims map[string]any) bool {
	issuer, _ := claims["iss"].(string)
	subject, _ := claims["sub"].(string)
	i := strings.LastIndex(pattern, "/")
	switch {
	case issuer == "" || subject == "":
		return false
	case i >= 0 && strings.HasPrefix(pattern, "*"):
		return like(pattern[:i], issuer) && pattern[i+1:] == subject
	case i >= 0:
		return pattern[:i] == issuer && like(pattern[i+1:], subject)
	case strings.HasPrefix(pattern, "*"):
		return like(pattern, subject)
	}
	return like(pattern, issuer)
}

// hasClaim compares with a text, or with one of a list.
func hasClaim(pattern string, claim any) bool {
	switch c := claim.(type) {
	case string:
		return like(pattern, c)
	case []string:
		return slices.ContainsFunc(c, func(s string) bool { return like(pattern, s) })
	}
	return false
}

func isAccount(v, policyNamespace, identity string) bool {
	ns, name, ok := strings.Cut(v, "/")
	if !ok {
		ns, name = policyNamespace, v
	}
	return part(identity, 2) == ns && part(identity, 4) == name
}

func inBlock(block, ip string) bool {
	if p, err := netip.ParsePrefix(block); err == nil {
		return p.Contains(netip.MustParseAddr(ip))
	}
	return netip.MustParseAddr(block) == netip.MustParseAddr(ip)
}

func remoteOf(r request) string {
	if r.remote == "" || r.tcp {
		return "127.0.0.1"
	}
	return r.remote
}

// isPath is for paths and templates. The query is not part of a path.
func isPath(pattern, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	if !strings.Contains(pattern, "{*") {
		return like(pattern, path)
	}
	return template(strings.Split(pattern, "/"), strings.Split(path, "/"))
}

func template(pattern, path []string) bool {
	switch {
	case len(pattern) == 0:
		return len(path) == 0
	case pattern[0] == "{**}":
		for i := 1; i <= len(path); i++ { // at least the place between two slashes
			if template(pattern[1:], path[i:]) {
				return true
			}
		}
		return false
	case len(path) == 0:
		return false
	}
	return (pattern[0] == path[0] || pattern[0] == "{*}" && path[0] != "") && template(pattern[1:], path[1:])
}
