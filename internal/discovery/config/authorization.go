package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// authorizationPolicy checks a policy.
func (c *check) authorizationPolicy(o object.Object, s *security.AuthorizationPolicy) {
	c.attachment(o, s)
	custom := s.GetAction() == security.AuthorizationPolicy_CUSTOM
	switch name := s.GetProvider().GetName(); {
	case custom && name == "":
		c.fail("spec.provider.name", "is empty; name one of extensionProviders in mesh configuration")
	case custom:
		c.report(object.Info, "spec.provider", "TCP connections are judged only if the provider has envoyExtAuthzGrpc: one with envoyExtAuthzHttp is not asked about them, and they pass")
	case s.GetProvider() != nil:
		c.fail("spec.provider", "is for action CUSTOM only; remove it, or set the action")
	}
	if len(s.GetRules()) == 0 && s.GetAction() != security.AuthorizationPolicy_ALLOW {
		c.warn("spec.rules", "is empty: the policy matches nothing; use \"rules: [{}]\" for all requests")
	}
	c.dryRun(o, s)
	for i, r := range s.GetRules() {
		c.authorizationRule(item("spec.rules", i), s.GetAction(), r)
	}
}

// dryRun checks the annotation that makes a policy decide nothing.
func (c *check) dryRun(o object.Object, s *security.AuthorizationPolicy) {
	const name = "istio.io/dry-run"
	value, ok := o.Meta.Annotations[name]
	if !ok {
		return
	}
	dry, err := strconv.ParseBool(value)
	switch field := "metadata.annotations[" + name + "]"; {
	case err != nil:
		c.warn(field, "invalid value %q: want true or false; the policy is in force", value)
	case dry && s.GetAction() != security.AuthorizationPolicy_ALLOW && s.GetAction() != security.AuthorizationPolicy_DENY:
		c.warn(field, "is for the actions ALLOW and DENY only; the policy is in force")
	}
}

// authorizationRule checks one rule, and tells what it means for connections that are not HTTP. [control-plane 1.10.10]
func (c *check) authorizationRule(at string, action security.AuthorizationPolicy_Action, r *security.Rule) {
	a := authorization{check: c, custom: action == security.AuthorizationPolicy_CUSTOM}
	for i, f := range r.GetFrom() {
		a.source(item(at+".from", i)+".source", f.GetSource())
	}
	for i, t := range r.GetTo() {
		a.operation(item(at+".to", i)+".operation", t.GetOperation())
	}
	for i, w := range r.GetWhen() {
		a.condition(item(at+".when", i), w)
	}
	if len(a.http) == 0 {
		return
	}
	slices.Sort(a.http)
	fields := strings.Join(slices.Compact(a.http), ", ")
	if action == security.AuthorizationPolicy_ALLOW {
		c.report(object.Info, at, "matches no TCP connection, since these have no %s", fields)
	} else {
		c.warn(at, "TCP connections have no %s: of these, the rule matches all that the rest of it matches; add ports to it, so that it is for the HTTP ports only", fields)
	}
}

// authorization collects what the fields of one rule need.
type authorization struct {
	*check
	custom bool
	http   []string // fields that only HTTP requests have
}

// list checks the values of a field and of its negation with one, and reports whether there are any.
func (a *authorization) list(at, name string, values, not []string, one func(field, value string)) bool {
	for i, v := range values {
		a.value(item(at+"."+name, i), v, one)
	}
	negation := "not" + strings.ToUpper(name[:1]) + name[1:]
	for i, v := range not {
		a.value(item(at+"."+negation, i), v, one)
	}
	return len(values)+len(not) > 0
}

func (a *authorization) value(field, v string, one func(field, value string)) {
	if v == "" {
		a.fail(field, "is empty; remove it")
		return
	}
	one(field, v)
}

// requires notes a field that only HTTP requests have.
func (a *authorization) requires(name string, set bool) bool {
	if set {
		a.http = append(a.http, name)
	}
	return set
}

