package simulate

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/structpb"
)

// clockSkew is how long a token is accepted before its time and after its end, where a provider says nothing.
const clockSkew = time.Minute

// What becomes of a token. Envoy answers 403 to one for another audience, and 401 to all others.
var (
	errMissing  = errors.New("no token")
	errIssuer   = errors.New("the issuer is not known")
	errAudience = errors.New("the token is for others")
	errInvalid  = errors.New("the token is not valid")
)

// authenticate validates the tokens of a request and writes their claims to the metadata. The status is 0 if the request
// may go on.
func authenticate(c *jwtv3.JwtAuthentication, s subject, filter string, now time.Time) (status int, err error) {
	if c.GetFilterStateRules() != nil || len(c.GetRequirementMap()) > 0 {
		return 0, unknown("requirements by name")
	}
	if h := s.request.Headers; c.GetBypassCorsPreflight() && s.request.Method == "OPTIONS" && len(h["origin"]) > 0 && len(h["access-control-request-method"]) > 0 {
		return 0, nil
	}
	for _, r := range c.GetRules() {
		if p := r.GetMatch(); p.GetPrefix() != "/" || len(p.GetHeaders())+len(p.GetQueryParameters()) > 0 {
			return 0, unknown("a rule for some requests")
		}
		if r.GetRequires() == nil {
			return 0, unknown("a rule without a requirement")
		}
		a := authentication{c, s, filter, now}
		switch verdict, err := a.require(r.GetRequires()); {
		case err != nil:
			return 0, err
		case verdict == nil:
			return 0, nil
		case errors.Is(verdict, errAudience):
			return 403, nil
		default:
			return 401, nil
		}
	}
	return 0, nil
}

// assumed is the signature of the token that is made of the claims of a request. Nothing signs with it.
const assumed = "assumed"

