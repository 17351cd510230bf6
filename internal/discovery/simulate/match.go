package simulate

import (
	"fmt"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// text evaluates a matcher of texts.
func text(m *matcherv3.StringMatcher, s string) (bool, error) {
	fold := func(s string) string {
		if m.GetIgnoreCase() {
			return strings.ToLower(s)
		}
		return s
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(s) == fold(p.Exact), nil
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(fold(s), fold(p.Prefix)), nil
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(fold(s), fold(p.Suffix)), nil
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(fold(s), fold(p.Contains)), nil
	case *matcherv3.StringMatcher_SafeRegex:
		re, err := regexp.Compile("^(?:" + p.SafeRegex.GetRegex() + ")$") // the whole text; RE2, as in Envoy
		if err != nil {
			return false, err
		}
		return re.MatchString(s), nil
	}
	return false, unknown(fmt.Sprintf("text matcher %T", m.GetMatchPattern()))
}

// managed are the headers that a connection manager sets or removes before its filters; what they are depends on more than
// the request.
var managed = []string{"x-request-id", "x-forwarded-proto", "x-forwarded-client-cert", "x-forwarded-for", "x-envoy-", "via", "server", "connection", "content-length", "transfer-encoding"}

// header evaluates a matcher of a header.
func (s subject) header(m *routev3.HeaderMatcher) (bool, error) {
	if s.request == nil {
		return m.GetInvertMatch(), nil
	}
	values, err := s.values(m.GetName())
	if err != nil {
		return false, err
	}
	present := len(values) > 0
	var ok bool
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_PresentMatch:
		ok = present == p.PresentMatch
	case *routev3.HeaderMatcher_StringMatch:
		if !present && !m.GetTreatMissingHeaderAsEmpty() {
			return false, nil // inverted or not
		}
		if !present {
			values = []string{""}
		}
		ok, err = anyOf(values, func(value string) (bool, error) { return text(p.StringMatch, value) })
		if err != nil {
			return false, err
		}
	default:
		return false, unknown(fmt.Sprintf("matcher of header %s, %T", m.GetName(), p))
	}
	return ok != m.GetInvertMatch(), nil
}

func (s subject) values(name string) ([]string, error) {
	name = strings.ToLower(name)
	switch name {
	case ":method":
		return []string{s.request.Method}, nil
	case ":authority", "host":
		return []string{s.request.Authority}, nil
	case ":path":
		return []string{s.request.Path}, nil
	}
	for _, w := range managed {
		if name == w || strings.HasSuffix(w, "-") && strings.HasPrefix(name, w) || strings.HasPrefix(name, ":") || s.written[name] {
			return nil, unknown("header " + name + ", which the proxy writes")
		}
	}
	return joined(name, s.request.Headers[name]), nil
}

// single are the headers of which Envoy keeps one: several are joined to one when they are read. Values of all others are
// matched one by one.
var single = map[string]bool{
	"accept": true, "accept-encoding": true, "access-control-request-headers": true, "access-control-request-method": true, "authorization": true,
	"cache-control": true, "content-encoding": true, "content-type": true, "expect": true, "grpc-accept-encoding": true, "grpc-timeout": true, "if-match": true,
	"if-modified-since": true, "if-none-match": true, "if-unmodified-since": true, "origin": true, "pragma": true, "if-range": true,
	"referer": true, "te": true, "upgrade": true, "user-agent": true, "x-forwarded-host": true, "x-forwarded-port": true,
}

// joined returns the values of a header as Envoy keeps them.
func joined(name string, values []string) []string {
	if single[name] && len(values) > 1 {
		return []string{strings.Join(values, ",")}
	}
	return values
}

// inMetadata evaluates a matcher of what a filter has written.
func (s subject) inMetadata(m *matcherv3.MetadataMatcher) (bool, error) {
	var value *structpb.Value
	if written := s.metadata[m.GetFilter()]; written != nil {
		value = structpb.NewStructValue(written)
	}
	for _, p := range m.GetPath() {
		value = value.GetStructValue().GetFields()[p.GetKey()]
	}
	ok, err := valueMatches(m.GetValue(), value)
	return ok != m.GetInvert(), err
}

// valueMatches evaluates a matcher of a value; nil is one that is not there.
func valueMatches(m *matcherv3.ValueMatcher, v *structpb.Value) (bool, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		s, is := v.GetKind().(*structpb.Value_StringValue)
		ok, err := text(p.StringMatch, v.GetStringValue())
		return ok && is && s != nil, err
	case *matcherv3.ValueMatcher_OrMatch:
		return anyOf(p.OrMatch.GetValueMatchers(), func(one *matcherv3.ValueMatcher) (bool, error) { return valueMatches(one, v) })
	case *matcherv3.ValueMatcher_ListMatch:
		one := p.ListMatch.GetOneOf()
		if one == nil {
			return false, unknown("a match of lists")
		}
		if len(v.GetListValue().GetValues()) == 0 {
			return valueMatches(one, nil) // false, or what is unknown
		}
		return anyOf(v.GetListValue().GetValues(), func(element *structpb.Value) (bool, error) { return valueMatches(one, element) })
	case *matcherv3.ValueMatcher_PresentMatch:
		return (v != nil) == p.PresentMatch, nil
	case *matcherv3.ValueMatcher_BoolMatch:
		b, is := v.GetKind().(*structpb.Value_BoolValue)
		return is && b.BoolValue == p.BoolMatch, nil
	case *matcherv3.ValueMatcher_NullMatch_:
		_, is := v.GetKind().(*structpb.Value_NullValue)
		return is, nil
	}
	return false, unknown(fmt.Sprintf("value matcher %T", m.GetMatchPattern()))
}
