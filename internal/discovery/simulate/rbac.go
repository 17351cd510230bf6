package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// subject is what the rules of access control see.
type subject struct {
	connection Connection
	// encrypted is whether the filter chain has ended TLS, and identities are those of the client's certificate.
	encrypted  bool
	identities []string
	// request is nil for a connection.
	request *Request
	// remote is the client's address, by x-forwarded-for where that is trusted.
	remote netip.Addr
	// metadata is what filters before have written, by their names.
	metadata map[string]*structpb.Struct
	// written are headers that filters before have set, to what is not known here.
	written map[string]bool
}

// Envoy's RBAC filters write to the metadata of these names, whatever the filters are called.
const (
	httpRBAC    = "envoy.filters.http.rbac"
	networkRBAC = "envoy.filters.network.rbac"
)

// authorize evaluates the rules of one filter, either of which may be nil; false if they refuse. Rules in the shadow are
// recorded, and written to the metadata of a name with a prefix; they decide nothing by themselves.
func (v *Verdict) authorize(s subject, metadata string, rules, shadow *rbacv3.RBAC, prefix string) (bool, error) {
	matched, err := v.match(s, shadow, true)
	if err != nil {
		return false, err
	}
	if matched != "" {
		if s.metadata[metadata] == nil {
			s.metadata[metadata] = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		s.metadata[metadata].Fields[prefix+"shadow_effective_policy_id"] = structpb.NewStringValue(matched)
	}
	by, err := v.match(s, rules, false)
	if err != nil || rules == nil {
		return err == nil, err
	}
	switch rules.GetAction() {
	case rbacv3.RBAC_LOG:
		return true, nil
	case rbacv3.RBAC_DENY:
		if by != "" {
			v.By = by
		}
		return by == "", nil
	case rbacv3.RBAC_ALLOW:
		v.By = by
		if by == "" {
			v.By = NoAllow
		}
		return by != "", nil
	}
	return false, unknown("action " + rules.GetAction().String())
}

// ask records that a filter asks an external authorizer, if its condition is met. Without one it always asks.
func (v *Verdict) ask(s subject, filter string, condition *matcherv3.MetadataMatcher) error {
	if condition == nil {
		v.Asks = append(v.Asks, filter)
		return nil
	}
	ok, err := s.inMetadata(condition)
	if err != nil || !ok {
		return err
	}
	rule := s.metadata[condition.GetFilter()]
	for _, p := range condition.GetPath() {
		value := rule.GetFields()[p.GetKey()]
		if filter = cmp.Or(value.GetStringValue(), filter); value.GetStructValue() != nil {
			rule = value.GetStructValue()
		}
	}
	v.Asks = append(v.Asks, filter)
	return nil
}

// match returns the first rule that matches, in the order of their names, which is Envoy's; "" if none does.
func (v *Verdict) match(s subject, rules *rbacv3.RBAC, dryRun bool) (string, error) {
	first := ""
	for _, name := range slices.Sorted(maps.Keys(rules.GetPolicies())) {
		p := rules.GetPolicies()[name]
		if p.GetCondition() != nil || p.GetCheckedCondition() != nil || p.GetCelConfig() != nil {
			return "", fmt.Errorf("rule %q: %w", name, unknown("a condition in CEL"))
		}
		to, err := anyOf(p.GetPermissions(), s.permitted)
		if err != nil {
			return "", fmt.Errorf("rule %q: %w", name, err)
		}
		from, err := anyOf(p.GetPrincipals(), s.is)
		if err != nil {
			return "", fmt.Errorf("rule %q: %w", name, err)
		}
		rule := Match{Rule: name, Action: rules.GetAction().String(), DryRun: dryRun}
		if !to || !from {
			v.Others = append(v.Others, rule)
			continue
		}
		if first == "" {
			first = name
		}
		v.Rules = append(v.Rules, rule)
	}
	return first, nil
}

func anyOf[T any](all []T, match func(T) (bool, error)) (bool, error) {
	found := false
	for _, one := range all { // all of them, so that what is unknown is told whatever a request says
		ok, err := match(one)
		if err != nil {
			return false, err
		}
		found = found || ok
	}
	return found, nil
}

func allOf[T any](all []T, match func(T) (bool, error)) (bool, error) {
	not, err := anyOf(all, func(one T) (bool, error) {
		ok, err := match(one)
		return !ok, err
	})
	return !not, err
}

// permitted evaluates a permission.
func (s subject) permitted(p *rbacv3.Permission) (bool, error) {
	switch r := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return r.Any, nil
	case *rbacv3.Permission_AndRules:
		return allOf(r.AndRules.GetRules(), s.permitted)
	case *rbacv3.Permission_OrRules:
		return anyOf(r.OrRules.GetRules(), s.permitted)
	case *rbacv3.Permission_NotRule:
		ok, err := s.permitted(r.NotRule)
		return !ok, err
	case *rbacv3.Permission_Header:
		return s.header(r.Header)
	case *rbacv3.Permission_UrlPath:
		if s.request == nil {
			return false, nil
		}
		return text(r.UrlPath.GetPath(), s.path())
	case *rbacv3.Permission_UriTemplate:
		if s.request == nil {
			return false, nil
		}
		m, err := message(r.UriTemplate.GetTypedConfig(), &uritemplatev3.UriTemplateMatchConfig{})
		if err != nil {
			return false, err
		}
		return template(m.GetPathTemplate(), s.path())
	case *rbacv3.Permission_DestinationIp:
		return inRange(r.DestinationIp, s.connection.Destination.Addr()), nil
	case *rbacv3.Permission_DestinationPort:
		return r.DestinationPort == uint32(s.connection.Destination.Port()), nil
	case *rbacv3.Permission_RequestedServerName:
		name := ""
		if s.connection.TLS != nil {
			name = s.connection.TLS.ServerName
		}
		return text(r.RequestedServerName, name)
	case *rbacv3.Permission_Metadata:
		return s.inMetadata(r.Metadata) //nolint:staticcheck // what is sent
	}
	return false, unknown(fmt.Sprintf("permission %T", p.GetRule()))
}

