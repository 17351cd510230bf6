package authn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Subject is the service account that a token is for.
type Subject struct {
	Namespace, ServiceAccount string
	// Pod is the unique id of the Pod that the token is bound to, or its name; empty if it is bound to
	// none or the token does not say.
	Pod string
	// Join is set for a join token, which is good for certificates only.
	Join *Join
}

// Join is what is known of a join token.
type Join struct {
	// ID is unique among tokens; Uses is how many keys it is good for.
	ID   string
	Uses int
	// Until is when the token is no longer accepted.
	Until time.Time
}

// claims is the payload of a token. The claim kubernetes.io has the form of Kubernetes' bound
// tokens.
type claims struct {
	jwt.Claims
	Kubernetes *boundTo `json:"kubernetes.io,omitempty"`
	// Uses is how many keys a join token is good for; 0 means one.
	Uses int `json:"pilothouse.uses,omitempty"`
}

type boundTo struct {
	Namespace      string  `json:"namespace"`
	ServiceAccount object  `json:"serviceaccount"`
	Pod            *object `json:"pod,omitempty"`
}

type object struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// token is a JWT whose signature has not been verified.
type token struct {
	text   string
	parsed *jwt.JSONWebToken
	// claimed is what the token says, not verified.
	claimed           claims
	keyID, signedWith string
}

// parseToken parses a JWT of at most 8 KiB that is signed with an asymmetric algorithm.
func parseToken(text string) (*token, error) {
	if len(text) > maxToken {
		return nil, rejected(Malformed, "%d bytes, want at most %d", len(text), maxToken)
	}
	parsed, err := jwt.ParseSigned(text, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, rejected(Malformed, "not a JWT with one signature by an asymmetric algorithm, such as RS256 or ES256")
	}
	t := &token{text: text, parsed: parsed, keyID: parsed.Headers[0].KeyID, signedWith: parsed.Headers[0].Algorithm}
	if err := parsed.UnsafeClaimsWithoutVerification(&t.claimed); err != nil {
		return nil, rejected(Malformed, "claims of an invalid type")
	}
	return t, nil
}

// verify returns the claims if one of the keys has signed the token; who names whose keys they are.
func (t *token) verify(keys []any, who string) (claims, error) {
	for _, k := range keys {
		var c claims
		err := t.parsed.Claims(k, &c) // verifies the signature before it decodes the payload
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, jose.ErrCryptoFailure) {
			return claims{}, rejected(Malformed, "claims of an invalid type")
		}
	}
	return claims{}, rejected(BadSignature, "not signed by %s (key %s)", who, printable.Quote(t.keyID, maxShown))
}

// check checks the claims of a token that must be of an issuer, for one of the audiences and valid now.
func (c claims) check(issuer string, audiences []string, now time.Time) error {
	if c.Issuer != issuer {
		return rejected(WrongIssuer, "%s, want %q", printable.Quote(c.Issuer, maxShown), issuer)
	}
	if err := c.checkAudience(audiences); err != nil {
		return err
	}
	switch {
	case c.Expiry == nil:
		return rejected(Malformed, "no exp claim")
	case !now.Before(c.Expiry.Time().Add(clockSkew)):
		return rejected(Expired, "at %s, it is %s", formatTime(c.Expiry.Time()), formatTime(now))
	case c.NotBefore != nil && now.Before(c.NotBefore.Time().Add(-clockSkew)):
		return rejected(NotYetValid, "before %s, it is %s", formatTime(c.NotBefore.Time()), formatTime(now))
	}
	return nil
}

func (c claims) checkAudience(want []string) error {
	if slices.ContainsFunc(c.Audience, func(a string) bool { return slices.Contains(want, a) }) {
		return nil
	}
	return rejected(WrongAudience, "%s, want %s", printable.Clip(fmt.Sprintf("%q", []string(c.Audience)), maxShown), quoteAll(want))
}

// join returns what is known of a join token, or nil if the token is for other audiences only. One that could be used without
// a bound in time or in number is refused.
func (c claims) join() (*Join, error) {
	if !slices.Contains(c.Audience, mesh.JoinAudience) {
		return nil, nil
	}
	uses := max(c.Uses, 1)
	switch {
	case c.ID == "" || len(c.ID) > maxShown:
		return nil, rejected(Malformed, "join token without an id (jti) of at most %d bytes", maxShown)
	case uses > MaxJoinUses:
		return nil, rejected(Malformed, "join token for %d uses, want at most %d", uses, MaxJoinUses)
	case c.IssuedAt == nil || c.Expiry == nil || c.Expiry.Time().Sub(c.IssuedAt.Time()) > MaxJoinTTL:
		return nil, rejected(Malformed, "join token for more than %s", MaxJoinTTL)
	}
	return &Join{ID: c.ID, Uses: uses, Until: c.Expiry.Time().Add(clockSkew)}, nil
}

func (c claims) subject() (Subject, error) {
	ns, sa, ok := serviceAccount(c.Subject)
	if !ok {
		return Subject{}, rejected(Malformed, "subject %s, want %s<namespace>:<name>", printable.Quote(c.Subject, maxShown), subject)
	}
	s := Subject{Namespace: ns, ServiceAccount: sa}
	if k := c.Kubernetes; k != nil {
		if k.Namespace != ns || k.ServiceAccount.Name != sa {
			return Subject{}, rejected(ConflictingClaims, "subject %s/%s, but kubernetes.io %s", ns, sa, printable.Quote(k.Namespace+"/"+k.ServiceAccount.Name, maxShown))
		}
		if k.Pod != nil {
			s.Pod = printable.Clip(k.Pod.UID+" "+k.Pod.Name, maxShown)
		}
	}
	return s, nil
}

// serviceAccount parses Kubernetes' user name of a service account.
func serviceAccount(user string) (namespace, name string, ok bool) {
	rest, isAccount := strings.CutPrefix(user, subject)
	namespace, name, both := strings.Cut(rest, ":")
	return namespace, name, isAccount && both && pki.CheckName("", namespace) == nil && pki.CheckName("", name) == nil
}

// quoteAll quotes texts of the configuration for a message.
func quoteAll(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = fmt.Sprintf("%q", t)
	}
	return strings.Join(quoted, " or ")
}

func rejected(r Reason, format string, args ...any) error {
	return &TokenError{Reason: r, Text: fmt.Sprintf(format, args...)}
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
