// Package jwks decides when the keys of the issuers of tokens are fetched, and from which URLs and addresses.
//
// It is pure: a Plan gets the time, and what fetches answered, as arguments. Package fetch executes it. A failure never takes away
// keys that are known: the last good ones stay.
package jwks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	security "istio.io/api/security/v1beta1"
)

// Bounds of what is fetched.
const (
	// MaxDocument is the length of a discovery document, in bytes.
	MaxDocument = 64 << 10
	// MaxURL is the length of a URL, in bytes.
	MaxURL = 2048
	// DefaultTimeout is how long a fetch may take if its rule has no timeout, as with Istio; MaxTimeout bounds those that have.
	DefaultTimeout = 5 * time.Second
	MaxTimeout     = time.Minute
)

// documentPath is where an issuer's discovery document is, after the issuer (OpenID Connect Discovery 1.0, section 4).
const documentPath = "/.well-known/openid-configuration"

// Source is where keys come from: a URL, or if it is empty what the discovery document of Issuer names. Issuer is empty with a URL,
// so that rules with one URL share its keys.
type Source struct {
	URL    string `json:"url,omitempty"`
	Issuer string `json:"issuer,omitempty"`
}

// SourceOf returns where the keys of a rule are fetched from, and within which time; false if the rule has keys of its own, or
// if they cannot be fetched from what it names (Check says why).
func SourceOf(r *security.JWTRule) (s Source, timeout time.Duration, ok bool) {
	if r.GetJwks() != "" {
		return Source{}, 0, false
	}
	if s.URL = r.GetJwksUri(); s.URL == "" {
		s.Issuer = r.GetIssuer()
	}
	timeout = DefaultTimeout
	if t := r.GetTimeout().AsDuration(); t > 0 {
		timeout = min(t, MaxTimeout)
	}
	return s, timeout, s.Check() == nil
}

// Key identifies the source.
func (s Source) Key() string {
	if s.URL != "" {
		return "url " + s.URL
	}
	return "issuer " + s.Issuer
}

// Document is the URL of the issuer's discovery document; empty if the keys have a URL of their own.
func (s Source) Document() string {
	if s.URL != "" {
		return ""
	}
	return strings.TrimSuffix(s.Issuer, "/") + documentPath
}

// First is the first URL that a fetch requests.
func (s Source) First() string {
	if s.URL != "" {
		return s.URL
	}
	return s.Document()
}

// Check returns an error if nothing can be fetched from the source.
func (s Source) Check() error {
	_, err := ParseURL(s.First())
	return err
}

// ParseURL parses a URL of keys or of a discovery document: http or https, with a host, without a user, and of at most MaxURL bytes.
func ParseURL(text string) (*url.URL, error) {
	if len(text) > MaxURL {
		return nil, fmt.Errorf("invalid URL of %d bytes: want at most %d", len(text), MaxURL)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("invalid URL: want http:// or https://, a host and a path")
	}
	port := u.Port()
	n, portErr := strconv.Atoi(port)
	switch {
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("invalid URL: want http:// or https://, a host and a path")
	case u.User != nil:
		return nil, errors.New("invalid URL: want one without a user and a password, which would be logged")
	case port != "" && (portErr != nil || n < 1 || n > 65535):
		return nil, fmt.Errorf("invalid port %q: want 1–65535", port)
	}
	return u, nil
}

// Follow returns an error if a response of one URL must not lead to another one: only to http and https, and not from https
// to http, since whoever is on the way could then replace the keys.
func Follow(from *url.URL, to string) (*url.URL, error) {
	u, err := ParseURL(to)
	if err != nil {
		return nil, err
	}
	if from.Scheme == "https" && u.Scheme != "https" {
		return nil, errors.New("leads from https to http")
	}
	return u, nil
}

// KeysIn returns the URL of the keys in a discovery document, which came from a URL.
func KeysIn(document []byte, from *url.URL) (*url.URL, error) {
	var doc struct {
		Keys string `json:"jwks_uri"`
	}
	if len(document) > MaxDocument {
		return nil, fmt.Errorf("discovery document of %d bytes: want at most %d", len(document), MaxDocument)
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, errors.New("invalid JSON: want a discovery document with jwks_uri")
	}
	if doc.Keys == "" {
		return nil, errors.New("the discovery document has no jwks_uri")
	}
	u, err := Follow(from, doc.Keys)
	if err != nil {
		return nil, fmt.Errorf("jwks_uri of the discovery document: %w", err)
	}
	return u, nil
}
