package sts

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Identifiers of RFC 8693.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeJWT         = "urn:ietf:params:oauth:token-type:jwt"
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token"
)

// Codes of errors, of RFC 6749, section 5.2, and RFC 8693, section 2.2.2.
const (
	invalidRequest   = "invalid_request"
	invalidTarget    = "invalid_target"
	unsupportedGrant = "unsupported_grant_type"
	accessDenied     = "access_denied"
)

// Bounds of a request, in bytes.
const (
	maxBody  = 128 << 10
	maxToken = 64 << 10
	maxText  = 4 << 10
)

// Request is a request for a token.
type Request struct {
	// SubjectToken is a JWT, which nobody has verified.
	SubjectToken string
	// Audience and Scope are empty if the client leaves them to the plugin.
	Audience, Scope string
}

// Error is an answer of RFC 6749, section 5.2.
type Error struct {
	Code        string `json:"error"`
	Description string `json:"error_description,omitempty"`
}

// Error returns the code and the description.
func (e *Error) Error() string { return e.Code + ": " + e.Description }

func invalid(format string, args ...any) *Error {
	return &Error{Code: invalidRequest, Description: describe(fmt.Sprintf(format, args...))}
}

// describe makes a text one that RFC 6749 allows in error_description: printable ASCII without quotation marks and backslashes.
func describe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\':
			return '\''
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, s[:min(len(s), 1000)])
}

// parse reads the parameters of a request. Unknown ones are ignored, as RFC 6749 demands; those of RFC 8693 that would not be
// obeyed are refused.
func parse(form url.Values) (Request, *Error) {
	for name, values := range form {
		if len(values) > 1 {
			return Request{}, invalid("parameter %s is given %d times", printable.Quote(name, 100), len(values))
		}
	}
	r := Request{SubjectToken: form.Get("subject_token"), Audience: form.Get("audience"), Scope: form.Get("scope")}
	switch grant := form.Get("grant_type"); grant {
	case grantExchange:
	case "":
		return Request{}, invalid("grant_type is missing: want %s", grantExchange)
	default:
		return Request{}, &Error{Code: unsupportedGrant, Description: describe(fmt.Sprintf("invalid grant_type %s: want %s", printable.Quote(grant, 100), grantExchange))}
	}
	if kind := form.Get("subject_token_type"); kind != typeJWT {
		return Request{}, invalid("invalid subject_token_type %s: want %s", printable.Quote(kind, 100), typeJWT)
	}
	switch {
	case r.SubjectToken == "":
		return Request{}, invalid("subject_token is missing")
	case len(r.SubjectToken) > maxToken:
		return Request{}, invalid("subject_token has more than %d bytes", maxToken)
	case strings.ContainsFunc(r.SubjectToken, func(c rune) bool { return c <= ' ' || c > '~' }):
		return Request{}, invalid("subject_token has characters of no token")
	}
	if kind := form.Get("requested_token_type"); kind != "" && kind != typeAccessToken {
		return Request{}, invalid("invalid requested_token_type %s: want %s", printable.Quote(kind, 100), typeAccessToken)
	}
	for _, name := range []string{"actor_token", "actor_token_type"} {
		if form.Get(name) != "" {
			return Request{}, invalid("%s is not supported: a token is exchanged for its subject only", name)
		}
	}
	if form.Get("resource") != "" {
		return Request{}, &Error{Code: invalidTarget, Description: "resource is not supported: want audience"}
	}
	for name, text := range map[string]string{"audience": r.Audience, "scope": r.Scope} {
		if len(text) > maxText || !printable.Is(text) {
			return Request{}, invalid("invalid %s: want at most %d printable bytes", name, maxText)
		}
	}
	return r, nil
}