// is evaluates a principal.
func (s subject) is(p *rbacv3.Principal) (bool, error) {
	switch r := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return r.Any, nil
	case *rbacv3.Principal_AndIds:
		return allOf(r.AndIds.GetIds(), s.is)
	case *rbacv3.Principal_OrIds:
		return anyOf(r.OrIds.GetIds(), s.is)
	case *rbacv3.Principal_NotId:
		ok, err := s.is(r.NotId)
		return !ok, err
	case *rbacv3.Principal_Authenticated_:
		m := r.Authenticated.GetPrincipalName()
		if m == nil {
			return s.encrypted, nil
		}
		return anyOf(s.identities, func(id string) (bool, error) { return text(m, id) })
	case *rbacv3.Principal_DirectRemoteIp:
		return s.from(r.DirectRemoteIp, s.connection.Source.Addr())
	case *rbacv3.Principal_RemoteIp:
		if s.request == nil {
			return s.from(r.RemoteIp, s.connection.Source.Addr())
		}
		return s.from(r.RemoteIp, s.remote)
	case *rbacv3.Principal_Header:
		return s.header(r.Header)
	case *rbacv3.Principal_Metadata:
		return s.inMetadata(r.Metadata) //nolint:staticcheck // what is sent
	}
	return false, unknown(fmt.Sprintf("principal %T", p.GetIdentifier()))
}

// from reports whether a client's address is in a range.
func (s subject) from(r *corev3.CidrRange, a netip.Addr) (bool, error) {
	if !a.IsValid() {
		return false, errNoAddress
	}
	return inRange(r, a), nil
}

// errNoAddress is the error of a rule about the address of a client whose address is not known.
var errNoAddress = unknown("the client's address")

// path is the path of the request without its query.
func (s subject) path() string {
	path, _, _ := strings.Cut(s.request.Path, "?")
	path, _, _ = strings.Cut(path, "#")
	return path
}

// segment are the characters that "*" of a template stands for (RFC 3986, pchar).
const segment = `a-zA-Z0-9\-._~%!$&'()*+,;:@=`

// template matches a path with a template: "*" is a segment, and "**" any number of them
// (https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/path/match/uri_template/v3/uri_template_match.proto).
func template(pattern, path string) (bool, error) {
	parts := strings.Split(pattern, "/")
	for i, p := range parts {
		switch {
		case p == "*":
			parts[i] = "[" + segment + "]+"
		case p == "**":
			parts[i] = "[" + segment + "/]*"
		case strings.ContainsAny(p, "*{}"):
			return false, unknown("path template " + pattern)
		default:
			parts[i] = regexp.QuoteMeta(p)
		}
	}
	re, err := regexp.Compile("^(?:" + strings.Join(parts, "/") + ")$")
	if err != nil {
		return false, err
	}
	return re.MatchString(path), nil
}
