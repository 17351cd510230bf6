package authn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	securityv1 "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of the timeout of a rule.
const (
	defaultFetchTimeout = 5 * time.Second
	maxFetchTimeout     = time.Minute
)

// Rule says which tokens of one OIDC issuer are accepted. ParseRules makes it.
type Rule struct {
	issuer    string
	audiences []string
	// keysURL is where the keys are; empty means that the issuer's discovery document says it.
	keysURL string
	// keys are those that the rule itself has; nil if they are fetched.
	keys *keySet
	// timeout bounds one fetch of the keys.
	timeout time.Duration
}

// ParseRules parses JWT_RULE: one rule in JSON, as Istio's, or a list of rules. A rule has the fields
// issuer, audiences, jwks_uri, jwks and timeout of Istio's JWTRule; another field is an error, since it
// would have no effect. A rule without audiences has those given, or istio-ca if there are none. The
// empty text means no rules.
func ParseRules(text string, audiences []string) ([]Rule, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	list := []json.RawMessage{json.RawMessage(text)}
	if bytes.HasPrefix(bytes.TrimSpace([]byte(text)), []byte("[")) {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fmt.Errorf("invalid rules: %w", err)
		}
	}
	var rules []Rule
	for n, one := range list {
		at := ""
		if len(list) > 1 {
			at = fmt.Sprintf("rule %d: ", n+1)
		}
		r, err := parseRule(one, audiences)
		if err != nil {
			return nil, fmt.Errorf("%s%w", at, err)
		}
		if slices.ContainsFunc(rules, func(o Rule) bool { return o.issuer == r.issuer }) {
			return nil, fmt.Errorf("%sissuer %q has two rules: want one, with the audiences of both", at, r.issuer)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(text json.RawMessage, audiences []string) (Rule, error) {
	var m securityv1.JWTRule
	if err := protojson.Unmarshal(text, &m); err != nil {
		return Rule{}, fmt.Errorf("invalid rule: %s", strings.ReplaceAll(err.Error(), "\u00a0", " "))
	}
	for field, given := range map[string]bool{
		"from_headers": len(m.FromHeaders) > 0, "from_params": len(m.FromParams) > 0, "from_cookies": len(m.FromCookies) > 0,
		"output_payload_to_header": m.OutputPayloadToHeader != "", "output_claim_to_headers": len(m.OutputClaimToHeaders) > 0,
		"forward_original_token": m.ForwardOriginalToken, "space_delimited_claims": len(m.SpaceDelimitedClaims) > 0,
	} {
		if given {
			return Rule{}, fmt.Errorf("field %s has no effect here: remove it; issuer, audiences, jwks_uri, jwks and timeout have one", field)
		}
	}
	r := Rule{issuer: m.Issuer, audiences: orDefault(m.Audiences, audiences), keysURL: m.JwksUri, timeout: defaultFetchTimeout}
	if slices.Contains(r.audiences, "") {
		return Rule{}, errors.New("invalid audience \"\": want the audience of tokens, such as istio-ca")
	}
	switch {
	case m.Issuer == "":
		return Rule{}, errors.New("no issuer: want the iss claim of its tokens")
	case m.Issuer == TokenIssuer:
		return Rule{}, fmt.Errorf("issuer %q signs with the key in the state folder and needs no rule", TokenIssuer)
	case m.Jwks != "" && m.JwksUri != "":
		return Rule{}, errors.New("jwks and jwks_uri: want one of them")
	}
	if m.Timeout != nil {
		r.timeout = m.Timeout.AsDuration()
		if !m.Timeout.IsValid() || r.timeout <= 0 || r.timeout > maxFetchTimeout {
			return Rule{}, fmt.Errorf("invalid timeout %s: want above 0s and at most %s", r.timeout, maxFetchTimeout)
		}
	}
	var err error
	switch {
	case m.Jwks != "":
		if r.keys, err = parseKeys([]byte(m.Jwks)); err != nil {
			return Rule{}, fmt.Errorf("jwks: %w", err)
		}
	case m.JwksUri != "":
		if err = checkKeysURL(m.JwksUri); err != nil {
			return Rule{}, fmt.Errorf("jwks_uri: %w", err)
		}
	default:
		if err = checkKeysURL(m.Issuer); err != nil {
			return Rule{}, fmt.Errorf("issuer, whose discovery document is read because there is neither jwks_uri nor jwks: %w", err)
		}
	}
	return r, nil
}

// checkKeysURL returns an error unless keys may be fetched from the URL: whoever can change them on the
// way can be every identity, so that plaintext is for this host only.
func checkKeysURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return fmt.Errorf("invalid URL %s: want https://HOST/PATH", printable.Quote(text, maxShown))
	case u.User != nil:
		return errors.New("invalid URL: want one without a user and a password, which would be logged")
	case u.Scheme == "https", u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	}
	return fmt.Errorf("invalid URL %s: want https, since the keys decide who may have which identity (http is for localhost only)", printable.Quote(text, maxShown))
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// orDefault returns the first list that is not empty, or the audience of the CA.
func orDefault(lists ...[]string) []string {
	for _, l := range lists {
		if len(l) > 0 {
			return l
		}
	}
	return []string{mesh.TokenAudience}
}