func (a *authorization) source(at string, s *security.Source) {
	set := a.list(at, "principals", s.GetPrincipals(), s.GetNotPrincipals(), a.wildcard)
	set = a.requires("requestPrincipals", a.list(at, "requestPrincipals", s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), a.requestPrincipal)) || set
	set = a.list(at, "namespaces", s.GetNamespaces(), s.GetNotNamespaces(), a.noSlash) || set
	set = a.list(at, "serviceAccounts", s.GetServiceAccounts(), s.GetNotServiceAccounts(), a.serviceAccount) || set
	set = a.list(at, "trustDomains", s.GetTrustDomains(), s.GetNotTrustDomains(), a.noSlash) || set
	set = a.list(at, "ipBlocks", s.GetIpBlocks(), s.GetNotIpBlocks(), a.block) || set
	set = a.list(at, "remoteIpBlocks", s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), a.block) || set
	if !set {
		a.fail(at, "is empty; set a field of it, or remove from to match all sources")
	}
	if len(s.GetServiceAccounts())+len(s.GetNotServiceAccounts()) > 0 && len(s.GetPrincipals())+len(s.GetNotPrincipals())+len(s.GetNamespaces())+len(s.GetNotNamespaces()) > 0 {
		a.fail(at+".serviceAccounts", "cannot be set together with principals or namespaces; use one of them")
	}
}

func (a *authorization) operation(at string, o *security.Operation) {
	set := a.requires("hosts", a.list(at, "hosts", o.GetHosts(), o.GetNotHosts(), a.wildcard))
	set = a.requires("methods", a.list(at, "methods", o.GetMethods(), o.GetNotMethods(), a.wildcard)) || set
	set = a.requires("paths", a.list(at, "paths", o.GetPaths(), o.GetNotPaths(), a.path)) || set
	set = a.list(at, "ports", o.GetPorts(), o.GetNotPorts(), a.portText) || set
	if !set {
		a.fail(at, "is empty; set a field of it, or remove to to match all operations")
	}
}

func (a *authorization) condition(at string, w *security.Condition) {
	key := w.GetKey()
	one, http, known := a.conditionOf(at, key)
	if !known {
		a.fail(at+".key", "unknown key %q", key)
		return
	}
	if http {
		a.http = append(a.http, key)
	}
	if !a.list(at, "values", w.GetValues(), w.GetNotValues(), one) {
		a.fail(at, "has no values; set values or notValues")
	}
}

// conditionOf returns the check of a key's values, and whether only HTTP requests have it. [control-plane 1.10.9]
func (a *authorization) conditionOf(at, key string) (one func(field, value string), http, known bool) {
	token := func(values func(field, value string)) func(string, string) {
		a.token(at + ".key")
		return values
	}
	switch {
	case key == "source.ip" || key == "remote.ip" || key == "destination.ip":
		return a.block, false, true
	case key == "destination.port":
		return a.portText, false, true
	case key == "source.namespace" || key == "source.trustDomain":
		return a.noSlash, false, true
	case key == "source.serviceAccount":
		return a.serviceAccount, false, true
	case key == "source.principal" || key == "connection.sni":
		return a.wildcard, false, true
	case key == "request.auth.principal":
		return a.requestPrincipal, true, true
	case key == "request.auth.audiences" || key == "request.auth.presenter":
		return token(a.wildcard), true, true
	case strings.HasPrefix(key, "request.auth.claims["):
		name, closed := strings.CutSuffix(strings.TrimPrefix(key, "request.auth.claims["), "]")
		for part := range strings.SplitSeq(name, "][") {
			closed = closed && part != "" && !strings.ContainsAny(part, "[]")
		}
		if !closed {
			return nil, false, false
		}
		return token(a.wildcard), true, true
	case strings.HasPrefix(key, "request.headers["):
		name, closed := strings.CutSuffix(strings.TrimPrefix(key, "request.headers["), "]")
		return a.wildcard, true, closed && isToken(strings.TrimPrefix(name, ":"))
	case strings.HasPrefix(key, "experimental.envoy.filters."):
		filter, field, bracket := strings.Cut(key, "[")
		field, closed := strings.CutSuffix(field, "]")
		return a.metadata, false, bracket && closed && field != "" && filter != "experimental.envoy.filters."
	}
	return nil, false, false
}