// present puts the token of the request's claims where the provider of its issuer looks first.
func (s subject) present(m *hcmv3.HttpConnectionManager) error {
	if s.request.Claims == nil {
		return nil
	}
	payload, err := json.Marshal(s.request.Claims)
	if err != nil {
		return fmt.Errorf("encode the claims of a token: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"RS256"}`)) + "." + encode(payload) + "." + encode([]byte(assumed))
	header, prefix := "authorization", "Bearer "
	for _, f := range m.GetHttpFilters() {
		c := &jwtv3.JwtAuthentication{}
		if f.GetDisabled() || f.GetTypedConfig().UnmarshalTo(c) != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(c.GetProviders())) {
			p := c.GetProviders()[name]
			if iss, _ := s.request.Claims["iss"].(string); iss != p.GetIssuer() {
				continue
			}
			switch {
			case len(p.GetFromHeaders()) > 0:
				header, prefix = strings.ToLower(p.GetFromHeaders()[0].GetName()), p.GetFromHeaders()[0].GetValuePrefix()
			case len(p.GetFromParams()) > 0:
				s.request.Path += map[bool]string{false: "?", true: "&"}[strings.Contains(s.request.Path, "?")] + url.QueryEscape(p.GetFromParams()[0]) + "=" + token
				return nil
			case len(p.GetFromCookies()) > 0:
				header, prefix = "cookie", p.GetFromCookies()[0]+"="
			}
			s.request.Headers[header] = append(s.request.Headers[header], prefix+token)
			return nil
		}
	}
	s.request.Headers[header] = append(s.request.Headers[header], prefix+token)
	return nil
}

type authentication struct {
	config  *jwtv3.JwtAuthentication
	subject subject
	filter  string
	now     time.Time
}

// require evaluates a requirement: the verdict is nil if it is met. err is what is not known here.
func (a authentication) require(r *jwtv3.JwtRequirement) (verdict, err error) {
	switch q := r.GetRequiresType().(type) {
	case *jwtv3.JwtRequirement_ProviderName:
		return a.provider(q.ProviderName)
	case *jwtv3.JwtRequirement_RequiresAll:
		for _, one := range q.RequiresAll.GetRequirements() {
			if verdict, err = a.require(one); verdict != nil || err != nil {
				return verdict, err
			}
		}
		return nil, nil
	case *jwtv3.JwtRequirement_RequiresAny:
		optional := false
		final := errMissing
		for _, one := range q.RequiresAny.GetRequirements() {
			if one.GetAllowMissing() != nil {
				optional = true
				continue
			}
			verdict, err = a.require(one)
			if verdict == nil || err != nil {
				return verdict, err
			}
			// What was wrong with a token says more than that another provider has not found one.
			if !errors.Is(verdict, errMissing) && (errors.Is(final, errMissing) || !errors.Is(verdict, errIssuer)) {
				final = verdict
			}
		}
		if optional && errors.Is(final, errMissing) {
			return nil, nil
		}
		return final, nil
	}
	return nil, unknown(fmt.Sprintf("requirement %T", r.GetRequiresType()))
}

// provider validates the tokens that are where a provider has its own: all of them must be valid.
func (a authentication) provider(name string) (verdict, err error) {
	p := a.config.GetProviders()[name]
	if p == nil {
		return nil, unknown("provider " + name)
	}
	keys, ok := p.GetJwksSourceSpecifier().(*jwtv3.JwtProvider_LocalJwks)
	if !ok {
		return nil, unknown("keys that provider " + name + " fetches")
	}
	inline, ok := keys.LocalJwks.GetSpecifier().(*corev3.DataSource_InlineString)
	if !ok {
		return nil, unknown("keys of provider " + name)
	}
	tokens := a.tokens(p)
	if len(tokens) == 0 {
		return errMissing, nil
	}
	var payload *structpb.Struct
	for _, t := range slices.Backward(tokens) { // Envoy begins with the last
		if payload, verdict = validate(p, inline.InlineString, t.text, a.subject.request.Claims != nil, a.now); verdict != nil {
			return verdict, nil
		}
		if t.header != "" && !p.GetForward() {
			delete(a.subject.request.Headers, t.header)
		}
	}
	if h := p.GetForwardPayloadHeader(); h != "" {
		a.subject.written[strings.ToLower(h)] = true
	}
	for _, c := range p.GetClaimToHeaders() {
		a.subject.written[strings.ToLower(c.GetHeaderName())] = true
	}
	if at := p.GetPayloadInMetadata(); at != "" {
		if a.subject.metadata[a.filter] == nil {
			a.subject.metadata[a.filter] = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		a.subject.metadata[a.filter].Fields[at] = structpb.NewStructValue(payload)
	}
	return nil, nil
}

// found is a token, and the name of the header that it is in, if it is in one.
type found struct{ text, header string }

// tokens returns the tokens of a request in a provider's places: its headers, parameters and cookies, or else those of
// RFC 6750.
func (a authentication) tokens(p *jwtv3.JwtProvider) (out []found) {
	headers, params := p.GetFromHeaders(), p.GetFromParams()
	if len(headers)+len(params)+len(p.GetFromCookies()) == 0 {
		headers, params = []*jwtv3.JwtHeader{{Name: "authorization", ValuePrefix: "Bearer "}}, []string{"access_token"}
	}
	for _, h := range headers {
		name := strings.ToLower(h.GetName())
		for _, value := range joined(name, a.subject.request.Headers[name]) {
			_, t, ok := strings.Cut(value, h.GetValuePrefix())
			if !ok {
				continue
			}
			if h.GetValuePrefix() != "" {
				t = strings.TrimLeftFunc(t, func(r rune) bool { return !tokenRune(r) })
			}
			out = append(out, found{t, name})
		}
	}
	_, query, _ := strings.Cut(a.subject.request.Path, "?")
	if values, err := url.ParseQuery(query); err == nil {
		for _, name := range params {
			if v := values[name]; len(v) > 0 {
				out = append(out, found{text: v[0]})
			}
		}
	}
	for _, name := range p.GetFromCookies() {
		for _, line := range a.subject.request.Headers["cookie"] {
			for _, c := range strings.Split(line, ";") {
				if k, v, ok := strings.Cut(strings.TrimSpace(c), "="); ok && k == name {
					if strings.HasPrefix(v, `"`) && strings.HasSuffix(v, `"`) && len(v) > 1 {
						v = v[1 : len(v)-1]
					}
					out = append(out, found{text: v})
				}
			}
		}
	}
	return out
}

// tokenRune reports whether a token can have a character (RFC 7515, compact serialization).
func tokenRune(r rune) bool {
	return r == '.' || r == '_' || r == '-' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
}

// algorithms are those that Envoy accepts.
var algorithms = []jose.SignatureAlgorithm{
	jose.ES256, jose.ES384, jose.ES512, jose.HS256, jose.HS384, jose.HS512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
}

// validate checks a token (RFC 7519) and returns its claims as filters see them; the verdict is nil if it is valid. The token of a
// request's claims needs no key, if there is one.
func validate(p *jwtv3.JwtProvider, keys, token string, claimed bool, now time.Time) (payload *structpb.Struct, verdict error) {
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, errInvalid
	}
	var claims map[string]any
	if err := json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &claims); err != nil {
		return nil, errInvalid
	}
	if issuer, _ := claims["iss"].(string); p.GetIssuer() != "" && issuer != p.GetIssuer() {
		return nil, errIssuer
	}
	skew := clockSkew
	if s := p.GetClockSkewSeconds(); s > 0 {
		skew = time.Duration(s) * time.Second
	}
	if end, ok := claims["exp"].(float64); ok && now.After(time.Unix(int64(end), 0).Add(skew)) {
		return nil, errInvalid
	}
	if start, ok := claims["nbf"].(float64); ok && now.Before(time.Unix(int64(start), 0).Add(-skew)) {
		return nil, errInvalid
	}
	if len(p.GetAudiences()) > 0 && !slices.ContainsFunc(p.GetAudiences(), func(want string) bool {
		return slices.ContainsFunc(texts(claims["aud"]), func(got string) bool { return audience(got) == audience(want) })
	}) {
		return nil, errAudience
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(keys), &set); err != nil {
		return nil, errInvalid
	}
	valid := slices.ContainsFunc(set.Keys, func(k jose.JSONWebKey) bool {
		id := signed.Signatures[0].Header.KeyID
		if id != "" && k.KeyID != "" && id != k.KeyID {
			return false
		}
		_, err := signed.Verify(k.Key)
		return err == nil
	})
	if !valid && !(claimed && strings.HasSuffix(token, "."+base64.RawURLEncoding.EncodeToString([]byte(assumed)))) {
		return nil, errInvalid
	}
	for _, name := range p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims() {
		if s, ok := claims[name].(string); ok {
			var list []any
			for _, word := range strings.Split(s, " ") {
				list = append(list, word)
			}
			claims[name] = list
		}
	}
	payload, err = structpb.NewStruct(claims)
	if err != nil {
		return nil, errInvalid
	}
	return payload, nil
}

// audience ignores the scheme and a slash at the end, as Envoy does.
func audience(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	return strings.TrimSuffix(s, "/")
}

// texts returns a text, or the texts of a list.
func texts(claim any) (out []string) {
	switch c := claim.(type) {
	case string:
		return []string{c}
	case []any:
		for _, e := range c {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
