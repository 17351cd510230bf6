package config

import (
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Bounds of a RequestAuthentication, those of Istio's CustomResourceDefinition.
const (
	maxJWTRules        = 4096
	maxDelimitedClaims = 64
)

// requestAuthentication checks a policy of tokens. [control-plane 1.10.3, 1.10.4]
func (c *check) requestAuthentication(o object.Object, s *security.RequestAuthentication) {
	c.attachment(o, s)
	if len(s.GetJwtRules()) == 0 {
		c.warn("spec.jwtRules", "is empty: no token is validated; add a rule for each issuer")
	}
	if n := len(s.GetJwtRules()); n > maxJWTRules {
		c.fail("spec.jwtRules", "has %d rules: want at most %d", n, maxJWTRules)
		return
	}
	for i, r := range s.GetJwtRules() {
		c.jwtRule(item("spec.jwtRules", i), r)
	}
}

func (c *check) jwtRule(at string, r *security.JWTRule) {
	if r.GetIssuer() == "" {
		c.fail(at+".issuer", "is empty; set the issuer of the tokens, their claim iss")
	}
	c.filled(at+".audiences", r.GetAudiences())
	c.keysOf(at, r)
	for i, h := range r.GetFromHeaders() {
		if !isToken(h.GetName()) {
			c.fail(item(at+".fromHeaders", i)+".name", "invalid header name %q", h.GetName())
		}
	}
	c.filled(at+".fromParams", r.GetFromParams())
	c.filled(at+".fromCookies", r.GetFromCookies())
	to := map[string]bool{}
	if h := r.GetOutputPayloadToHeader(); h != "" {
		c.outputHeader(at+".outputPayloadToHeader", h, to)
	}
	for i, out := range r.GetOutputClaimToHeaders() {
		one := item(at+".outputClaimToHeaders", i)
		c.outputHeader(one+".header", out.GetHeader(), to)
		if out.GetClaim() == "" {
			c.fail(one+".claim", "is empty; set the name of a claim")
		}
	}
	c.filled(at+".spaceDelimitedClaims", r.GetSpaceDelimitedClaims())
	if n := len(r.GetSpaceDelimitedClaims()); n > maxDelimitedClaims {
		c.fail(at+".spaceDelimitedClaims", "has %d claims: want at most %d", n, maxDelimitedClaims)
	}
}

// keysOf checks where the keys of a rule come from.
func (c *check) keysOf(at string, r *security.JWTRule) {
	switch {
	case r.GetJwks() != "" && r.GetJwksUri() != "":
		c.fail(at+".jwksUri", "jwks is set too; remove one of the two")
	case r.GetJwks() != "":
		switch _, private, err := pki.KeySet(r.GetJwks()); {
		case err != nil:
			c.fail(at+".jwks", "%v", err)
		case private:
			c.warn(at+".jwks", "has private keys, which anyone who reads this object can sign tokens with; they are not sent to proxies: publish public keys only, and replace these")
		}
	case r.GetJwksUri() != "":
		if err := (jwks.Source{URL: r.GetJwksUri()}).Check(); err != nil {
			c.fail(at+".jwksUri", "%v", err)
		}
	case r.GetIssuer() != "":
		if err := (jwks.Source{Issuer: r.GetIssuer()}).Check(); err != nil {
			c.warn(at+".jwksUri", "is empty, and the issuer is no URL that has a discovery document, so that there are no keys, and every token of the issuer is refused: set jwksUri or jwks")
		}
	}
	c.duration(at+".timeout", r.GetTimeout())
	switch timeout := r.GetTimeout(); {
	case timeout != nil && r.GetJwks() != "":
		c.warn(at+".timeout", "has no effect: the rule has its keys itself")
	case timeout.AsDuration() > jwks.MaxTimeout:
		c.warn(at+".timeout", "is more than %s, within which keys are fetched", jwks.MaxTimeout)
	}
}

// outputHeader checks a header that is written for the application.
func (c *check) outputHeader(field, name string, to map[string]bool) {
	lower := strings.ToLower(name)
	switch {
	case !isToken(name):
		c.fail(field, "invalid header name %q", name)
	case to[lower]:
		c.fail(field, "header %q is written twice; use another", name)
	}
	to[lower] = true
}

// filled checks that no text of a list is empty.
func (c *check) filled(field string, list []string) {
	for i, v := range list {
		if v == "" {
			c.fail(item(field, i), "is empty; remove it")
		}
	}
}