// token refuses a field of tokens where these have not been validated yet.
func (a *authorization) token(field string) {
	if a.custom {
		a.fail(field, "action CUSTOM is decided before tokens are validated; remove it")
	}
}

// wildcard checks a text with at most one wildcard.
func (a *authorization) wildcard(field, v string) {
	if len(v) > 1 && strings.Contains(strings.TrimSuffix(strings.TrimPrefix(v, "*"), "*"), "*") || len(v) > 2 && strings.HasPrefix(v, "*") && strings.HasSuffix(v, "*") {
		a.warn(field, "of %q only one \"*\" is a wildcard, at the start or at the end; others are compared as they are", v)
	}
}

func (a *authorization) requestPrincipal(field, v string) {
	if !strings.Contains(v, "/") && !strings.HasPrefix(v, "*") && !strings.HasSuffix(v, "*") {
		a.fail(field, "invalid request principal %q: want issuer/subject", v)
	}
	a.wildcard(field, v)
	a.token(field)
}

func (a *authorization) noSlash(field, v string) {
	if strings.Contains(v, "/") {
		a.fail(field, "invalid value %q: want no \"/\"", v)
	}
}

func (a *authorization) serviceAccount(field, v string) {
	if strings.Contains(v, "*") || strings.Count(v, "/") > 1 || strings.HasPrefix(v, "/") || strings.HasSuffix(v, "/") {
		a.fail(field, "invalid service account %q: want name or namespace/name, without wildcards", v)
	}
}

func (a *authorization) block(field, v string) {
	if p, err := netip.ParsePrefix(v); err == nil && !p.Addr().Is4In6() {
		return
	}
	if ip, err := netip.ParseAddr(v); err == nil && ip.Is4In6() {
		a.fail(field, "invalid address %q: proxies see such a client as %s, and the rule would match nobody; write that", v, ip.Unmap())
	} else if !isIP(v) {
		a.fail(field, "invalid block %q: want an IP address or a CIDR such as 10.0.0.0/8", v)
	}
}

func (a *authorization) portText(field, v string) {
	if n, err := strconv.ParseUint(v, 10, 16); err != nil || n == 0 {
		a.fail(field, "invalid port %q: want 1–65535", v)
	}
}

func (a *authorization) metadata(field, v string) {
	if inner, ok := strings.CutPrefix(v, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || inner == "" {
			a.fail(field, "invalid value %q: want [text] for an element of a list", v)
			return
		}
		v = inner
	}
	a.wildcard(field, v)
}

// maxTemplates is how many wildcards Envoy accepts in a template of a path.
const maxTemplates = 5

// path checks a path, or a template of one.
func (a *authorization) path(field, v string) {
	if !strings.Contains(v, "{*}") && !strings.Contains(v, "{**}") {
		if !strings.HasPrefix(v, "/") && !strings.HasPrefix(v, "*") {
			a.warn(field, "%q matches no path; paths begin with \"/\"", v)
		}
		a.wildcard(field, v)
		return
	}
	if err := template(v); err != "" {
		a.fail(field, "invalid template %q: %s", v, err)
	}
}

// template returns what is wrong with a template of a path, "" if nothing is.
func template(v string) string {
	rest, ok := strings.CutPrefix(v, "/")
	if !ok {
		return "want one that begins with \"/\""
	}
	operators, last := 0, false
	for segment := range strings.SplitSeq(rest, "/") {
		switch segment {
		case "{*}", "{**}":
			if operators++; operators > maxTemplates {
				return fmt.Sprintf("want at most %d wildcards", maxTemplates)
			}
			if last {
				return "want no wildcard after {**}"
			}
			last = segment == "{**}"
		case "":
			return "want no empty segment"
		default:
			for i := range len(segment) {
				c := segment[i]
				letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
				if !letter && strings.IndexByte("-_.~%!$&'()+,;:@", c) < 0 {
					return fmt.Sprintf("want segments that are {*}, {**} or text without %q", c)
				}
			}
		}
	}
	return ""
}
